"""Product, f, product on padded operands, with and without torch.compile: the usual code without gdpa."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from gdpa.bench.cases import Case
from gdpa.bench.in_pytorch import Elementwise, elementwise
from gdpa.bench.masks import selected
from gdpa.bench.systems.base import Attend, System

# torch.compile stops compiling a function after this number of compilations. A benchmark has many shapes.
RECOMPILATIONS = 64


class Padded(System):
    """Product, f, product on operands that are padded with zeros to the longest sequence of the batch."""

    name = "padded"
    can_train = True
    lacks = ("layouts", "conditions")

    def refusal(self, case: Case) -> str | None:
        try:
            elementwise(case.activation)
        except ValueError:
            return f"no PyTorch form is known of the function {case.activation!r}"
        if case.mask != "none" and case.lengths_q != case.lengths_k:
            return "its mask is for queries and keys of equal lengths"
        return super().refusal(case)

    def layout(self, case: Case) -> str:
        return "heads_first"

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        longest, function, scale = max(case.lengths_q), elementwise(case.activation), case.head_dim**-0.5
        mask = None if case.mask == "none" else selected(case.mask, longest, longest, device)
        return partial(self.attention(), function=function, scale=scale, mask=mask)

    def attention(self) -> Callable[..., Tensor]:
        return padded_attention


class PaddedCompiled(Padded):
    """The padded computation under torch.compile, which fuses the function and the mask."""

    name = "padded, compiled"
    can_train = False

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
