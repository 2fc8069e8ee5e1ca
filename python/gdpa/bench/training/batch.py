"""The shapes of the trained blocks, and the jagged batch of a training step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gdpa.bench.cases import DIRECTIONS, Case, generate_lengths
from gdpa.bench.systems.base import offsets


@dataclass(frozen=True)
class Shape:
    """A block and its batch. The lengths are spread evenly over [1, max_length]."""

    batch: int  # sequences
    max_length: int  # rows of each sequence in the padded computation
    heads: int = 4
    head_dim: int = 128
    ffn_rows: int = 256  # rows of the keys and values in each head of the PFFN
    dtype: str = "bfloat16"
    activation: str = "gelu_tanh"

    @property
    def name(self) -> str:
        return f"{self.batch} of 1-{self.max_length}"

    @property
    def width(self) -> int:
        """D, the number of elements in a row."""
        return self.heads * self.head_dim

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        return tuple(max(1, length) for length in generate_lengths(self.batch, self.max_length, fill=0.5, seed=0))

    @property
    def attention(self) -> Case:
        return Case(self.lengths, self.lengths, self.heads, self.head_dim, self.dtype, self.activation, name=self.name)

    @property
    def feed_forward(self) -> Case:
        shared = (self.ffn_rows,) * self.batch
        return Case(self.lengths, shared, self.heads, self.head_dim, self.dtype, self.activation, shared_kv=True)

    @property
    def flops(self) -> float:
        """The FLOP of forward and backward without padding: four D x D projections and two attentions."""
        projections = 3 * 2.0 * sum(self.lengths) * 4 * self.width**2
        return projections + sum(
            case.flops(direction) for case in (self.attention, self.feed_forward) for direction in DIRECTIONS
        )


# The shapes for each kind of device. On a GPU, both have the same number of tokens. The CPU shape only shows that the
# command works.
SHAPES = {
    "cuda": (Shape(1152, 512), Shape(288, 2048)),
    "cpu": (Shape(8, 32, heads=2, head_dim=16, ffn_rows=8, dtype="float32"),),
}


def shapes_on(kind: str, batch_factor: float = 1.0) -> list[Shape]:
    """Returns the shapes of this kind of device, with a fraction of their batch."""
    return [replace(shape, batch=max(1, round(shape.batch * batch_factor))) for shape in SHAPES[kind]]


@dataclass(frozen=True)
class Batch:
    """N(0, 1) rows and the gradient of the output, both packed with the shape (tokens, D)."""

    shape: Shape
    rows: Tensor
    grad_output: Tensor

    @classmethod
    def random(cls, shape: Shape, device: torch.device, seed: int = 0) -> Batch:
        generator = torch.Generator(device).manual_seed(seed)
        size = (sum(shape.lengths), shape.width)
        rows, grad_output = (torch.randn(size, generator=generator, device=device) for _ in range(2))
        return cls(shape, rows.to(getattr(torch, shape.dtype)), grad_output.to(getattr(torch, shape.dtype)))

    @cached_property
    def cu_seqlens(self) -> Tensor:
        """The cumulative lengths (batch + 1)."""
        return offsets(self.shape.lengths, self.rows.device)

    @cached_property
    def exists(self) -> Tensor:
        """A mask (batch, max_length) of the rows that belong to a sequence."""
        positions = torch.arange(self.shape.max_length, device=self.rows.device)
        return positions < self.cu_seqlens.diff()[:, None]

    def padded(self, rows: Tensor) -> Tensor:
        """Converts (tokens, D) to (batch, max_length, D) with zeros after each sequence."""
        padded = rows.new_zeros(*self.exists.shape, rows.shape[-1])
        padded[self.exists] = rows
        return padded
