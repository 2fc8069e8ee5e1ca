"""The blocks of gdpa.nn in plain PyTorch, on batches padded with zeros. No code of gdpa is used.

A twin is a function of the weights of a block by name, and of its inputs: rows (T, D) with a list of lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]


def part(weights: Weights, prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) + 1 :]: w for name, w in weights.items() if name.startswith(prefix + ".")}


def pad(rows: Tensor, lengths: Sequence[int]) -> Tensor:
    """(T, ...) to (B, L, ...) with zeros after each sequence."""
    longest = max([*lengths, 1])
    parts = rows.split(list(lengths))
    filled = [torch.cat([p, p.new_zeros(longest - len(p), *rows.shape[1:])]) for p in parts]
    return torch.stack(filled)


def unpad(padded: Tensor, lengths: Sequence[int]) -> Tensor:
    return torch.cat([row[:length] for row, length in zip(padded, lengths, strict=True)])


def linear(weights: Weights, prefix: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[f"{prefix}.weight"], weights.get(f"{prefix}.bias"))


def norm(weights: Weights, prefix: str, x: Tensor, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weights[f"{prefix}.weight"], weights[f"{prefix}.bias"], eps)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    function: Callable[[Tensor], Tensor],
    *,
    scale: float | None = None,
    causal: bool = False,
    left: int = -1,
    mean: bool = True,
) -> Tensor:
    """f(Q K^T) V of (B, L, H, d). `lengths` are those of the keys; `mean` divides by them."""
    scores = torch.einsum("bihd,bjhd->bhij", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    p = function(scores)
    n = torch.tensor(lengths)
    valid = (torch.arange(key.shape[1]) < n[:, None])[:, None, None, :]
    if causal:
        valid = valid & torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if left >= 0:
        valid = valid & torch.ones(scores.shape[-2:], dtype=torch.bool).triu(-left)
    p = torch.where(valid, p, torch.zeros((), dtype=p.dtype))
    if mean:
        p = p / n.clamp(min=1)[:, None, None, None]
    return torch.einsum("bhij,bjhd->bihd", p, value)


def self_attention(w: Weights, rows: Tensor, lengths: Sequence[int], heads: int, function=F.silu, **mask) -> Tensor:  # type: ignore[no-untyped-def]
    x = pad(rows, lengths)
    normed = norm(w, "norm", x) if "norm.weight" in w else x
    qkv = linear(w, "qkv", normed).reshape(*x.shape[:2], heads, 3, -1)
    out = attend(qkv[..., 0, :], qkv[..., 1, :], qkv[..., 2, :], lengths, function, **mask)
    return unpad(x + linear(w, "out", out.flatten(2)), lengths)


def cross_attention(
    w: Weights, rows: Tensor, lengths: Sequence[int], context: Tensor, of_context: Sequence[int], heads: int
) -> Tensor:
    x, c = pad(rows, lengths), pad(context, of_context)
    query = linear(w, "query", x).unflatten(-1, (heads, -1))
    key, value = linear(w, "key_value", c).unflatten(-1, (heads, 2, -1)).unbind(-2)
    return unpad(x + linear(w, "out", attend(query, key, value, of_context, F.silu).flatten(2)), lengths)


def pffn(
    w: Weights, rows: Tensor, lengths: Sequence[int], context: Tensor | None, heads: int, function, tau: float | None
) -> Tensor:  # type: ignore[no-untyped-def]
    s = pad(rows, lengths)
    query = s.unflatten(-1, (heads, -1))
    if context is None:
        key, value = (w[name].expand(len(lengths), *w[name].shape) for name in ("key", "value"))
    else:

        def make(name: str) -> Tensor:
            assert context is not None
            if f"{name}.weight" in w:
                return linear(w, name, context)
            return linear(w, f"{name}.2", F.gelu(linear(w, f"{name}.0", context)))

        key, value = (make(name).unflatten(-1, (heads, -1)) for name in ("make_key", "make_value"))
    count = [key.shape[1]] * len(lengths)
    scale = None if tau is None else 1 / tau
    out = attend(query, key, value, count, function, scale=scale, mean=False)
    return unpad(s + out.flatten(2), lengths)


def linear_pffn(
    w: Weights, rows: Tensor, lengths: Sequence[int], context: Tensor, heads: int, tau: float | None
) -> Tensor:
    """InterFormer's form: one matrix of each sample and head, made from the context, times the row."""
    key, value = (linear(w, name, context).unflatten(-1, (heads, -1)) for name in ("make_key", "make_value"))
    divisor = key.shape[-1] ** 0.5 if tau is None else tau
    matrix = torch.einsum("bnhd,bnhe->bhde", key, value) / divisor
    s = pad(rows, lengths)
    return unpad(s + torch.einsum("blhd,bhde->blhe", s.unflatten(-1, (heads, -1)), matrix).flatten(2), lengths)


def pma(w: Weights, rows: Tensor, lengths: Sequence[int], heads: int, function=F.silu) -> Tensor:  # type: ignore[no-untyped-def]
    key, value = linear(w, "key_value", pad(rows, lengths)).unflatten(-1, (heads, 2, -1)).unbind(-2)
    query = w["query"].expand(len(lengths), *w["query"].shape)
    return linear(w, "out", attend(query, key, value, lengths, function).flatten(2))


def hsp(w: Weights, rows: Tensor, lengths: Sequence[int], heads: int) -> Tensor:
    key, value = linear(w, "key_value", pad(rows, lengths)).unflatten(-1, (heads, 2, -1)).unbind(-2)
    query = linear(w, "query", norm(w, "norm", w["seeds"])).unflatten(-1, (heads, -1))
    query = query.expand(len(lengths), *query.shape)
    pooled = linear(w, "out", attend(query, key, value, lengths, F.silu).flatten(2))
    return sum_kron(part(w, "compress"), pooled)


def sum_kron(w: Weights, x: Tensor) -> Tensor:
    """The sum of Kronecker products as one large matrix."""
    matrix = sum(torch.kron(z.T.contiguous(), m.T.contiguous()) for z, m in zip(w["z"], w["w"], strict=True))
    assert isinstance(matrix, Tensor)
    tokens, dim = w["z"].shape[2], w["w"].shape[2]
    return (x.flatten(1) @ matrix.T).unflatten(-1, (tokens, dim))


def hstu(
    w: Weights,
    rows: Tensor,
    lengths: Sequence[int],
    times: Tensor | None,
    heads: int,
    value_dim: int,
    bucket: Callable[[Tensor], Tensor] = lambda t: torch.log2(1 + t.abs().double()),
    causal: bool = True,
) -> Tensor:
    """`times` may be integers, whose differences are exact."""
    x = pad(rows, lengths)
    projected = F.silu(linear(w, "uvqk", norm(w, "norm", x, 1e-6))).unflatten(-1, (heads, -1))
    head_dim = projected.shape[-1] // 2 - value_dim
    u, v, q, k = projected.split([value_dim, value_dim, head_dim, head_dim], dim=-1)
    distance = (torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).clamp(min=0)
    bias = torch.zeros(1, heads, *distance.shape, dtype=x.dtype)
    if "attend.learned.position" in w:
        table = w["attend.learned.position"]
        bias = bias + table[:, distance.clamp(max=table.shape[1] - 1)]
    if times is not None:
        table = w["attend.learned.time"]
        t = pad(times, lengths)
        buckets = bucket(t[:, :, None] - t[:, None, :]).floor().long().clamp(0, table.shape[1] - 1)
        bias = bias + table[:, buckets].transpose(0, 1)
    factor = w["attend.learned.a"][:, None, None] if "attend.learned.a" in w else 1
    out = attend(q, k, v, lengths, lambda s: factor * F.silu(s + bias), causal=causal)
    return unpad(x + linear(w, "out", norm(w, "attention_norm", out.flatten(2), 1e-6) * u.flatten(2)), lengths)


def token_mlp(w: Weights, x: Tensor) -> Tensor:
    hidden = F.gelu(torch.einsum("hn,bnd->bhd", w["first.weight"], x) + w["first.bias"][:, None])
    out = torch.einsum("mh,bhd->bmd", w["second.weight"], hidden) + w["second.bias"][:, None]
    return linear(w, "mix", out)


def gating(w: Weights, x: Tensor) -> Tensor:
    return torch.sigmoid(x * linear(w, "mlp.2", F.gelu(linear(w, "mlp.0", x))))


def dot_interaction(w: Weights, x: Tensor) -> Tensor:
    products = torch.einsum("bmd,bnd->bmn", x, x) / x.shape[-1] ** 0.5
    mixed = linear(w, "mlp.2", F.gelu(linear(w, "mlp.0", products.flatten(1))))
    mixed = mixed.unflatten(-1, (-1, x.shape[-1]))
    return norm(w, "norm", mixed + torch.einsum("nm,bmd->bnd", w["short_cut"], x))


def sequence_summary(w: Weights, rows: Tensor, lengths: Sequence[int], heads: int, cls: int, recent: int) -> Tensor:
    parts = rows.split(list(lengths))
    dim = rows.shape[1]
    first = [torch.cat([p[:cls], p.new_zeros(max(0, cls - len(p)), dim)]) for p in parts]
    last = [torch.cat([p.new_zeros(max(0, recent - len(p)), dim), p[max(0, len(p) - recent) :]]) for p in parts]
    tokens = torch.cat([torch.stack(first), pma(part(w, "pool"), rows, lengths, heads), torch.stack(last)], dim=1)
    return gating(part(w, "gate"), tokens)


def interformer(
    w: Weights, x: Tensor, rows: Tensor, lengths: Sequence[int], heads: int, layers: int, recent: int, left: int
) -> tuple[Tensor, Tensor]:
    def summary(w: Weights, x: Tensor) -> Tensor:
        return gating(part(w, "1"), token_mlp(part(w, "0"), x))

    cls = summary(part(w, "cls"), x)
    count = cls.shape[1]
    rows = torch.cat([torch.cat(both) for both in zip(cls, rows.split(list(lengths)), strict=True)])
    lengths = [length + count for length in lengths]
    for number in range(layers):
        of_layer = part(w, f"layers.{number}")
        x_sum = summary(part(of_layer, "summarise"), x)
        s_sum = sequence_summary(part(of_layer, "summarise_sequence"), rows, lengths, heads, count, recent)
        x = dot_interaction(part(of_layer, "interact"), torch.cat([x, s_sum], dim=1))
        rows = linear_pffn(part(of_layer, "feed_forward"), rows, lengths, x_sum, heads, float(count))
        rows = self_attention(part(of_layer, "attention"), rows, lengths, heads, causal=True, left=left)
    return x, sequence_summary(part(w, "summarise_sequence"), rows, lengths, heads, count, recent)


def kunlun(
    w: Weights, x: Tensor, rows: Tensor, lengths: Sequence[int], heads: int, layers: int, tau: float, left: int
) -> tuple[Tensor, Tensor]:
    pooled = x
    for number in range(layers):
        of_layer = part(w, f"layers.{number}")
        x_sum = token_mlp(part(of_layer, "summarise"), x)
        if number % 2 == 0:
            pooled = hsp(part(of_layer, "pool"), rows, lengths, heads)
        both = torch.cat([x_sum, pooled], dim=1)
        halves = both.tensor_split(2, dim=1)
        x = torch.cat([dot_interaction(part(of_layer, f"experts.{n}"), half) for n, half in enumerate(halves)], dim=1)
        if number % 2 == 0:
            rows = pffn(part(of_layer, "feed_forward"), rows, lengths, x_sum, heads, F.silu, tau)
            rows = norm(of_layer, "norm", rows)
        else:
            rows = self_attention(part(of_layer, "attention"), rows, lengths, heads, causal=True, left=left)
    return x, hsp(part(w, "pool"), rows, lengths, heads)
