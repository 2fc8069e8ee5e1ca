"""What computes the attention and the PFFN of a block: gdpa, padded PyTorch, and attention with softmax.

The systems are those of the benchmark, which know their names, versions and refusals.
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
    """A way to compute the block, on packed rows unless it says otherwise."""

    def __init__(self, system: System) -> None:
        self.system = system

    @property
    def name(self) -> str:
        return self.system.name

    @abstractmethod
    def attention(self, batch: Batch) -> Attend:
        """Of query, key and value (..., heads, head_dim), each sequence with itself."""

    @abstractmethod
    def feed_forward(self, batch: Batch) -> Attend:
        """Of rows (..., heads, head_dim), and keys and values (ffn_rows, heads, head_dim) that the batch shares."""

    def arrange(self, batch: Batch, rows: Tensor) -> Tensor:
        """Packed rows (tokens, D) as this block takes them."""
        return rows

    def packed(self, batch: Batch, rows: Tensor) -> Tensor:
        """The way back, without the padding."""
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
    """The same as gdpa's, on rows padded with zeros: product, f, mask, product."""

    def attention(self, batch: Batch) -> Attend:
        function, scale = function_of(batch), batch.shape.head_dim**-0.5
        # A padded key has the bias of the projection, so it must be masked; the mean over the keys is taken with it.
        mean = batch.exists / batch.cu_seqlens.diff()[:, None]
        keep = mean.to(batch.rows.dtype)[:, None, None, :]

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query, key, value = (operand.transpose(1, 2) for operand in (query, key, value))
            return padded_attention(query, key, value, function, scale, keep).transpose(1, 2)

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
    """Another function: softmax in the attention, and the usual MLP of the same weights and FLOP, f(x W1^T) W2."""

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
    """Of the systems, those to build a block on: gdpa, which padded is compared with, and every packed softmax."""
    ours = [WithGdpa(system) for system in systems if isinstance(system, Gdpa)]
    padded = [OnPadded(system) for system in systems if type(system) is Padded]
    softmax = [WithSoftmax(one) for one in systems if isinstance(one, Packed) and one.function == "softmax"]
    return [*ours, *padded, *softmax]
