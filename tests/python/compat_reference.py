"""The peers' formulas in plain torch, one sequence and head after the other. Independent of gdpa.

The masks are written row by row, from the description of each API. All references run in the dtype of their operands
and have gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor


def silu(s: Tensor) -> Tensor:
    return s / (1 + torch.exp(-s))


def gelu(s: Tensor) -> Tensor:
    return s * (1 + torch.erf(s / math.sqrt(2))) / 2


def gelu_tanh(s: Tensor) -> Tensor:
    return s * (1 + torch.tanh(math.sqrt(2 / math.pi) * (s + 0.044715 * s**3))) / 2


def hardswish(s: Tensor) -> Tensor:
    return s * torch.clamp(s + 3, 0, 6) / 6


# In the order of the enumeration of Meta's operator.
META_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "raw": lambda s: s,
    "gelu": gelu,
    "gelu_approx": gelu_tanh,
    "fast_gelu": gelu_tanh,
    "leaky_relu": lambda s: torch.where(s > 0, s, 0.01 * s),
    "relu": lambda s: torch.where(s > 0, s, 0.0),
    "fast_gelu_bf16": gelu_tanh,
    "silu": silu,
    "fast_silu": silu,
    "hardswish": hardswish,
    "relu_square": lambda s: torch.where(s > 0, s, 0.0) ** 2,
    "fast_gelu_taylor_approx": gelu_tanh,
}


def attend(query: Tensor, key: Tensor, value: Tensor, p_of: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Returns P V of one sequence, (L_q, H_q, D_v), where p_of(Q K^T, head) returns P of one head."""
    group = query.shape[1] // key.shape[1]
    heads = [p_of(query[:, h] @ key[:, h // group].T, h) @ value[:, h // group] for h in range(query.shape[1])]
    return torch.stack(heads, 1)


def ranges_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(offsets))


def meta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ranges_q: Sequence[tuple[int, int]],
    ranges_k: Sequence[tuple[int, int]],
    *,
    functions: Sequence[str],
    qk_scale: float | None = None,
    window_size: int | None = None,
    keys_of: Sequence[int] | None = None,
    encodings: Sequence[tuple[Tensor, Tensor]] = (),
    output_begins: Sequence[int] | None = None,
    rows: int | None = None,
) -> Tensor:
    """qk_scale * act(Q K^T) V. `functions` has a name for each head. All sequences of the operands may overlap."""
    for table, buckets in encodings:
        added = table.reshape(table.shape[0], -1)[buckets.long(), : query.shape[-1]]
        query = query + added[:, None]
    begins = [begin for begin, _ in ranges_q] if output_begins is None else output_begins
    output = query.new_zeros(query.shape[0] if rows is None else rows, query.shape[1], value.shape[-1])
    for b, (begin, end) in enumerate(ranges_q):
        first, last = ranges_k[b if keys_of is None else keys_of[b]]
        i, j = torch.arange(end - begin)[:, None], torch.arange(last - first)
        kept = torch.ones(end - begin, last - first, dtype=torch.bool)
        if window_size is not None:
            kept = (i - j).abs() <= window_size

        def p_of(s: Tensor, head: int, kept: Tensor = kept) -> Tensor:
            p = META_FUNCTIONS[functions[head]](s) * (1.0 if qk_scale is None else qk_scale)
            return torch.where(kept, p, 0.0)

        result = attend(query[begin:end], key[first:last], value[first:last], p_of)
        place = torch.arange(end - begin) + begins[b]
        output = output.index_copy(0, place, result)
    return output


def hstu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Sequence[int],
    cu_k: Sequence[int],
    *,
    used_q: Sequence[int] | None = None,
    used_k: Sequence[int] | None = None,
    scaling: float = 1.0,
    contexts: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    group: int = 1,
    window: tuple[int, int] = (-1, -1),
    alpha: float = 1.0,
    rab: Tensor | None = None,
    func: Tensor | None = None,
    longest_k: int = 0,
) -> Tensor:
    """silu(alpha (Q K^T + rab)) V / scaling with FBGEMM's masks."""
    output = q.new_zeros(q.shape[0], q.shape[1], v.shape[-1])
    for b, ((begin, end), (first, last)) in enumerate(zip(ranges_of(cu_q), ranges_of(cu_k), strict=True)):
        length_q = end - begin if used_q is None else used_q[b]
        length_k = last - first if used_k is None else used_k[b]
        kept = torch.zeros(length_q, length_k, dtype=torch.bool)
        for i in range(length_q):
            row = i + length_k - length_q
            for j in range(length_k):
                kept[i, j] = _keeps(b, begin + i, row, j, length_k, contexts, targets, group, window, func, longest_k)
        bias = torch.zeros(q.shape[1], length_q, length_k, dtype=q.dtype)
        if rab is not None:
            bias = rab[b, :, length_k - length_q : length_k, :length_k].expand(q.shape[1], -1, -1)

        def p_of(s: Tensor, head: int, kept: Tensor = kept, bias: Tensor = bias) -> Tensor:
            return torch.where(kept, silu(alpha * (s + bias[head])), 0.0)

        rows_q, rows_k = slice(begin, begin + length_q), slice(first, first + length_k)
        result = attend(q[rows_q], k[rows_k], v[rows_k], p_of) / scaling
        output = output.index_copy(0, torch.arange(begin, begin + length_q), result)
    return output


def _keeps(
    b: int,
    token: int,
    row: int,
    j: int,
    length_k: int,
    contexts: Sequence[int] | None,
    targets: Sequence[int] | None,
    group: int,
    window: tuple[int, int],
    func: Tensor | None,
    longest_k: int,
) -> bool:
    left, right = (side if 0 <= side <= longest_k else math.inf for side in window)
    if func is not None:
        bounds = func[0, :, token].tolist()
        intervals = [(0, bounds[0])] + [(bounds[n], bounds[n + 1]) for n in range(1, len(bounds), 2)]
        return j <= row + right and any(low <= j < high for low, high in intervals)
    if window != (-1, 0):
        return row - left <= j <= row + right
    target = length_k - (targets[b] if targets is not None else 0)
    if contexts is not None and row < contexts[b]:
        return j < target
    if row < target:
        return j <= row
    return j < target or target + (row - target) // group * group <= j <= row


def generative_recommenders(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Sequence[int],
    *,
    alpha: float,
    divisor: float = 1.0,
    targets: Sequence[int] | None = None,
    scale: Tensor | None = None,
    window: int = 0,
    contexts: int = 0,
    full: int = 0,
    delta: int | None = None,
) -> Tensor:
    """silu(alpha Q K^T) V / divisor, or times `scale`, with the mask of generative-recommenders.

    With `delta`, q has the last rows of each sequence only.
    """
    outputs = []
    for b, (begin, end) in enumerate(ranges_of(offsets)):
        length = end - begin
        queries = range(length if delta is None else delta)
        kept = torch.zeros(len(queries), length, dtype=torch.bool)
        history = length - (0 if targets is None else targets[b])
        for i in queries:
            row = i + length - len(queries)
            kept[i] = torch.tensor(_keys_of(row, length, history, window, contexts, full), dtype=torch.bool)
        first = begin if delta is None else b * delta
        rows_q, rows_k = slice(first, first + len(queries)), slice(begin, end)
        factor = torch.tensor(1 / divisor, dtype=q.dtype)
        if scale is not None:
            factor = scale if scale.dim() == 0 else scale[rows_q, None]

        def p_of(s: Tensor, head: int, kept: Tensor = kept, factor: Tensor = factor) -> Tensor:
            return torch.where(kept, silu(alpha * s) * factor, 0.0)

        outputs.append(attend(q[rows_q], k[rows_k], v[rows_k], p_of))
    return torch.cat(outputs)


def _keys_of(row: int, length: int, history: int, window: int, contexts: int, full: int) -> list[bool]:
    """Whether the row attends to each key. The sequence has at least its contexts before its targets."""
    if row < contexts:
        return [j < history for j in range(length)]
    last = min(row, history)  # all targets are as far from the history as the first target
    first = last - window if window > 0 and not (full > 0 and last >= history - full) else 0
    if first < contexts:  # the contexts are one token: all of it or nothing
        first = 0
    return [first <= j < last or j == row for j in range(length)]
