"""Pooling of a sequence into a fixed number of tokens: PMA and HSP."""

from typing import Any

import torch
from torch import Tensor, nn

from gdpa.nn._attention import GDPA, OF_BLOCKS, head_dim_of
from gdpa.nn._interaction import over_tokens
from gdpa.nn._jagged import exported_batch, unpacked


def _pooled(attend: GDPA, query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, call: Any) -> Tensor:
    """Returns the attention (B, k, H * d) of queries (k, H, d) that all sequences share."""
    batch = exported_batch(cu_seqlens)
    if batch is not None:
        return attend(query.expand(batch, -1, -1, -1), key, value, None, cu_seqlens, **call).flatten(-2)
    pooled = attend(query, key, value, None, cu_seqlens, **call).flatten(-2)
    return pooled.unflatten(0, (cu_seqlens.shape[0] - 1, query.shape[0]))


class PMA(nn.Module):
    """Pooling by multi-head attention: k learned queries in each head, which all sequences share.

        K, V = split(X W_kv + b_kv)
        O_h = out_scale * f(scale * Q_h K_h^T) V_h          Q_h (k, d) is a parameter
        Y = concat(O_h) W_o + b_o                           (B, k, D)

    InterFormer's cross architecture has these tokens (arXiv 2411.09852, section 3.4.2). A sequence without rows gives
    the bias b_o.

    Args:
        dim: D, the width of the rows and of the result.
        heads: H.
        queries: k.
        head_dim, bias, activation, params, options: as in GDPAttention.

    Shapes: rows (T, D) with cu_seqlens (B + 1), or a nested tensor (B, ragged, D). The result is dense: (B, k, D).

    Example::

        >>> pool = gdpa.nn.PMA(32, heads=4, queries=3)
        >>> pool(torch.randn(12, 32), torch.tensor([0, 5, 12])).shape
        torch.Size([2, 3, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        queries: int,
        *,
        head_dim: int | None = None,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim_of(dim, heads, head_dim)
        self.query = nn.Parameter(torch.empty(queries, heads, self.head_dim).normal_(0, 1.0))
        self.key_value = nn.Linear(dim, 2 * heads * self.head_dim, bias=bias)
        self.attend = GDPA(**{**OF_BLOCKS, **options})
        self.out = nn.Linear(heads * self.head_dim, dim, bias=bias)

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None, **call: Any) -> Tensor:
        """Returns Y (B, k, D)."""
        rows, offsets = unpacked("x", x, cu_seqlens)
        key, value = self.key_value(rows).unflatten(-1, (-1, 2, self.head_dim)).unbind(-2)
        return self.out(_pooled(self.attend, self.query.to(key.dtype), key, value, offsets, call))


class SumKronLinear(nn.Module):
    """A linear map of token matrices with a sum of Kronecker products as its weights.

        Y = sum_i Z_i^T X W_i          X (B, S, D), Z_i (S, N), W_i (D, D_out), i = 1 .. rank

    The layer has rank * (S N + D D_out) weights instead of S D N D_out (Kunlun, arXiv 2602.10016, section 4.3.2).

    Example::

        >>> gdpa.nn.SumKronLinear(16, 4, 32, rank=2)(torch.randn(2, 16, 32)).shape
        torch.Size([2, 4, 32])
    """

    def __init__(self, tokens_in: int, tokens_out: int, dim: int, *, dim_out: int | None = None, rank: int = 4) -> None:
        super().__init__()
        dim_out = dim if dim_out is None else dim_out
        self.z = nn.Parameter(torch.empty(rank, tokens_in, tokens_out).normal_(0, tokens_in**-0.5))
        self.w = nn.Parameter(torch.empty(rank, dim, dim_out).normal_(0, (rank * dim) ** -0.5))

    def forward(self, x: Tensor) -> Tensor:
        """Returns Y (B, N, D_out)."""
        # The product with Z first has N instead of S rows for W, and the sum over i is a part of the product with W.
        tokens = self.z.shape[2]
        through_z = over_tokens(self.z.permute(2, 0, 1).flatten(0, 1), x)  # (B, N rank, D)
        return nn.functional.linear(through_z.unflatten(1, (tokens, -1)).flatten(2), self.w.flatten(0, 1).mT)


class HSP(nn.Module):
    """Hierarchical seed pooling: many learned seeds attend to the sequence, and SumKronLinear compresses them.

        Q = Norm(E) W_q + b_q                               E (S, D) are the learned seeds
        H = concat(out_scale * f(scale * Q_h K_h^T) V_h) W_o + b_o          (B, S, D)
        Y = sum_i Z_i^T H W_i                               (B, N, D)

    The formula is H = MHA(Norm(E), X, X) of Kunlun (arXiv 2602.10016, section 4.3.2), with any function f.

    Args:
        dim: D, the width of the rows and of the result.
        heads: H.
        seeds: S, the number of seeds, usually several times the number of tokens.
        tokens: N, the number of tokens of the result.
        rank: the number of Kronecker products.
        head_dim, bias, activation, params, options: as in GDPAttention.

    Shapes: rows (T, D) with cu_seqlens (B + 1), or a nested tensor (B, ragged, D). The result is dense: (B, N, D).

    Example::

        >>> pool = gdpa.nn.HSP(32, heads=4, seeds=16, tokens=4)
        >>> pool(torch.randn(12, 32), torch.tensor([0, 5, 12])).shape
        torch.Size([2, 4, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        seeds: int,
        tokens: int,
        *,
        rank: int = 4,
        head_dim: int | None = None,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim_of(dim, heads, head_dim)
        self.seeds = nn.Parameter(torch.empty(seeds, dim).normal_(0, 1.0))
        self.norm = nn.LayerNorm(dim)
        self.query = nn.Linear(dim, heads * self.head_dim, bias=bias)
        self.key_value = nn.Linear(dim, 2 * heads * self.head_dim, bias=bias)
        self.attend = GDPA(**{**OF_BLOCKS, **options})
        self.out = nn.Linear(heads * self.head_dim, dim, bias=bias)
        self.compress = SumKronLinear(seeds, tokens, dim, rank=rank)

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None, **call: Any) -> Tensor:
        """Returns Y (B, N, D)."""
        rows, offsets = unpacked("x", x, cu_seqlens)
        query = self.query(self.norm(self.seeds)).unflatten(-1, (-1, self.head_dim))
        key, value = self.key_value(rows).unflatten(-1, (-1, 2, self.head_dim)).unbind(-2)
        return self.compress(self.out(_pooled(self.attend, query, key, value, offsets, call)))
