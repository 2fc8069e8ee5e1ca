"""The three uses of the demonstration, each with its call of gdpa and its computation in PyTorch.

PyTorch computes product, function, product on padded batches, which is the usual method. The reference computes each
sequence separately in fp64, without padding and without padding masks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import gdpa
from gdpa.demo.expression import Elementwise
from gdpa.demo.histories import Embedding, Histories


@dataclass(frozen=True)
class Use:
    """A use: the sides of the attention with histories, and the sides with a few shared rows (0: none)."""

    name: str
    description: str
    shared_queries: int = 0
    shared_keys: int = 0
    causal: bool = False


USES = (
    Use("self", "causal self-attention over each history", causal=True),
    Use("PFFN", "each history against 64 keys and values, broadcast to the batch", shared_keys=64),
    Use("PMA", "4 queries, broadcast to the batch, against each history", shared_queries=4),
)


@dataclass(frozen=True)
class Case:
    """One use on one batch: its tensors, and the gradient of its output."""

    use: Use
    query: Tensor  # (rows, heads, head_dim), like key and value
    key: Tensor
    value: Tensor
    offsets: Tensor  # offsets of the history
    grad_output: Tensor

    @staticmethod
    def make(use: Use, batch: Histories, embedding: Embedding) -> Case:
        query, key, value = embedding.query_key_value(batch)
        if use.shared_queries:
            query = embedding.rows(use.shared_queries)
        if use.shared_keys:
            key, value = embedding.rows(use.shared_keys), embedding.rows(use.shared_keys)
        rows = batch.users * use.shared_queries if use.shared_queries else len(query)
        return Case(use, query, key, value, batch.offsets.to(embedding.device), embedding.rows(rows))

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def lengths(self) -> list[int]:
        return self.offsets.diff().tolist()

    def flops(self) -> float:
        """The FLOP of forward: two products over the scores that the mask selects. Backward has five products."""
        heads, head_dim = self.query.shape[1:]
        if self.use.causal:
            scores = sum(n * (n + 1) // 2 for n in self.lengths)
        else:
            scores = sum(self.lengths) * (self.use.shared_queries or self.use.shared_keys)
        return 4.0 * heads * head_dim * scores


Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


def with_gdpa(case: Case, activation: str) -> Forward:
    """Returns gdpa's forward for this case, as a function of query, key and value."""
    use, offsets = case.use, case.offsets

    def forward(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return gdpa.varlen_attention(
            query,
            key,
            value,
            None if use.shared_queries else offsets,
            None if use.shared_keys else offsets,
            activation=activation,
            out_scale="1/len_k",
            window_size=(-1, 0) if use.causal else (-1, -1),
        )

    return forward


def attention(query: Tensor, key: Tensor, value: Tensor, function: Elementwise, mask: Tensor | None) -> Tensor:
    """Computes f(Q K^T / sqrt(d)) V in PyTorch on (..., rows, head_dim). `mask` is True for the scores that count."""
    p = function(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5)
    if mask is not None:
        p = p.masked_fill(~mask, 0.0)
    return p @ value


def packed(case: Case, function: Elementwise) -> Forward | None:
    """PyTorch without padding. One product over all rows is sufficient only if the keys are broadcast to the batch."""
    if not case.use.shared_keys:
        return None

    def forward(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        return (attention(query, key, value, function, None) / case.use.shared_keys).transpose(0, 1)

    return forward


def causal(rows: int, device: torch.device) -> Tensor:
    return torch.ones(rows, rows, dtype=torch.bool, device=device).tril()


class Padded:
    """A case in PyTorch without gdpa: every history is padded to the longest of its batch, and masked."""

    def __init__(self, case: Case, function: Elementwise) -> None:
        self.case, self.function = case, function
        lengths = case.offsets.diff()
        longest = int(lengths.max())
        self.exists = torch.arange(longest, device=lengths.device) < lengths[:, None]  # (batch, longest)
        if case.use.causal:
            self.mask: Tensor | None = causal(longest, lengths.device)
        else:
            # The outputs of padded queries are dropped, so only padded keys need a mask.
            self.mask = None if case.use.shared_keys else self.exists[:, None, None, :]
        key_lengths = lengths.new_tensor([case.use.shared_keys]) if case.use.shared_keys else lengths
        self.out_scale = (1.0 / key_lengths).to(case.query.dtype)[:, None, None, None]
        self.inputs = tuple(
            self.pad(tensor, shared)
            for tensor, shared in zip(
                case.inputs, (case.use.shared_queries, case.use.shared_keys, case.use.shared_keys), strict=True
            )
        )
        self.grad_output = self.pad_output(case.grad_output)

    def pad(self, rows: Tensor, shared: int) -> Tensor:
        """Returns (batch, heads, longest, head_dim), or (1, heads, shared, head_dim)."""
        if shared:
            return rows.transpose(0, 1).unsqueeze(0).contiguous()
        return pad_sequence(list(rows.split(self.case.lengths)), batch_first=True).transpose(1, 2).contiguous()

    def pad_output(self, rows: Tensor) -> Tensor:
        if self.case.use.shared_queries:
            return rows.unflatten(0, (-1, self.case.use.shared_queries)).transpose(1, 2).contiguous()
        return self.pad(rows, 0)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value, self.function, self.mask) * self.out_scale

    def packed(self, padded: Tensor) -> Tensor:
        """Converts to gdpa's layout, (rows, heads, head_dim) without padding."""
        rows = padded.transpose(1, 2)
        return rows[self.exists] if rows.shape[:2] == self.exists.shape else rows.flatten(0, 1)


def reference(case: Case, function: Elementwise) -> Forward:
    """Computes the use in PyTorch, one sequence at a time, in fp64 for fp64 input."""

    def forward(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        use, count = case.use, len(case.lengths)
        sides = ((query, use.shared_queries), (key, use.shared_keys), (value, use.shared_keys))
        outputs = []
        for rows in zip(*([t] * count if shared else t.split(case.lengths) for t, shared in sides), strict=True):
            q, k, v = (tensor.transpose(0, 1) for tensor in rows)
            mask = causal(q.shape[1], q.device) if use.causal else None
            outputs.append((attention(q, k, v, function, mask) / k.shape[1]).transpose(0, 1))
        return torch.cat(outputs)

    return forward
