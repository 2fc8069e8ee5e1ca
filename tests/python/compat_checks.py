"""Helpers of the tests of gdpa.compat: random lengths, and the comparison of outputs and gradients."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor


def lengths(draw: random.Random, batch: int, most: int) -> list[int]:
    """Lengths from 0, at least one of which is not 0."""
    drawn = [draw.choice([0, 1, draw.randint(2, most), draw.randint(2, most)]) for _ in range(batch)]
    drawn[draw.randrange(batch)] = draw.randint(1, most)
    return drawn


def starts(of: Sequence[int]) -> list[int]:
    return [0, *accumulate(of)]


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def integers(numbers: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(list(numbers), dtype=dtype)


def check_same(actual: Tensor, expected: Tensor, inputs: Sequence[Tensor], described: Callable[[], str]) -> None:
    """Compares a result, and the gradients of these inputs for a random gradient of the result."""
    assert actual.shape == expected.shape, f"{actual.shape} instead of {expected.shape}: {described()}"
    pairs = [(actual, expected)]
    if expected.requires_grad:
        weights = torch.randn_like(expected)
        options = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
        pairs += zip(
            torch.autograd.grad(actual, inputs, weights, **options),
            torch.autograd.grad(expected, inputs, weights, **options),
            strict=True,
        )
    for number, (one, other) in enumerate(pairs):
        assert (one - other).norm() <= 1e-9 * (other.norm() + 0.1), f"result {number}: {described()}"
