"""Product, f, product on padded operands, with and without torch.compile: the usual code without gdpa."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from gdpa.bench.cases import Case
from gdpa.bench.systems.base import Operands, Prepared, System, refuse_causal_cross, refuse_windows

Elementwise = Callable[[Tensor], Tensor]

# torch.compile stops compiling a function after this number of compilations. A benchmark has many shapes.
RECOMPILATIONS = 64


class Padded(System):
    """Product, f, product on operands that are padded with zeros to the longest sequence of the batch."""

    name = "padded"

    def refusal(self, case: Case) -> str | None:
        if elementwise(case.activation) is None:
            return f"no PyTorch form is known of the function {case.activation!r}"
        return refuse_windows(case) or refuse_causal_cross(case)

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        padded = operands.dense
        query, key, value, grad_output = (
            operand.transpose(1, 2).contiguous()
            for operand in (padded.query, padded.key, padded.value, padded.grad_output)
        )
        inputs = [operand.detach().requires_grad_() for operand in (query, key, value)]
        function = elementwise(case.activation)
        attention = self.attention()
        scale = case.head_dim**-0.5
        longest = max(case.lengths_q)
        mask = None
        if case.mask == "causal":
            mask = torch.ones(longest, longest, dtype=torch.bool, device=operands.query.device).tril()

        def forward() -> list[Tensor]:
            return [attention(*inputs, function, scale, mask)]

        return Prepared(forward, inputs, [grad_output])

    def attention(self) -> Callable[..., Tensor]:
        return padded_attention


class PaddedCompiled(Padded):
    """The padded computation under torch.compile, which fuses the function and the mask."""

    name = "padded, compiled"
    first_call = 0.8
    first_case = 120.0  # torch.compile chooses its products; 2 minutes on an H100 machine

    def attention(self) -> Callable[..., Tensor]:
        return compiled(padded_attention, dynamic=True)


def padded_attention(
    query: Tensor, key: Tensor, value: Tensor, function: Elementwise, scale: float, mask: Tensor | None
) -> Tensor:
    """Computes the output. Padded values are zero, so a padded key contributes nothing, even if f(0) is not 0."""
    scores = function(scale * (query @ key.mT))
    if mask is not None:
        scores = scores * mask
    return scores @ value


@cache
def compiled(
    function: Callable[..., Tensor], dynamic: bool | None = None, fullgraph: bool = False
) -> Callable[..., Tensor]:
    torch._dynamo.config.recompile_limit = RECOMPILATIONS
    return torch.compile(function, dynamic=dynamic, fullgraph=fullgraph)


def elementwise(activation: str) -> Elementwise | None:
    """Returns f as a PyTorch function, for a name or an expression."""
    from gdpa.demo.expression import in_pytorch

    named: dict[str, Elementwise] = {
        "identity": lambda s: s,
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
        "fast_gelu": partial(F.gelu, approximate="tanh"),
        "fast_silu": F.silu,
        "leaky_relu": F.leaky_relu,
        "hardswish": F.hardswish,
        "softplus": F.softplus,
        "relu2": lambda s: F.relu(s).square(),
    }
    if activation in named:
        return named[activation]
    try:
        return in_pytorch(activation)
    except ValueError:
        return None
