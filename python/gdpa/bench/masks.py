"""The masks of cases: gdpa's mask, the same condition as a mask_mod of FlexAttention, and the scores that count."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

import gdpa
from gdpa.bench.cases import Case
from gdpa.bench.score_mod import POSITIONS, expression, function_of
from gdpa.mask import Mask, mask_of

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def hstu(case: Case, device: torch.device, numbers: list[int]) -> Mask:
    contexts, targets, group = numbers
    return gdpa.mask.hstu(
        contexts=of_each_sequence(contexts, case, device),
        targets=of_each_sequence(targets, case, device),
        target_group_size=group,
    )


def prefix(case: Case, device: torch.device, numbers: list[int]) -> Mask:
    (length,) = numbers
    return gdpa.mask.causal() | gdpa.mask.prefix(of_each_sequence(length, case, device))


def intervals(case: Case, device: torch.device, numbers: list[int]) -> Mask:
    """The same keys as `prefix`, as two ranges for each query."""
    (length,) = numbers
    ends = torch.cat([positions(q, device) + k - q + 1 for q, k in zip(case.lengths_q, case.lengths_k, strict=True)])
    first = torch.tensor([0, length], device=device).expand(len(ends), 2)
    return gdpa.mask.intervals(torch.stack([first, torch.stack([torch.full_like(ends, length), ends], -1)], 1).int())


def documents(case: Case, device: torch.device, numbers: list[int]) -> Mask:
    """Each sequence has so many documents of about the same length."""
    (count,) = numbers

    def of(lengths: tuple[int, ...]) -> Tensor:
        return torch.cat([positions(length, device) * count // max(length, 1) for length in lengths]).int()

    return gdpa.mask.documents(of(case.lengths_q), of(case.lengths_k))


def of_each_sequence(number: int, case: Case, device: torch.device) -> Tensor:
    return torch.full((len(case.lengths_q),), number, device=device)


def positions(length: int, device: torch.device) -> Tensor:
    return torch.arange(length, device=device)


# The masks that are a name and numbers, such as "hstu:64,128,8". Every other text is a condition.
NAMED: dict[str, Callable[[Case, torch.device, list[int]], Mask]] = {
    "hstu": hstu,
    "prefix": prefix,
    "intervals": intervals,
    "documents": documents,
}
NOTATION = (
    "none, causal, window:LEFT,RIGHT (-1 has no bound), hstu:CONTEXTS,TARGETS,GROUP, prefix:LENGTH (or causal), "
    "intervals:LENGTH (the same as ranges), documents:COUNT, or a condition such as 'kv_idx <= q_idx'"
)


def mask_of_case(case: Case, device: torch.device) -> Mask | None:
    """Returns the mask of a case, or None for a window.

    Raises:
        ValueError: the name has another number of numbers.
    """
    if case.has_window:
        return None
    name, colon, numbers = case.mask.partition(":")
    if not colon:
        return mask_of(case.mask)
    try:
        return NAMED[name](case, device, [int(number) for number in numbers.split(",")])
    except (KeyError, ValueError):
        raise ValueError(f"--mask: expected {NOTATION}; got {case.mask!r}") from None


def mask_mod_of(mask: Mask, case: Case) -> MaskMod:
    """Returns the condition of a mask as a mask_mod, from the same text."""
    device = next((tensor.device for tensor in mask.tensors.values()), torch.device("cpu"))
    return function_of(expression(mask.text), POSITIONS, case, mask.tensors, device)


@cache
def scores_that_count(mask: str, lengths_q: tuple[int, ...], lengths_k: tuple[int, ...]) -> int:
    """Returns the number of scores of one head that a condition selects. It is the same for equal lengths."""
    counted: dict[tuple[int, int], int] = {}
    for lengths in zip(lengths_q, lengths_k, strict=True):
        if lengths not in counted:
            one = Case((lengths[0],), (lengths[1],), heads=1, head_dim=1, mask=mask)
            of_case = mask_of_case(one, torch.device("cpu"))
            assert of_case is not None
            i, j = (torch.arange(length) for length in lengths)
            zero = torch.zeros((), dtype=torch.int64)
            holds = mask_mod_of(of_case, one)(zero, zero, i[:, None], j[None, :])
            counted[lengths] = int(holds.expand(lengths).sum())
    return sum(counted[lengths] for lengths in zip(lengths_q, lengths_k, strict=True))
