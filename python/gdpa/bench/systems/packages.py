"""Attention from other packages for GPUs, if they can be imported: FlashAttention 2 to 4, HSTU, and Triton kernels."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from importlib import metadata
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gdpa.bench.cases import Case
from gdpa.bench.rows import reason_of
from gdpa.bench.systems.base import Attend, Operands, Packed, Prepared, offsets, refuse_shared
from gdpa.bench.systems.checkouts import META_PACKAGE, define_object
from gdpa.bench.systems.compat import MASKED, targets_of


@cache
def first_module(names: tuple[str, ...], function: str) -> ModuleType | str:
    """Returns the first of these modules that can be imported and has the function, or the reasons of all failures."""
    reasons = []
    for name in names:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as missing:
            reasons.append(f"no module named {missing.name}")
        except Exception as error:  # an extension can raise any error when it loads its libraries
            reasons.append(f"{name}: {reason_of(error)}")
        else:
            if hasattr(module, function):
                return module
            reasons.append(f"{name} has no {function}, so it belongs to another package or version")
    return "; ".join(dict.fromkeys(reasons))


def only_known(function: Callable[..., Any], **arguments: object) -> dict[str, object]:
    """Returns the arguments that this version of the function has. The other arguments must not change the result."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in known}


class Package(Packed):
    """A system of an installed package with packed operands and cumulative lengths in int32."""

    devices = ("cuda",)
    modules: tuple[str, ...]
    entry: str  # a function that the module must have
    distributions: tuple[str, ...]  # the name of the package in pip
    advice = ""  # how to make the package importable

    def version(self) -> str:
        for name in self.distributions:
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return "unknown"

    def module(self) -> Any:
        """Returns the module, or the reason why there is none."""
        return first_module(self.modules, self.entry)

    def refusal(self, case: Case) -> str | None:
        module = self.module()
        return module + self.advice if isinstance(module, str) else self.refuse(case)

    def refuse(self, case: Case) -> str | None:
        return refuse_shared(case)

    def packed(self, case: Case, device: torch.device) -> Attend:
        cumulative = [offsets(lengths, device, torch.int32) for lengths in (case.lengths_q, case.lengths_k)]
        longest_q, longest_k = max(case.lengths_q), max(case.lengths_k)
        call = self.call(case, self.module())

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            result = call(query, key, value, *cumulative, longest_q, longest_k)
            return result[0] if isinstance(result, tuple) else result

        return attend

    def call(self, case: Case, module: Any) -> Callable[..., Any]:
        """Returns a function of query, key, value, both cumulative lengths and both longest lengths.

        Its result is the output, or a tuple that begins with the output.
        """
        raise NotImplementedError


class FlashAttention(Package):
    """Softmax. Dense operands use the function for dense operands, which is faster."""

    function = "softmax"
    entry = "flash_attn_varlen_func"  # version 4 alone also makes a package flash_attn, which is empty

    def __init__(
        self,
        name: str,
        modules: tuple[str, ...],
        distributions: tuple[str, ...],
        no_bound: int | None,
        first_call: float = Package.first_call,
    ):
        self.name = name
        self.modules = modules
        self.distributions = distributions
        self.no_bound = no_bound  # the value of an unbounded side of the window
        self.first_call = first_call

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        if len(set(case.lengths_q)) > 1 or len(set(case.lengths_k)) > 1:
            return super().prepare(case, operands)
        inputs = operands.dense.leaves()
        module = self.module()
        options = self.options(case)

        def forward() -> list[Tensor]:
            result = module.flash_attn_func(*inputs, **options)
            return [result[0] if isinstance(result, tuple) else result]

        return Prepared(forward, inputs, [operands.dense.grad_output])

    def call(self, case: Case, module: Any) -> Callable[..., Any]:
        options = self.options(case)

        def call(*arguments: Any) -> Any:
            query, key, value, offsets_q, offsets_k, longest_q, longest_k = arguments
            return module.flash_attn_varlen_func(
                query, key, value, cu_seqlens_q=offsets_q, cu_seqlens_k=offsets_k,
                max_seqlen_q=longest_q, max_seqlen_k=longest_k, **options,
            )  # fmt: skip

        return call

    def options(self, case: Case) -> dict[str, Any]:
        if case.mask == "causal":
            return {"causal": True}
        left, right = (self.no_bound if side < 0 else side for side in case.window)
        return {"window_size": (left, right)}


class Hstu(Package):
    """P = SiLU(alpha * Q K^T), divided by the longest length. The function has no other scale."""

    name = "HSTU"
    modules = ("hstu", "hstu_attn", "fbgemm_gpu.experimental.hstu")
    entry = "hstu_attn_varlen_func"
    distributions = ("fbgemm_gpu_hstu", "fbgemm-gpu-hstu", "hstu_attn", "hstu-attn", "fbgemm_gpu")
    function = "silu"

    def refuse(self, case: Case) -> str | None:
        if case.mask != "none" and case.lengths_q != case.lengths_k:
            return "its masks are for queries and keys of equal lengths"
        return refuse_shared(case)

    def call(self, case: Case, module: Any) -> Callable[..., Any]:
        function = module.hstu_attn_varlen_func
        longest = max(case.lengths_k)
        options = {"num_contexts": None, "num_targets": None, "window_size": case.window, "alpha": case.head_dim**-0.5}
        options |= only_known(function, scaling_seqlen=longest, seqused_q=None, seqused_k=None)

        def call(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Any:
            offsets_q, offsets_k, longest_q, longest_k = rest
            return function(
                query, key, value, offsets_q, offsets_k, max_seqlen_q=longest_q, max_seqlen_k=longest_k, **options
            )

        return call


class TritonGdpa(Package):
    """Meta's GDPA in Triton. Its scale multiplies after f, and is 1 as in Meta's own benchmark.

    Its package has the name gdpa, like this project. Therefore, it is imported under the name that its files import, or
    under the name of the library that contains it. `--checkout` makes it importable.
    """

    name = "Triton GDPA"
    modules = tuple(
        f"{parent}.triton.triton_generalized_dot_product_attention"
        for parent in (META_PACKAGE, "ads_mkl.ops.cute_dsl.gdpa", "ads_model_kernel_library.gdpa")
    )
    entry = "generalized_dot_product_attention"
    distributions = ("ads_mkl", "ads_model_kernel_library")
    advice = "; --checkout names a checkout of ads_model_kernel_library"
    first_call = 30.0  # Triton compiles and times many variants
    activations = {  # noqa: RUF012 - a table
        "identity": "raw", "gelu": "gelu", "gelu_tanh": "fast_gelu", "silu": "silu", "relu": "relu",
        "leaky_relu": "leaky_relu", "hardswish": "hardswish", "relu2": "relu_square",
    }  # fmt: skip

    def refuse(self, case: Case) -> str | None:
        if case.activation not in self.activations:
            return f"has none of its functions for {case.activation!r}"
        if case.mask != "none":
            return "its masks are not gdpa's"
        return refuse_shared(case)

    def call(self, case: Case, module: Any) -> Callable[..., Any]:
        define_object(module)

        def call(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Any:
            offsets_q, offsets_k, longest_q, longest_k = rest
            return module.generalized_dot_product_attention(
                query, key, value, query_offset=offsets_q, key_offset=offsets_k, output_offset=offsets_q,
                max_seq_len_q=longest_q, max_seq_len_kv=longest_k, qk_scale=1.0,
                activation=self.activations[case.activation],
            )  # fmt: skip

        return call


class TritonHstu(Package):
    """The HSTU kernel of generative-recommenders in Triton, with or without TMA. `--checkout` makes it importable."""

    modules = ("generative_recommenders.ops.triton.triton_hstu_attention",)
    entry = "triton_hstu_mha"
    distributions = ("generative-recommenders",)
    function = "silu"
    advice = "; --checkout names a checkout of generative-recommenders"
    first_call = 120.0  # Triton compiles and times about thirty variants

    def __init__(self, name: str, enable_tma: bool) -> None:
        self.name = name
        self.enable_tma = enable_tma

    def refuse(self, case: Case) -> str | None:
        if case.lengths_q != case.lengths_k or not (case.mask == "causal" or case.mask.startswith(MASKED)):
            return "its mask is causal, with targets, for queries and keys of equal lengths"
        return refuse_shared(case)

    def call(self, case: Case, module: Any) -> Callable[..., Any]:
        alpha = case.head_dim**-0.5
        targets: dict[torch.device, Tensor | None] = {}

        def call(query: Tensor, key: Tensor, value: Tensor, offsets_q: Tensor, *rest: Any) -> Any:
            device = query.device
            if device not in targets:
                targets[device] = None if case.mask == "causal" else targets_of(case, device)
            return module.triton_hstu_mha(
                max(case.lengths_q), alpha, query, key, value, offsets_q, num_targets=targets[device],
                sort_by_length=True, enable_tma=self.enable_tma,
            )  # fmt: skip

        return call
