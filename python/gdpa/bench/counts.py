"""Counts the scores, the FLOP and the bytes of a case."""

from __future__ import annotations

from functools import cache

from gdpa.bench.cases import Case
from gdpa.bench.device import Rates
from gdpa.bench.masks import scores_that_count

SIZES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


def flops_of(case: Case, direction: str) -> float:
    """Returns 2 * H * (d + d_v) for each selected score in forward, and 2.5 times as many in backward (5 products)."""
    forward = 4.0 * case.heads * case.head_dim * kept_scores_of(case)
    return forward if direction == "fwd" else 2.5 * forward


def bytes_of(case: Case, direction: str) -> float:
    """Returns the bytes of the operands, read once, and of their results, written once."""
    rows = case.rows_q + 2 * case.rows_k  # query, key and value, or their gradients
    operands = rows + sum(case.lengths_q) if direction == "fwd" else 2 * rows + sum(case.lengths_q)
    return float(operands * case.heads * case.head_dim * SIZES[case.dtype])


def floor_tflops(rates: Rates, case: Case, direction: str) -> float:
    """Returns the rate of a call that takes the longer time of its FLOP and of its bytes."""
    flops = flops_of(case, direction)
    seconds = max(flops / rates.product_flops, bytes_of(case, direction) / rates.copy_bytes)
    return flops / seconds * 1e-12 if seconds > 0 else 0.0


def kept_scores_of(case: Case) -> int:
    """Returns the number of scores of one head that the mask selects, summed over the batch."""
    if not case.has_window:
        return scores_that_count(case.mask, case.lengths_q, case.lengths_k)
    return sum(kept_scores(q, k, case.window) for q, k in zip(case.lengths_q, case.lengths_k, strict=True))


@cache
def kept_scores(length_q: int, length_k: int, window: tuple[int, int]) -> int:
    """Returns the number of scores of one sequence and head inside the window (left, right). -1 means no bound."""
    left, right = window
    if left < 0 and right < 0:
        return length_q * length_k
    total = 0
    for i in range(length_q):
        diagonal = i + length_k - length_q
        first = max(0, diagonal - left) if left >= 0 else 0
        end = min(length_k, diagonal + right + 1) if right >= 0 else length_k
        total += max(0, end - first)
    return total
