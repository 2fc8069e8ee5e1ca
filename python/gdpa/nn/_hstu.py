"""HSTULayer, the layer of Hierarchical Sequential Transduction Units."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gdpa._attention import OutScale, Scale
from gdpa._errors import refuse_gradient
from gdpa._text import parsed, replaced
from gdpa.nn._attention import GDPA, head_dim_of
from gdpa.nn._jagged import packed_like, unpacked
from gdpa.nn.functional import layer_norm

_POSITION = "position[head, clamp(q_idx - kv_idx, 0, {last})]"
_TIME = "time[head, clamp(floor({bucket}), 0, {last})]"
_DIFFERENCE = "(t_query[q_row] - t_key[kv_row])"


def _of_score(activation: str, score: str) -> str:
    """Returns the expression f(score) for a name or an expression in s."""
    return f"{activation}({score})" if activation.isidentifier() else replaced(activation, {"s": f"({score})"})


def _check_bucket(bucket: str) -> None:
    """Refuses a text that is not an expression in t alone."""
    if not isinstance(bucket, str):
        raise TypeError(f"bucket: expected a text, got {type(bucket).__name__}; write an expression in t")
    try:
        said = parsed(bucket)
    except ValueError as error:
        reason = str(error).partition("\n")[0].removeprefix("activation: ")
    else:
        is_of_t = {one.name for one in said.names} == {"t"} and not (said.numbers or said.reads)
        if is_of_t and said.functions == 1:
            return
        reason = "read t and no other name"
    raise ValueError(
        "bucket: expected an expression in t, the difference of two times, such as 'log(max(1, abs(t))) / 0.301', got "
        f"{bucket!r}; {reason}"
    )


class HSTULayer(nn.Module):
    """A layer of HSTU: attention with SiLU and a relative bias, and a gate.

        U, V, Q, K = split(silu(Norm(X) W_uvqk + b))
        A_h = 1/n * f(scale * Q_h K_h^T + position[h, i - j] + time[h, bucket(t_i - t_j)]) V_h
        Y = X + (Norm(A) * U) W_o + b_o

    The formula is the pointwise aggregated attention of HSTU (arXiv 2402.17152), with f = silu and
    bucket(t) = floor(log2(1 + |t|) * buckets_per_octave). n is the length of the sequence, or a number in out_scale.

    Args:
        dim: D, the width of the rows.
        heads: H.
        head_dim: the head_dim of query and key. The default is D / H.
        value_dim: the head_dim of value and gate. The default is head_dim.
        positions: the number of learned relative positions. Larger distances use the last one. 0 has no such bias.
        time_buckets: the number of learned time buckets. Longer times use the last one. 0 has no such bias.
        buckets_per_octave: the number of buckets for each doubling of the time.
        bucket: another bucket of the time difference t, as an expression of docs/functions.md in t. The layer rounds it
            down, and clamps it to the buckets 0 to time_buckets - 1. The research code of HSTU has
            "log(max(1, abs(t))) / 0.301", with its parameter num_buckets = time_buckets - 1.
        activation: f, as a name or as an expression in s. params has the values of its names, as in GDPA.
        causal: whether an event attends only to itself and to earlier events. A mask of a call replaces this.
        eps: the epsilon of the two layer normalisations.
        scale, out_scale: as in varlen_attention. A tensor becomes a buffer, as in GDPA.

    Shapes: rows (T, D) with cu_seqlens (B + 1), or a nested tensor (B, ragged, D). The result has the same form. The
    times (T,) are in the order of the rows.

    The times are int32, int64 or float32, and on the CPU also float64. docs/models.md says which differences of times
    are exact, and which n a causal model needs.

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
        bucket: str | None = None,
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
        if bucket is None:
            bucket = f"log2(1 + abs(t)) * {buckets_per_octave}"
        elif not time_buckets:
            raise ValueError(f"bucket: expected None without time buckets, got {bucket!r}; pass time_buckets")
        elif buckets_per_octave != 1.0:
            raise ValueError(
                f"bucket: expected None with buckets_per_octave, got {bucket!r}; write the factor in the expression"
            )
        else:
            _check_bucket(bucket)
        tables: dict[str, Any] = {}
        terms = ["s"]
        if positions:
            tables["position"] = torch.zeros(heads, positions)
            terms.append(_POSITION.format(last=positions - 1))
        if time_buckets:
            tables["time"] = torch.zeros(heads, time_buckets)
            terms.append(_TIME.format(last=time_buckets - 1, bucket=replaced(bucket, {"t": _DIFFERENCE})))
        own = (*tables, "t_query", "t_key") if time_buckets else tuple(tables)
        for name in own:
            if params is not None and name in params:
                raise ValueError(
                    f"params: expected other names than {', '.join(own)}, the layer's own, got {name!r}; rename it"
                )
        self.norm = nn.LayerNorm(dim, eps=eps)
        self.uvqk = nn.Linear(dim, 2 * heads * (self.head_dim + self.value_dim))
        window = (-1, 0 if causal else -1)
        function = _of_score(activation, " + ".join(terms))
        learned = {**(params or {}), **tables}
        self.attend = GDPA(function, learned, scale=scale, out_scale=out_scale, window_size=window)
        self.attention_norm = nn.LayerNorm(heads * self.value_dim, eps=eps)
        self.out = nn.Linear(heads * self.value_dim, dim)

    def forward(
        self,
        x: Tensor,
        cu_seqlens: Tensor | None = None,
        times: Tensor | None = None,
        query_times: Tensor | None = None,
        **call: Any,
    ) -> Tensor:
        """Returns Y.

        Args:
            x, cu_seqlens: the rows.
            times: the time t_j of each row, as a key. The layer needs them if it has time buckets.
            query_times: the time t_i of each row as a query, if it is not `times`. The research code of HSTU takes the
                time of the next event, and for the last event its own time.
            call: arguments of varlen_attention for this call, as in GDPA: `params` are added to those of the layer, and
                `mask` replaces the causal window: `gdpa.mask.causal() & mask` keeps it.
        """
        rows, offsets = unpacked("x", x, cu_seqlens)
        if self.has_times != (times is not None):
            raise ValueError(
                f"times: expected {'one number for each row' if self.has_times else 'None without time buckets'}, got "
                f"{'None' if times is None else 'a tensor'}; match time_buckets"
            )
        if times is not None:
            t_key = _checked_times("times", times, rows)
            t_query = t_key if query_times is None else _checked_times("query_times", query_times, rows)
            call["params"] = {"t_query": t_query, "t_key": t_key, **(call.get("params") or {})}
        elif query_times is not None:
            raise ValueError("query_times: expected None without times, got a tensor; pass both")
        projected = nn.functional.silu(self.uvqk(self.norm(rows)))
        # (head, [gate, value, query, key]): ColwiseParallel then gives each rank whole heads.
        sizes = [self.value_dim, self.value_dim, self.head_dim, self.head_dim]
        gate, value, query, key = projected.unflatten(-1, (-1, sum(sizes))).split(sizes, dim=-1)
        attended = self.attend(query, key, value, offsets, offsets, **call)
        norm = self.attention_norm
        gated = layer_norm(attended.flatten(-2), norm.weight, norm.bias, norm.eps, gate=gate)
        return packed_like(x, rows + self.out(gated))


def _checked_times(name: str, times: Tensor, rows: Tensor) -> Tensor:
    """Returns one time for each row, in a dtype from which the kernels compute differences."""
    times = times.values() if times.is_nested else times
    if times.shape != rows.shape[:1]:
        raise ValueError(
            f"{name}: expected shape {tuple(rows.shape[:1])}, one number for each row, got {tuple(times.shape)}; pass "
            "the times of this batch"
        )
    on_every_device = (torch.int32, torch.int64, torch.float32)
    if times.dtype not in on_every_device and (times.dtype != torch.float64 or times.device.type != "cpu"):
        raise TypeError(
            f"{name}: expected dtype int32, int64 or float32, or float64 on the CPU, got {times.dtype}; pass integers, "
            "such as (1000 * times).round().long() for milliseconds"
        )
    return times
