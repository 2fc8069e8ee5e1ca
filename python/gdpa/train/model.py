"""The model: embeddings, HSTU layers, and the prediction of the next item. And the attention that replaces gdpa's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gdpa.nn import HSTULayer
from gdpa.train.parallel import ShardedEmbedding

POSITIONS = 128  # relative positions; larger distances use the last one
TYPICAL_LENGTH = 50  # the divisor of the sum over a history: a causal model must not see the length


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model, and the share of its numbers that dropout clears."""

    items: int
    dim: int = 64
    heads: int = 2
    layers: int = 2
    dropout: float = 0.4


def recency(heads: int) -> Tensor:
    """Returns the first bias of each relative position (H, POSITIONS), which prefers recent events.

    A constant bias would begin as mean pooling, and few epochs would not leave it. A score of 0 has no weight in gdpa's
    functions, so the last event begins with a score of 1.
    """
    return (1 - 0.3 * torch.log2(1.0 + torch.arange(POSITIONS))).repeat(heads, 1)


class SoftmaxAttention(nn.Module):
    """PyTorch's causal softmax attention with the same relative bias, on a batch that is padded to its longest history.

    The padding follows each history, so that no event attends to it.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.position = nn.Parameter(recency(heads))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, _: Tensor) -> Tensor:
        """Maps (T, H, d) to (T, H, d)."""
        lengths = cu_seqlens.diff().long()
        if not len(query):
            return value
        history = torch.repeat_interleave(torch.arange(len(lengths), device=query.device), lengths)
        at = torch.arange(len(query), device=query.device) - cu_seqlens[history]
        longest = int(lengths.max())

        def padded(rows: Tensor) -> Tensor:
            batch = rows.new_zeros(len(lengths), longest, *rows.shape[1:])
            return batch.index_put((history, at), rows).transpose(1, 2)

        q, k, v = (padded(rows) for rows in (query, key, value))
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(longest).to(q.dtype))
        return output.transpose(1, 2)[history, at]

    def bias(self, length: int) -> Tensor:
        """Returns the bias (1, H, length, length), which is -inf for later events."""
        at = torch.arange(length, device=self.position.device)
        distance = at[:, None] - at
        return self.position[:, distance.clamp(0, POSITIONS - 1)].masked_fill(distance < 0, -torch.inf)[None]


class MeanPooling(nn.Module):
    """The mean of the values of all events up to each event. It ignores query, key and order."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, _: Tensor) -> Tensor:
        """Maps (T, H, d) to (T, H, d)."""
        rows = torch.arange(value.shape[0], device=value.device)
        first = cu_seqlens[torch.searchsorted(cu_seqlens, rows, right=True) - 1]
        sums = F.pad(value.float().cumsum(0), (0, 0, 0, 0, 1, 0))
        return ((sums[1:] - sums[first]) / (rows + 1 - first)[:, None, None]).to(value.dtype)


@dataclass(frozen=True)
class Variant:
    """A kind of attention: arguments of HSTULayer for a number of heads, or a module instead of its attention."""

    arguments: Callable[[int], dict[str, Any]] = lambda heads: {}
    attention: Callable[[int], nn.Module] | None = None


VARIANTS = {
    "silu": Variant(lambda heads: {"activation": "silu", "positions": POSITIONS}),
    "gelu_tanh": Variant(lambda heads: {"activation": "gelu_tanh", "positions": POSITIONS}),
    "learned": Variant(  # a and b of each head, which begin as SiLU
        lambda heads: {
            "activation": "a * s * sigmoid(b * s)",
            "params": {"a": torch.ones(heads), "b": torch.ones(heads)},
            "positions": POSITIONS,
        }
    ),
    "unordered": Variant(lambda heads: {"activation": "silu"}),
    "softmax": Variant(attention=SoftmaxAttention),
    "mean": Variant(attention=lambda heads: MeanPooling()),
}


class Recommender(nn.Module):
    """Predicts the next item of every event of a history.

    An event is the embedding of its item. HSTU layers follow. The score of the next item is the inner product of the
    state with the item's embedding.
    """

    def __init__(self, sizes: Sizes, variant: Variant) -> None:
        super().__init__()
        self.sizes = sizes
        self.items: nn.Embedding | ShardedEmbedding = nn.Embedding(sizes.items, sizes.dim)
        self.layers = nn.ModuleList()
        for _ in range(sizes.layers):
            layer = HSTULayer(
                sizes.dim,
                sizes.heads,
                out_scale=1.0 / TYPICAL_LENGTH,
                **variant.arguments(sizes.heads),
            )
            if variant.attention is not None:
                layer.attend = variant.attention(sizes.heads)  # type: ignore[assignment]
            elif "position" in layer.attend.learned:
                layer.attend.learned["position"].data.copy_(recency(sizes.heads))
            layer.out = nn.Sequential(layer.out, nn.Dropout(sizes.dropout))  # type: ignore[assignment]
            self.layers.append(layer)
        self.dropout = nn.Dropout(sizes.dropout)
        self.norm = nn.LayerNorm(sizes.dim)
        self.item_bias = nn.Parameter(torch.zeros(sizes.items))
        nn.init.normal_(self.items.weight, std=sizes.dim**-0.5)

    def forward(self, items: Tensor, cu_seqlens: Tensor, rows: Tensor) -> Tensor:
        """Returns the score of each item as the next one of the events `rows` (R, items)."""
        state = self.dropout(self.items(items))
        for layer in self.layers:
            state = layer(state, cu_seqlens)
        table = self.items.whole() if isinstance(self.items, ShardedEmbedding) else self.items.weight
        return F.linear(self.norm(state.index_select(0, rows)), table, self.item_bias)

    def expect_rows(self, longest: int) -> None:
        """Sets the largest number of rows of a rank in the next batch, which a sharded table needs."""
        if isinstance(self.items, ShardedEmbedding):
            self.items.longest = longest
