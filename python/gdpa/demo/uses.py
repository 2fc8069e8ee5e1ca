"""The three uses of the demonstration, and the systems that compute them.

gdpa computes packed rows. PyTorch computes product, function, product on padded batches, which is the usual method. The
reference computes each sequence separately in fp64, without padding. All of them divide by the number of keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gdpa.bench.cases import Case
from gdpa.bench.in_pytorch import elementwise
from gdpa.bench.systems import Gdpa, Operands, Padded, System
from gdpa.bench.systems.base import Attend
from gdpa.bench.systems.padded import padded_attention
from gdpa.demo.histories import Embedding, Histories


@dataclass(frozen=True)
class Use:
    """A use: the sides of the attention with histories, and the sides with a few shared rows (0: none)."""

    name: str
    description: str
    shared_queries: int = 0
    shared_keys: int = 0
    causal: bool = False

    def operands(self, batch: Histories, embedding: Embedding, activation: str) -> Operands:
        """Returns the operands of this use on one batch, with their case, and the gradient of the output."""
        lengths = tuple(batch.lengths.tolist())
        case = Case(
            (self.shared_queries,) * len(lengths) if self.shared_queries else lengths,
            (self.shared_keys,) * len(lengths) if self.shared_keys else lengths,
            *embedding.shape,
            dtype=str(embedding.dtype).removeprefix("torch."),
            activation=activation,
            mask="causal" if self.causal else "none",
            shared_q=self.shared_queries > 0,
            shared_kv=self.shared_keys > 0,
            name=self.name,
        )
        query, key, value = embedding.query_key_value(batch)
        if self.shared_queries:
            query = embedding.rows(self.shared_queries)
        if self.shared_keys:
            key, value = embedding.rows(self.shared_keys), embedding.rows(self.shared_keys)
        return Operands(case, query, key, value, embedding.rows(sum(case.lengths_q)))


USES = (
    Use("self", "causal self-attention over each history", causal=True),
    Use("PFFN", "each history against 64 keys and values, broadcast to the batch", shared_keys=64),
    Use("PMA", "4 queries, broadcast to the batch, against each history", shared_queries=4),
)


WITH_GDPA = Gdpa(out_scale="1/len_k")


class WithPadding(Padded):
    """PyTorch on histories that are padded to the longest of their batch."""

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        attend = super().attend(case, device, params)
        factors = (1.0 / torch.tensor(case.lengths_k, device=device)).to(getattr(torch, case.dtype))
        return lambda *operands: attend(*operands) * factors[:, None, None, None]


class WithoutPadding(System):
    """PyTorch without padding. One product over all rows is sufficient only if the keys are broadcast to the batch."""

    name = "packed"

    def refusal(self, case: Case) -> str | None:
        return None if case.shared_kv else "every sequence has its own keys"

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        return partial(attention, case=case)


class Reference(System):
    """One sequence at a time, in fp64 for operands in fp64."""

    name = "reference"

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            sides = (
                (query, case.lengths_q, case.shared_q),
                *((one, case.lengths_k, case.shared_kv) for one in (key, value)),
            )
            sequences = ([rows] * len(lengths) if shared else rows.split(lengths) for rows, lengths, shared in sides)
            return torch.cat([attention(q, k, v, case) for q, k, v in zip(*sequences, strict=True)])

        return attend


def attention(query: Tensor, key: Tensor, value: Tensor, case: Case) -> Tensor:
    """Computes f(Q K^T / sqrt(d)) V / L_k in PyTorch on (rows, heads, head_dim) of one sequence."""
    q, k, v = (one.transpose(0, 1) for one in (query, key, value))
    is_causal = case.mask == "causal"
    mask = torch.ones(len(query), len(key), dtype=torch.bool, device=query.device).tril() if is_causal else None
    output = padded_attention(q, k, v, elementwise(case.activation), case.head_dim**-0.5, mask)
    return output.transpose(0, 1) / len(key)


def without_padding(padded: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Converts (batch, heads, longest, head_dim), or batch 1 for shared rows, to packed rows."""
    return torch.cat([rows[:length] for rows, length in zip(padded.transpose(1, 2), lengths, strict=False)])
