"""Attention from other packages for GPUs, if they can be imported: FlashAttention 2 to 4, HSTU, and Triton kernels."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gdpa.bench.cases import Case
from gdpa.bench.report import reason_of
from gdpa.bench.systems.base import Attend, System, offsets_of
from gdpa.bench.systems.ours import Gdpa
from gdpa.compat import generative_recommenders, hstu, meta

# Checkouts of Meta's GDPA and of generative-recommenders, which no package registry has.
META = Path("gdpa/triton/triton_generalized_dot_product_attention.py")
META_PACKAGE = "ads_mkl.ops.oss.gdpa"  # the files import one another under this name
NAMES_OF_META = {ours: theirs for theirs, ours in meta.FUNCTIONS.items()} | {"gelu_tanh": "fast_gelu", "silu": "silu"}
GENERATIVE_RECOMMENDERS = Path("generative_recommenders/ops/triton/triton_hstu_attention.py")


def define_object(module: ModuleType) -> None:
    """Lets Triton 3.6 compile Meta's backward kernel, which annotates parameters with `object`.

    Triton looks annotations up among the globals of the module, where built-in names are unknown. The annotation has no
    other effect.
    """
    if hasattr(module, "tl"):
        vars(module).setdefault("object", module.tl)


def add_checkout(folder: Path) -> None:
    """Makes the package of a checkout importable.

    Raises:
        ValueError: the folder is no checkout of ads_model_kernel_library or of generative-recommenders.
    """
    folder = folder.resolve()
    if (folder / GENERATIVE_RECOMMENDERS).is_file():
        sys.path.append(str(folder))
    elif (folder / META).is_file():
        parts = META_PACKAGE.split(".")
        for end in range(1, len(parts) + 1):
            package = ModuleType(".".join(parts[:end]))
            package.__path__ = [str(folder / "gdpa")] if end == len(parts) else []
            sys.modules[package.__name__] = package
    else:
        raise ValueError(
            f"--checkout: expected a checkout of ads_model_kernel_library or generative-recommenders, got {folder}"
        )


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


class Package(System):
    """A system of an installed package with packed operands and cumulative lengths in int32."""

    devices = ("cuda",)
    can_train = True
    modules: tuple[str, ...]
    entry: str  # a function that the module must have
    distributions: tuple[str, ...]  # the name of the package in pip
    advice = ""  # how to make the package importable
    lacks: tuple[str, ...] = ("layouts", "conditions", "shared")

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
        return module + self.advice if isinstance(module, str) else super().refusal(case)

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        call = self.call(case, self.module(), *offsets_of(case, device))

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            result = call(query, key, value)
            return result[0] if isinstance(result, tuple) else result

        return attend

    def call(self, case: Case, module: Any, offsets_q: Tensor, offsets_k: Tensor) -> Callable[..., Any]:
        """Returns a function of query, key and value. Its result is the output, or a tuple that begins with it."""
        raise NotImplementedError


class FlashAttention(Package):
    """Softmax. Dense operands use the function for dense operands, which is faster."""

    function = "softmax"
    entry = "flash_attn_varlen_func"  # version 4 alone also makes a package flash_attn, which is empty

    def __init__(
        self, name: str, modules: tuple[str, ...], distributions: tuple[str, ...], no_bound: int | None
    ) -> None:
        self.name = name
        self.modules = modules
        self.distributions = distributions
        self.no_bound = no_bound  # the value of an unbounded side of the window

    def layout(self, case: Case) -> str:
        return "packed" if len(set(case.lengths_q)) > 1 or len(set(case.lengths_k)) > 1 else "dense"

    def call(self, case: Case, module: Any, offsets_q: Tensor, offsets_k: Tensor) -> Callable[..., Any]:
        if self.layout(case) == "dense":
            return partial(module.flash_attn_func, **self.options(case))
        return partial(
            module.flash_attn_varlen_func, cu_seqlens_q=offsets_q, cu_seqlens_k=offsets_k,
            max_seqlen_q=max(case.lengths_q), max_seqlen_k=max(case.lengths_k), **self.options(case),
        )  # fmt: skip

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

    def refusal(self, case: Case) -> str | None:
        if case.mask != "none" and case.lengths_q != case.lengths_k:
            return "its masks are for queries and keys of equal lengths"
        return super().refusal(case)

    def call(self, case: Case, module: Any, offsets_q: Tensor, offsets_k: Tensor) -> Callable[..., Any]:
        function, longest = module.hstu_attn_varlen_func, max(case.lengths_k)
        options = {"num_contexts": None, "num_targets": None, "window_size": case.window, "alpha": case.head_dim**-0.5}
        options |= {"max_seqlen_q": max(case.lengths_q), "max_seqlen_k": longest}
        options |= only_known(function, scaling_seqlen=longest, seqused_q=None, seqused_k=None)
        return lambda query, key, value: function(query, key, value, offsets_q, offsets_k, **options)


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

    def refusal(self, case: Case) -> str | None:
        if case.activation not in NAMES_OF_META:
            return f"has none of its functions for {case.activation!r}"
        return "its masks are not gdpa's" if case.mask != "none" else super().refusal(case)

    def call(self, case: Case, module: Any, offsets_q: Tensor, offsets_k: Tensor) -> Callable[..., Any]:
        define_object(module)
        return partial(
            module.generalized_dot_product_attention, query_offset=offsets_q, key_offset=offsets_k,
            output_offset=offsets_q, max_seq_len_q=max(case.lengths_q), max_seq_len_kv=max(case.lengths_k),
            qk_scale=1.0, activation=NAMES_OF_META[case.activation],
        )  # fmt: skip


class TritonHstu(Package):
    """The HSTU kernel of generative-recommenders in Triton, with or without TMA. `--checkout` makes it importable."""

    modules = ("generative_recommenders.ops.triton.triton_hstu_attention",)
    entry = "triton_hstu_mha"
    distributions = ("generative-recommenders",)
    function = "silu"
    lacks = ("layouts", "shared")
    advice = "; --checkout names a checkout of generative-recommenders"

    def __init__(self, name: str, enable_tma: bool) -> None:
        self.name = name
        self.enable_tma = enable_tma

    def refusal(self, case: Case) -> str | None:
        if case.lengths_q != case.lengths_k or not (case.mask == "causal" or case.mask.startswith(MASKED)):
            return "its mask is causal, with targets, for queries and keys of equal lengths"
        return super().refusal(case)

    def call(self, case: Case, module: Any, offsets_q: Tensor, offsets_k: Tensor) -> Callable[..., Any]:
        longest, alpha = max(case.lengths_q), case.head_dim**-0.5
        targets = None if case.mask == "causal" else targets_of(case, offsets_q.device)
        return lambda query, key, value: module.triton_hstu_mha(
            longest, alpha, query, key, value, offsets_q, num_targets=targets, sort_by_length=True,
            enable_tma=self.enable_tma,
        )  # fmt: skip


# gdpa through the functions of gdpa.compat, which other systems of the suite compat have under the same names. --------

MASKED = "hstu:0,"  # causal with targets at the end, the mask of generative-recommenders


def targets_of(case: Case, device: torch.device) -> Tensor:
    """Returns the number of targets of each sequence: the number in the mask, or the whole of a shorter sequence."""
    count = int(case.mask.split(",")[1])
    return torch.tensor([min(count, length) for length in case.lengths_q], dtype=torch.int64, device=device)


class GdpaCompat(Gdpa):
    """gdpa.compat: HSTU with a mask, FBGEMM's function with rab, and Meta's function otherwise."""

    name = "gdpa.compat"
    reported_as = "gdpa"
    is_usual = False
    can_train = False

    def refusal(self, case: Case) -> str | None:
        if case.mask == "none":
            return None if case.activation in NAMES_OF_META else "Meta's GDPA does not have this function"
        return None if case.mask.startswith(MASKED) else "no function of gdpa.compat is for this mask"

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        cumulative, longest = offsets_of(case, device), max(case.lengths_q)
        if case.mask == "none":
            return TritonGdpa().call(case, meta, *cumulative)
        if not params:
            return TritonHstu("", enable_tma=False).call(case, generative_recommenders, *cumulative)
        targets = targets_of(case, device)
        return lambda query, key, value: hstu.hstu_attn_varlen_func(
            query, key, value, *cumulative, None, None, longest, longest, -1, None, targets,
            window_size=(-1, 0), alpha=case.head_dim**-0.5, rab=params["rab"], has_drab=True,
        )  # fmt: skip
