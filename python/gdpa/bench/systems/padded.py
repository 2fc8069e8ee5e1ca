"""Product, f, product on padded operands, with and without torch.compile: the usual code without gdpa."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from gdpa.bench.cases import Case
from gdpa.bench.systems.base import Attend, System, refuse_conditions
from gdpa.demo.expression import in_pytorch

Elementwise = Callable[[Tensor], Tensor]

# torch.compile stops compiling a function after this number of compilations. A benchmark has many shapes.
RECOMPILATIONS = 64


class Padded(System):
    """Product, f, product on operands that are padded with zeros to the longest sequence of the batch."""

    name = "padded"
    can_train = True

    def refusal(self, case: Case) -> str | None:
        if elementwise(case.activation) is None:
            return f"no PyTorch form is known of the function {case.activation!r}"
        if case.mask != "none" and case.lengths_q != case.lengths_k:
            return "its mask is for queries and keys of equal lengths"
        return refuse_conditions(case)

    def layout(self, case: Case) -> str:
        return "heads_first"

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        function, scale, mask = elementwise(case.activation), case.head_dim**-0.5, window_mask(case, device)
        return partial(self.attention(), function=function, scale=scale, mask=mask)

    def attention(self) -> Callable[..., Tensor]:
        return padded_attention


class PaddedCompiled(Padded):
    """The padded computation under torch.compile, which fuses the function and the mask."""

    name = "padded, compiled"
    can_train = False

    def attention(self) -> Callable[..., Tensor]:
        return compiled(padded_attention, dynamic=True)


def window_mask(case: Case, device: torch.device) -> Tensor | None:
    """Returns the scores inside the window of the case (longest, longest), or None if it has no bound."""
    left, right = case.window
    if left < 0 and right < 0:
        return None
    longest = max(case.lengths_q)
    mask = torch.ones(longest, longest, dtype=torch.bool, device=device)
    mask = mask.tril(right) if right >= 0 else mask
    return mask.triu(-left) if left >= 0 else mask


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
