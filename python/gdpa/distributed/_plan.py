"""ContextPlan: the rows of each rank, and the offsets of its calls, from the lengths of one batch."""

from __future__ import annotations  # a PyTorch without torch.distributed has no process groups

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

Mode = Literal["queries", "keys"]


@dataclass(frozen=True)
class _Side:
    """The offsets of the queries or of the keys of the whole batch, on the host."""

    offsets: Tensor  # (B + 1) int64
    rows: int  # all rows, also the rows of no sequence

    @property
    def lengths(self) -> Tensor:
        return self.offsets.diff()


def _side(cu_seqlens: Tensor | Sequence[int], rows: int | None) -> _Side:
    offsets = torch.as_tensor(cu_seqlens, dtype=torch.int64, device="cpu").clone()
    if offsets.dim() != 1 or len(offsets) < 1 or int(offsets[0]) < 0 or bool((offsets.diff() < 0).any()):
        raise ValueError(
            f"cu_seqlens: expected offsets that begin at 0 or more and never fall, got {offsets.tolist()[:8]}; pass "
            "cumulative lengths"
        )
    end = int(offsets[-1])
    if rows is not None and rows < end:
        raise ValueError(f"rows: expected at least {end}, the last offset, got {rows}; pass the offsets of this batch")
    return _Side(offsets, end if rows is None else rows)


def _partners(side: _Side, other: _Side, before: int, after: int, shift: Tensor) -> Tensor:
    """Returns the number of partners of each row i: rows i + shift - before to i + shift + after. -1: no bound."""
    lengths, offsets = side.lengths, side.offsets
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    centre = torch.arange(len(sequence)) + int(offsets[0]) - offsets[sequence] + shift[sequence]
    last = other.lengths[sequence]
    begin = torch.zeros_like(last) if before < 0 else (centre - before).clamp(min=0)
    end = last if after < 0 else torch.minimum(centre + after + 1, last)
    counts = torch.zeros(side.rows, dtype=torch.int64)
    counts[int(offsets[0]) : int(offsets[-1])] = (end - begin).clamp(min=0)
    return counts


def _bounds(work: Tensor, world: int) -> list[int]:
    """Returns the first row of each rank, and the number of rows, so that the ranks have about the same work."""
    total = work.cumsum(0)
    goals = torch.arange(1, world) * (int(total[-1]) if len(total) else 0) / world
    return [0, *torch.searchsorted(total.double(), goals.double()).tolist(), len(work)]


class ContextPlan:
    """The division of one jagged batch among the ranks of a group, for context_parallel_attention.

    Each rank has a range of consecutive rows. The ranges are chosen so that the ranks compute about the same number of
    scores, not so that they have the same number of rows. A sequence may lie on several ranks. A rank may have no rows.
    The plan is made on the host from the lengths. Make it once for a batch, and use it in all layers.

    Args:
        cu_seqlens_q: the offsets (B + 1) of the queries of the whole batch, the same on all ranks. Offsets on the host
            (a CPU tensor or a list) need no wait for the device.
        cu_seqlens_k: the offsets of the keys, or None for self-attention, where the keys are the rows of the queries.
        window_size: as in varlen_attention. The right side is 0 or -1, and with 0 on the right the left side may be any
            number. Both sides -1 select all keys.
        rows_q, rows_k: the numbers of rows, if rows after the last offset belong to no sequence.
        mode: "queries" divides the scores by queries: every rank gathers K and V, and the gradients of K and V are
            summed over the ranks. "keys" divides them by keys: every rank gathers Q, and O is summed over the ranks.
            None chooses the mode that moves fewer bytes.
        group_size: the number of query heads of a key head, for this choice.
        linear: the cost of a row outside of attention in scores, for the division of the rows.
        group: the process group. None is the default group.
        device: the device of the offsets for the calls. None is the CPU.

    Attributes:
        mode: the mode that is used.
        bounds_q, bounds_k: the first row of each rank, and the number of rows.
        pairs: the number of scores of each rank.
        local_offsets: the offsets (B + 1) of this rank's rows of the divided side in each sequence, for layers that
            compute each row alone.

    Example::

        >>> plan = gdpa.distributed.ContextPlan([0, 5, 12], window_size=(-1, 0), rank=0, world=2)
        >>> plan.bounds_q, plan.pairs
        ([0, 8, 12], [21, 22])
    """

    def __init__(
        self,
        cu_seqlens_q: Tensor | Sequence[int],
        cu_seqlens_k: Tensor | Sequence[int] | None = None,
        *,
        window_size: tuple[int, int] = (-1, -1),
        rows_q: int | None = None,
        rows_k: int | None = None,
        mode: Mode | None = None,
        group_size: int = 1,
        linear: float = 0.0,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        self.group = group
        self.is_agreed = False  # whether the ranks have compared their plans
        self.rank = dist.get_rank(group) if rank is None else rank
        self.world = dist.get_world_size(group) if world is None else world
        self.window_size = left, right = window_size
        if right not in (-1, 0) or (right == -1 and left != -1):
            raise ValueError(
                f"window_size: expected (-1, -1), or 0 on the right, got {window_size}; context parallelism has no "
                "window to the right"
            )
        self.queries = _side(cu_seqlens_q, rows_q)
        is_self = cu_seqlens_k is None
        self.keys = self.queries if cu_seqlens_k is None else _side(cu_seqlens_k, rows_k)
        if len(self.queries.offsets) != len(self.keys.offsets):
            raise ValueError(
                f"cu_seqlens_k: expected {len(self.queries.offsets)} offsets, as cu_seqlens_q has, got "
                f"{len(self.keys.offsets)}; pass the offsets of this batch"
            )
        self.shift = self.keys.lengths - self.queries.lengths  # of the diagonal, which ends at the bottom right
        has_later_keys = right == 0 and bool((self.shift > 0).any())
        if mode is None:
            is_cheaper = self.queries.rows * group_size < self.keys.rows
            mode = "keys" if is_cheaper and not has_later_keys else "queries"
        elif mode == "keys" and has_later_keys:
            raise ValueError(
                'mode: expected "queries" for a window with more keys than queries in a sequence, got "keys"; omit it'
            )
        self.mode: Mode = mode
        of_queries = _partners(self.queries, self.keys, left, right, self.shift)
        of_keys = _partners(self.keys, self.queries, right, left, -self.shift)
        owner = of_queries if mode == "queries" else of_keys
        work = owner.double() + linear
        by_rows = torch.ones(self.keys.rows if mode == "queries" else self.queries.rows, dtype=torch.float64)
        mine, others = _bounds(work, self.world), _bounds(by_rows, self.world)
        if is_self:
            others = mine
        self.bounds_q, self.bounds_k = (mine, others) if mode == "queries" else (others, mine)
        self.pairs = [int(owner[a:b].sum()) for a, b in pairwise(mine)]
        self.cu_seq_q, self.cu_seq_k = (one.int().to(device) for one in self._segments(mine))

        own = self.cu_seq_q if mode == "queries" else self.cu_seq_k
        self.local_offsets = own[::2].contiguous()  # of two segments for each sequence, one has no rows of this rank
        # A copy from the host to a GPU waits for all work of the GPU, so each copy is made once.
        self._offsets_on: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._factors_on: dict[tuple[str, torch.device], Tensor] = {}

    @property
    def diagonal(self) -> str:
        """The position of the diagonal in each segment of this rank."""
        return "bottom_right" if self.mode == "queries" else "upper_left"

    def _segments(self, bounds: list[int]) -> tuple[Tensor, Tensor]:
        """Returns the offsets of this rank's call: two segments for each sequence, one of which has no scores.

        With a window, the diagonal of a segment must be the diagonal of the sequence. The segment of a rank with some
        queries ends at the last key that its last query attends to, and the later keys are a segment without queries.
        The segment of a rank with some keys begins at the first query that attends to its first key, and the earlier
        queries are a segment without keys.
        """
        begin, end = bounds[self.rank], bounds[self.rank + 1]
        side = self.queries if self.mode == "queries" else self.keys
        first = (begin - side.offsets[:-1]).clamp(min=0).minimum(side.lengths)
        last = (end - side.offsets[:-1]).clamp(min=0).minimum(side.lengths)
        own = last - first
        own_start = (side.offsets[:1] - begin).clamp(min=0, max=end - begin)
        nothing = torch.zeros_like(own)
        if self.mode == "queries":
            partners = self.keys.lengths
            if self.window_size[1] == 0:
                partners = (last + self.shift).clamp(min=0)
            partners = torch.where(own > 0, partners, nothing)
            later = self.keys.lengths - partners
            return _offsets(own_start, own, nothing), _offsets(self.keys.offsets[:1], partners, later)
        earlier = nothing
        if self.window_size[1] == 0:
            earlier = (first - self.shift).clamp(min=0).minimum(self.queries.lengths)
        partners = self.queries.lengths - earlier
        return _offsets(self.queries.offsets[:1], earlier, partners), _offsets(own_start, nothing, own)

    def rows_of(self, rank: int) -> tuple[slice, slice]:
        """Returns the rows of the queries, and of the keys, of a rank."""
        return tuple(slice(bounds[rank], bounds[rank + 1]) for bounds in (self.bounds_q, self.bounds_k))  # type: ignore[return-value]

    def shard_queries(self, rows: Tensor) -> Tensor:
        """Returns this rank's part of the rows of the whole batch (T_q, ...), as a view."""
        return rows[self.rows_of(self.rank)[0]]

    def shard_keys(self, rows: Tensor) -> Tensor:
        """Returns this rank's part of the rows of the keys of the whole batch (T_k, ...), as a view."""
        return rows[self.rows_of(self.rank)[1]]

    def offsets_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns the offsets of the segments of queries and of keys on this device."""
        if device not in self._offsets_on:
            self._offsets_on[device] = self.cu_seq_q.to(device), self.cu_seq_k.to(device)
        return self._offsets_on[device]

    def out_scale(self, out_scale: float | str | Tensor, device: torch.device) -> float | Tensor:
        """Returns the out_scale of the segments, from the out_scale of the sequences."""
        if isinstance(out_scale, str):
            if out_scale not in ("1/len_q", "1/len_k"):
                raise ValueError(f'out_scale: expected "1/len_q", "1/len_k" or numbers, got {out_scale!r}; change it')
            if (out_scale, device) not in self._factors_on:
                lengths = (self.queries if out_scale == "1/len_q" else self.keys).lengths
                factors = (1.0 / lengths.clamp(min=1)).float().repeat_interleave(2)
                self._factors_on[out_scale, device] = factors.to(device)
            return self._factors_on[out_scale, device]
        if isinstance(out_scale, Tensor) and out_scale.dim() != 1:
            raise ValueError(
                f"out_scale: expected one number for each sequence, got shape {tuple(out_scale.shape)}; multiply the "
                "output of each rank by its rows"
            )
        return out_scale.repeat_interleave(2) if isinstance(out_scale, Tensor) else out_scale

    def fingerprint(self) -> int:
        """Returns a number that differs between plans of different batches."""
        parts = (*self.queries.offsets.tolist(), -1, *self.keys.offsets.tolist(), self.mode == "keys", *self.bounds_q)
        return hash((parts, self.window_size)) % 2**62


def _offsets(start: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Returns the offsets of alternating segments with these lengths."""
    return torch.cat([start, torch.stack([one, other], dim=1).flatten()]).cumsum(0)
