"""HSTULayer, the layer of Hierarchical Sequential Transduction Units."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gdpa._attention import OutScale, Scale
from gdpa._errors import refuse_gradient
from gdpa.nn._attention import GDPA, head_dim_of
from gdpa.nn._jagged import packed_like, since_first, unpacked
from gdpa.nn.functional import layer_norm

_POSITION = "position[head, clamp(q_idx - kv_idx, 0, {last})]"
_TIME = "time[head, clamp(floor(log2(1 + abs(t[q_row] - t[kv_row])) * {per_octave}), 0, {last})]"
_SCORE = re.compile(r"\bs\b")


def _of_score(activation: str, score: str) -> str:
    """Returns the expression f(score) for a name or an expression in s."""
    return f"{activation}({score})" if activation.isidentifier() else _SCORE.sub(f"({score})", activation)


class HSTULayer(nn.Module):
    """A layer of HSTU: attention with SiLU and a relative bias, and a gate.

        U, V, Q, K = split(silu(Norm(X) W_uvqk + b))
        A_h = 1/n * f(scale * Q_h K_h^T + position[h, i - j] + time[h, bucket(t_i - t_j)]) V_h
        Y = X + (Norm(A) * U) W_o + b_o

    The formula is the pointwise aggregated attention of HSTU (arXiv 2402.17152), with f = silu and
    bucket(t) = floor(log2(1 + |t|) * buckets_per_octave). n is the length of the sequence. A causal model that trains
    on whole sequences would learn their length from it: pass a number, such as out_scale=1 / 200, instead.

    Args:
        dim: D, the width of the rows.
        heads: H.
        head_dim: the head_dim of query and key. The default is D / H.
        value_dim: the head_dim of value and gate. The default is head_dim.
        positions: the number of learned relative positions. Larger distances use the last one. 0 has no such bias.
        time_buckets: the number of learned time buckets. Longer times use the last one. 0 has no such bias.
        buckets_per_octave: the number of buckets for each doubling of the time.
        activation: f, as a name or as an expression in s. params has the values of its names, as in GDPA.
        causal: whether an event attends only to itself and to earlier events.
        eps: the epsilon of the two layer normalisations.
        scale, out_scale: as in varlen_attention.

    Shapes: rows (T, D) with cu_seqlens (B + 1), or a nested tensor (B, ragged, D). The result has the same form. The
    times (T,) are in the order of the rows. Integers, such as seconds since 1970, keep their differences.

    Example::

        >>> layer = gdpa.nn.HSTULayer(32, heads=4, positions=128, time_buckets=64)
        >>> layer(torch.randn(12, 32), torch.tensor([0, 5, 12]), times=torch.arange(12)).shape
        torch.Size([12, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        positions: int = 0,
        time_buckets: int = 0,
        buckets_per_octave: float = 1.0,
        activation: str = "silu",
        params: Mapping[str, Any] | None = None,
        causal: bool = True,
        eps: float = 1e-6,
        scale: Scale = None,
        out_scale: OutScale = "1/len_k",
    ) -> None:
        super().__init__()
        refuse_gradient(buckets_per_octave=buckets_per_octave, eps=eps)
        self.head_dim = head_dim_of(dim, heads, head_dim)
        self.value_dim = self.head_dim if value_dim is None else value_dim
        self.has_times = time_buckets > 0
        learned: dict[str, Any] = dict(params or {})
        terms = ["s"]
        if positions:
            learned["position"] = torch.zeros(heads, positions)
            terms.append(_POSITION.format(last=positions - 1))
        if time_buckets:
            learned["time"] = torch.zeros(heads, time_buckets)
            terms.append(_TIME.format(last=time_buckets - 1, per_octave=buckets_per_octave))
        self.norm = nn.LayerNorm(dim, eps=eps)
        self.uvqk = nn.Linear(dim, 2 * heads * (self.head_dim + self.value_dim))
        window = (-1, 0 if causal else -1)
        function = _of_score(activation, " + ".join(terms))
        self.attend = GDPA(function, learned, scale=scale, out_scale=out_scale, window_size=window)
        self.attention_norm = nn.LayerNorm(heads * self.value_dim, eps=eps)
        self.out = nn.Linear(heads * self.value_dim, dim)

    def forward(
        self, x: Tensor, cu_seqlens: Tensor | None = None, times: Tensor | None = None, **call: object
    ) -> Tensor:
        """Returns Y. `times` is required if the layer has time buckets."""
        rows, offsets = unpacked("x", x, cu_seqlens)
        if self.has_times != (times is not None):
            raise ValueError(
                f"times: expected {'one number for each row' if self.has_times else 'None without time buckets'}, got "
                f"{'None' if times is None else 'a tensor'}; match time_buckets"
            )
        if times is not None:
            times = times.values() if times.is_nested else times
            if times.shape != rows.shape[:1]:
                raise ValueError(
                    f"times: expected shape {tuple(rows.shape[:1])}, one number for each row, got "
                    f"{tuple(times.shape)}; pass the times of this batch"
                )
            call["params"] = {"t": since_first(times, offsets)}
        projected = nn.functional.silu(self.uvqk(self.norm(rows)))
        # (head, [gate, value, query, key]): ColwiseParallel then gives each rank whole heads.
        sizes = [self.value_dim, self.value_dim, self.head_dim, self.head_dim]
        gate, value, query, key = projected.unflatten(-1, (-1, sum(sizes))).split(sizes, dim=-1)
        attended = self.attend(query, key, value, offsets, offsets, **call)
        norm = self.attention_norm
        gated = layer_norm(attended.flatten(-2), norm.weight, norm.bias, norm.eps, gate=gate)
        return packed_like(x, rows + self.out(gated))
