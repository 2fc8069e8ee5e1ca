"""PFFN, the personalized feed-forward network, written as attention to a few keys and values."""

from typing import Any

import torch
from torch import Tensor, nn

from gdpa._errors import refuse_gradient
from gdpa.nn._attention import GDPA, head_dim_of
from gdpa.nn._jagged import check_batch, packed_like, unpacked


class PFFN(nn.Module):
    """The generalized feed-forward network: every row attends to a few keys and values, which form the weights.

        Q_h = S_h                                           the columns of head h, without a projection
        O_h = f_h(Q_h K_h^T / tau) V_h
        Y = S + concat(O_h)

    The keys and values are personal: K_h = W1_h(X_sum) and V_h = W2_h(X_sum) of the n summary tokens X_sum of a sample
    (Kunlun, arXiv 2602.10016, section 4.3.1). With `rows`, K and V are weights that all samples share. The layer is
    then a two-layer MLP in each head.

    With activation="identity", O_h = S_h (K_h^T V_h) / tau. This is the linear form PFFN(X_sum, S) = f(X_sum) S of
    InterFormer (arXiv 2411.09852, section 4.3): K_h^T V_h is a (d, d) matrix of rank n that is made from X_sum.

    Args:
        dim: D, the width of the rows.
        heads: H, a divisor of D.
        rows: the number of shared keys and values. None makes them from the summary tokens of each sample.
        context_dim: the width of the summary tokens. The default is D.
        hidden: the hidden width of W1 and W2 as two-layer MLPs with GELU. None makes them linear.
        tau: the divisor of the scores. Kunlun uses the maximum length of a sequence. The default is sqrt(d). To learn
            the factor, pass scale=nn.Parameter(...) instead.
        residual: whether S is added.
        activation, params, options: as in GDPA. A list has one function for each head.

    Shapes: s as in GDPAttention, X_sum (B, n, D). The result has the form of s.

    Example::

        >>> block = gdpa.nn.PFFN(32, heads=4, activation="gelu")
        >>> block(torch.randn(12, 32), torch.randn(2, 8, 32), torch.tensor([0, 5, 12])).shape
        torch.Size([12, 32])
        >>> gdpa.nn.PFFN(32, heads=4, rows=16)(torch.randn(12, 32), cu_seqlens=torch.tensor([0, 5, 12])).shape
        torch.Size([12, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        rows: int | None = None,
        context_dim: int | None = None,
        hidden: int | None = None,
        tau: float | None = None,
        residual: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"heads: expected a divisor of dim = {dim}, got {heads}; change one of them")
        self.head_dim = head_dim_of(dim, heads, None)
        self.residual = residual
        self.is_shared = rows is not None
        if rows is not None:
            self.key = nn.Parameter(torch.empty(rows, heads, self.head_dim).normal_(0, self.head_dim**-0.5))
            self.value = nn.Parameter(torch.empty(rows, heads, self.head_dim).normal_(0, rows**-0.5))
        else:
            width = dim if context_dim is None else context_dim
            self.make_key, self.make_value = _mlp(width, hidden, dim), _mlp(width, hidden, dim)
        if tau is not None:
            refuse_gradient(tau=tau)
            options = {"scale": 1.0 / tau, **options}
        self.attend = GDPA(**options)

    def forward(
        self, s: Tensor, context: Tensor | None = None, cu_seqlens: Tensor | None = None, **call: Any
    ) -> Tensor:
        """Returns Y. `context` is X_sum, or None for shared keys and values."""
        rows, offsets = unpacked("s", s, cu_seqlens)
        if self.is_shared:
            if context is not None:
                raise ValueError("context: expected None for shared keys and values, got a tensor; omit it")
            key, value = self.key.to(rows.dtype), self.value.to(rows.dtype)
        else:
            if context is None:
                raise ValueError("context: expected the summary tokens (B, n, D), got None; pass them")
            check_batch("context", context, offsets)
            key, value = (make(context).unflatten(-1, (-1, self.head_dim)) for make in (self.make_key, self.make_value))
        # Under autocast the projections have autocast's type, and gdpa casts the rows to it.
        query = rows.unflatten(-1, (-1, self.head_dim))
        # The kernels add S before they round O. Under autocast they would round S too.
        is_added = self.residual and not torch.is_autocast_enabled(rows.device.type)
        output = self.attend(query, key, value, offsets, None, add_query=is_added, **call).flatten(-2)
        return packed_like(s, rows + output if self.residual and not is_added else output)


def _mlp(width: int, hidden: int | None, out: int) -> nn.Module:
    if hidden is None:
        return nn.Linear(width, out)
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, out))
