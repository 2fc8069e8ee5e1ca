"""The masks of cases: gdpa's masks, and the scores that they select."""

from __future__ import annotations

import torch
from torch import Tensor

import gdpa
from gdpa.bench.cases import Case
from gdpa.bench.in_pytorch import mask_mod_of
from gdpa.mask import Mask, mask_of

NOTATION = (
    "none, causal, window:LEFT,RIGHT (-1 has no bound), hstu:CONTEXTS,TARGETS,GROUP, prefix:LENGTH (or causal), "
    "intervals:LENGTH (the same as ranges), documents:COUNT, or a condition such as 'kv_idx <= q_idx'"
)


def mask_of_case(timed: Case, device: torch.device) -> Mask:
    """Returns the mask of a case. A mask with numbers is a name and these numbers, such as "hstu:64,128,8".

    Raises:
        ValueError: the name is unknown or has another number of numbers.
    """
    if timed.has_window:
        return gdpa.mask.window(*timed.window)
    name, colon, numbers = timed.mask.partition(":")
    if not colon:
        return mask_of(timed.mask)

    def of_each_sequence(number: int) -> Tensor:
        return torch.full((len(timed.lengths_q),), number, device=device)

    def documents(lengths: tuple[int, ...], count: int) -> Tensor:
        """Returns numbers of so many documents of about the same length in each sequence."""
        parts = [torch.arange(length, device=device) * count // max(length, 1) for length in lengths]
        return torch.cat(parts).int()

    match name, [int(number) for number in numbers.split(",")]:
        case "hstu", [contexts, targets, group]:
            return gdpa.mask.hstu(
                contexts=of_each_sequence(contexts), targets=of_each_sequence(targets), target_group_size=group
            )
        case "prefix", [length]:
            return gdpa.mask.causal() | gdpa.mask.prefix(of_each_sequence(length))
        case "intervals", [length]:  # the same keys as `prefix`, as two ranges for each query
            sides = zip(timed.lengths_q, timed.lengths_k, strict=True)
            ends = torch.cat([torch.arange(q, device=device) + k - q + 1 for q, k in sides])
            bounds = (torch.zeros_like(ends), torch.full_like(ends, length), torch.full_like(ends, length), ends)
            return gdpa.mask.intervals(torch.stack(bounds, 1).unflatten(1, (2, 2)).int())
        case "documents", [count]:
            return gdpa.mask.documents(documents(timed.lengths_q, count), documents(timed.lengths_k, count))
    raise ValueError(f"no mask {name} has these numbers")


def selected(mask: str, length_q: int, length_k: int, device: torch.device) -> Tensor:
    """Returns the scores of a sequence that a mask selects (length_q, length_k)."""
    one = Case((length_q,), (length_k,), heads=1, head_dim=1, mask=mask)
    i, j = torch.arange(length_q, device=device), torch.arange(length_k, device=device)
    zero = torch.zeros((), dtype=torch.int64, device=device)
    holds = mask_mod_of(mask_of_case(one, device), one, device)(zero, zero, i[:, None], j[None, :])
    return holds.expand(length_q, length_k)
