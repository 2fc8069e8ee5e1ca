"""The systems that compute the attention and the PFFN of a block: gdpa, padded PyTorch, and softmax attention.

The systems come from the benchmark, which defines their names, versions and refusals.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

import gdpa
from gdpa.bench.systems import Gdpa, Padded, System
from gdpa.bench.systems.base import Attend, Packed
from gdpa.bench.systems.padded import Elementwise, elementwise, padded_attention
from gdpa.bench.training.batch import Batch


class Contender(ABC):
    """A system that computes the block. The rows are packed unless a subclass pads them."""

    def __init__(self, system: System) -> None:
        self.system = system

    @property
    def name(self) -> str:
        return self.system.name

    @abstractmethod
    def attention(self, batch: Batch) -> Attend:
        """Computes self-attention of query, key and value (..., heads, head_dim) in each sequence."""

    @abstractmethod
    def feed_forward(self, batch: Batch) -> Attend:
        """Computes the PFFN of rows (..., heads, head_dim) with shared keys and values (ffn_rows, heads, head_dim)."""

    def arrange(self, batch: Batch, rows: Tensor) -> Tensor:
        """Converts packed rows (tokens, D) to the layout of this block."""
        return rows

    def packed(self, batch: Batch, rows: Tensor) -> Tensor:
        """Converts rows of this block to packed rows without padding."""
        return rows


class WithGdpa(Contender):
    def attention(self, batch: Batch) -> Attend:
        cu_seqlens, activation = batch.cu_seqlens, batch.shape.activation

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return gdpa.varlen_attention(
                query, key, value, cu_seqlens, cu_seqlens, activation=activation, out_scale="1/len_k"
            )

        return attend

    def feed_forward(self, batch: Batch) -> Attend:
        cu_seqlens, activation = batch.cu_seqlens, batch.shape.activation

        def attend(rows: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return gdpa.varlen_attention(rows, keys, values, cu_seqlens, None, activation=activation, scale=1.0)

        return attend


class OnPadded(Contender):
    """gdpa's computation on rows padded with zeros: product, f, mask, product."""

    def attention(self, batch: Batch) -> Attend:
        function, scale = function_of(batch), batch.shape.head_dim**-0.5
        # A padded key contains the bias of the projection, so a mask is needed. It includes the division by the length.
        mean = batch.exists / batch.cu_seqlens.diff()[:, None]
        mask = mean.to(batch.rows.dtype)[:, None, None, :]

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query, key, value = (operand.transpose(1, 2) for operand in (query, key, value))
            return padded_attention(query, key, value, function, scale, mask).transpose(1, 2)

        return attend

    def feed_forward(self, batch: Batch) -> Attend:
        function = function_of(batch)

        def attend(rows: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            scores = function(torch.einsum("blhd,nhd->blhn", rows, keys))
            return torch.einsum("blhn,nhd->blhd", scores, values)

        return attend

    def arrange(self, batch: Batch, rows: Tensor) -> Tensor:
        return batch.padded(rows)

    def packed(self, batch: Batch, rows: Tensor) -> Tensor:
        return rows[batch.exists]


class WithSoftmax(Contender):
    """Softmax attention, and an MLP f(x W1^T) W2 with the same weights and FLOP."""

    system: Packed

    def attention(self, batch: Batch) -> Attend:
        return self.system.packed(batch.shape.attention, batch.rows.device)

    def feed_forward(self, batch: Batch) -> Attend:
        function = function_of(batch)

        def attend(rows: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            hidden = function(rows.flatten(-2) @ keys.flatten(1).mT)
            return (hidden @ values.flatten(1)).view_as(rows)

        return attend


def function_of(batch: Batch) -> Elementwise:
    function = elementwise(batch.shape.activation)
    assert function is not None, "the shapes name functions that PyTorch has"
    return function


def contenders_of(systems: Sequence[System]) -> list[Contender]:
    """Returns the systems that can compute a block: gdpa, the padded computation, and every packed softmax system."""
    ours = [WithGdpa(system) for system in systems if isinstance(system, Gdpa) and system.is_usual]
    padded = [OnPadded(system) for system in systems if type(system) is Padded]
    softmax = [WithSoftmax(one) for one in systems if isinstance(one, Packed) and one.function == "softmax"]
    return [*ours, *padded, *softmax]
