"""The trained block: a projection, attention, a projection and a PFFN."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gdpa.bench.systems.base import Attend
from gdpa.bench.training.batch import Shape


class Block(nn.Module):
    """Computes x + out(attention(qkv(x))), and adds a PFFN. All systems use the same weights.

    Args:
        shape: sizes and dtype of the weights.
        attention: maps query, key and value (..., heads, head_dim) to an output of the same shape.
        feed_forward: maps rows (..., heads, head_dim), and keys and values (ffn_rows, heads, head_dim), to such rows.

    Example::

        >>> shape = Shape(batch=2, max_length=5, heads=2, head_dim=4, ffn_rows=3, dtype="float32")
        >>> block = Block(shape, torch.device("cpu"), lambda query, key, value: value, lambda rows, keys, values: rows)
        >>> block(torch.randn(7, shape.width)).shape
        torch.Size([7, 8])
    """

    def __init__(self, shape: Shape, device: torch.device, attention: Attend, feed_forward: Attend) -> None:
        super().__init__()
        self.heads = (shape.heads, shape.head_dim)
        self.attention = attention
        self.feed_forward = feed_forward
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.ffn_keys = nn.Parameter(torch.empty(shape.ffn_rows, *self.heads))
        self.ffn_values = nn.Parameter(torch.empty(shape.ffn_rows, *self.heads))
        generator = torch.Generator().manual_seed(0)
        for weight in self.parameters():  # with N(0, 1) rows, scores are near N(0, 1)
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5, generator=generator)
        self.to(device, getattr(torch, shape.dtype))

    def forward(self, rows: Tensor) -> Tensor:
        """Maps (..., D) to (..., D). The rows are jagged (tokens, D) or padded (batch, max_length, D)."""
        query, key, value = self.qkv(rows).unflatten(-1, (3, *self.heads)).unbind(-3)
        rows = rows + self.out(self.attention(query, key, value).flatten(-2))
        return rows + self.feed_forward(rows.unflatten(-1, self.heads), self.ffn_keys, self.ffn_values).flatten(-2)
