"""Counts the scores, the FLOP and the bytes of a case."""

from __future__ import annotations

from collections import Counter
from functools import cache

import torch

from gdpa.bench.cases import Case
from gdpa.bench.device import Rates
from gdpa.bench.masks import selected

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
    sequences = Counter(zip(case.lengths_q, case.lengths_k, strict=True))
    return sum(count * kept_scores(case.mask, *lengths) for lengths, count in sequences.items())


@cache
def kept_scores(mask: str, length_q: int, length_k: int) -> int:
    """Returns the number of scores of one sequence and head that a mask selects."""
    one = Case((length_q,), (length_k,), heads=1, head_dim=1, mask=mask)
    if not one.has_window:
        return int(selected(mask, length_q, length_k, torch.device("cpu")).sum())
    left, right = (length_q + length_k if side < 0 else side for side in one.window)
    diagonal = torch.arange(length_q) + length_k - length_q
    begins, ends = (diagonal - left).clamp(min=0), (diagonal + right + 1).clamp(max=length_k)
    return int((ends - begins).clamp(min=0).sum())
