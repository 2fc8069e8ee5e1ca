"""Attention with a function of the score and of positions, in plain torch, one sequence after the other.

Independent of gdpa. The function computes with tensors, so it may be the score function of the call itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from reference import allowed
from torch import Tensor

Score = Callable[[Tensor, Any, Tensor, Tensor, Tensor], Tensor]

LENGTHS_Q = (3, 0, 5, 1)
LENGTHS_K = (4, 2, 0, 6)


def starts(lengths: Sequence[int]) -> list[int]:
    """The position of the first token of each sequence, and the number of all tokens."""
    return [0, *accumulate(lengths)]


def one_sequence(
    score: Score, b: int, query: Tensor, key: Tensor, value: Tensor, window: tuple[int, int] = (-1, -1)
) -> Tensor:
    """O of a sequence, (length_q, heads, head_dim_v), with scale 1 / sqrt(head_dim)."""
    heads, length_q, length_k = query.shape[1], query.shape[0], key.shape[0]
    key, value = (tensor.repeat_interleave(heads // key.shape[1], 1) for tensor in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
    if scores.numel() == 0:
        return query.new_zeros(length_q, heads, value.shape[-1])
    h, i, j = torch.arange(heads)[:, None, None], torch.arange(length_q)[:, None], torch.arange(length_k)
    p = score(scores, b, h, i, j) + torch.zeros_like(scores)
    p = torch.where(allowed(length_q, length_k, window, False), p, 0.0)
    return torch.einsum("hqk,khd->qhd", p, value)


class Call:
    """The operands of a call in one layout, with the same call of the definition.

    jagged: sequences of these lengths. dense: as many sequences, all of the longest length. In the other layouts one
    side is shared and has the longest length.
    """

    def __init__(
        self,
        layout: str,
        dtype: torch.dtype = torch.float64,
        heads: int = 4,
        heads_k: int = 2,
        lengths_q: Sequence[int] = LENGTHS_Q,
        lengths_k: Sequence[int] = LENGTHS_K,
    ) -> None:
        self.heads, self.batch = heads, len(lengths_q)
        self.longest_q, self.longest_k = max(lengths_q), max(lengths_k)
        is_jagged_q, is_jagged_k = layout in ("jagged", "shared key"), layout in ("jagged", "shared query")
        self.lengths_q = tuple(lengths_q) if is_jagged_q else (self.longest_q,) * self.batch
        self.lengths_k = tuple(lengths_k) if is_jagged_k else (self.longest_k,) * self.batch
        shape_q: tuple[int, ...] = (self.longest_q,)
        shape_k: tuple[int, ...] = (self.longest_k,)
        if layout == "dense":
            shape_q, shape_k = (self.batch, *shape_q), (self.batch, *shape_k)
        shape_q = (sum(lengths_q),) if is_jagged_q else shape_q
        shape_k = (sum(lengths_k),) if is_jagged_k else shape_k
        self.first_q = starts(self.lengths_q) if layout != "shared query" else [0] * self.batch
        self.first_k = starts(self.lengths_k) if layout != "shared key" else [0] * self.batch
        self.tokens_q, self.tokens_k = (int(torch.tensor(shape).prod()) for shape in (shape_q, shape_k))
        self.cu_q = torch.tensor(starts(self.lengths_q)) if is_jagged_q else None
        self.cu_k = torch.tensor(starts(self.lengths_k)) if is_jagged_k else None
        shapes = ((*shape_q, heads, 8), (*shape_k, heads_k, 8), (*shape_k, heads_k, 4))
        self.operands = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]

    def rows(self, b: int) -> list[Tensor]:
        """Query, key and value of a sequence."""
        begin_q, begin_k = self.first_q[b], self.first_k[b]
        ranges = [slice(begin_q, begin_q + self.lengths_q[b]), *[slice(begin_k, begin_k + self.lengths_k[b])] * 2]
        return [tensor.flatten(0, -3)[rows] for tensor, rows in zip(self.operands, ranges, strict=True)]

    def expected(self, score: Score, window: tuple[int, int] = (-1, -1)) -> Tensor:
        """O of all sequences, (tokens, heads, head_dim_v)."""
        return torch.cat([one_sequence(score, b, *self.rows(b), window) for b in range(len(self.lengths_q))])
