"""The named functions and their derivatives through the operator, against mpmath.

With one key, value and head dimension of 1, and scale 1, the output is f(query) and the query's gradient f'(query):
the operator becomes the function itself. tests/cpp/evaluator_accuracy_test.cpp measures a million scores.
"""

from collections.abc import Callable

import mpmath
import pytest
import torch
from mpmath import mpf

import gdpa

mpmath.mp.dps = 80


def logistic(x: mpf) -> mpf:
    return 1 / (1 + mpmath.exp(-x))


def gelu_tanh(s: mpf) -> mpf:
    return s / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (s + mpf("0.044715") * s**3)))


# Each name by the formula of its source, not as gdpa's table writes it.
DEFINITIONS: dict[str, Callable[[mpf], mpf]] = {
    "identity": lambda s: s,
    "relu": lambda s: max(s, mpf(0)),
    "relu2": lambda s: max(s, mpf(0)) ** 2,
    "leaky_relu": lambda s: s if s > 0 else s / 100,
    "gelu": lambda s: s * mpmath.ncdf(s),
    "gelu_tanh": gelu_tanh,
    "fast_gelu": gelu_tanh,
    "silu": lambda s: s * logistic(s),
    "fast_silu": lambda s: s * logistic(s),
    "hardswish": lambda s: s * min(max(s + 3, mpf(0)), mpf(6)) / 6,
    "sigmoid": logistic,
    "tanh": mpmath.tanh,
    "softplus": lambda s: mpmath.log1p(mpmath.exp(s)),
}


def slope(definition: Callable[[mpf], mpf], score: mpf) -> mpf:
    """f' by a central difference that never reaches across 0; 80 digits leave more than 20 right."""
    step = abs(score) * mpf(10) ** -13
    return (definition(score + step) - definition(score - step)) / (2 * step)


def scores(dtype: torch.dtype) -> torch.Tensor:
    """Some thousand scores of every magnitude from 1e-30 to 1e4, and evenly where the functions bend."""
    generator = torch.Generator().manual_seed(4)
    magnitudes = 10 ** (torch.rand(500, generator=generator, dtype=torch.float64) * 34 - 30)
    bend = torch.rand(1500, generator=generator, dtype=torch.float64) * 40 - 20
    return torch.cat([magnitudes, -magnitudes, bend]).to(dtype)


def through_operator(name: str, score: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """f and f' of every score."""
    query = score.reshape(-1, 1, 1).clone().requires_grad_()
    one = torch.ones(1, 1, 1, dtype=score.dtype)
    queries = torch.tensor([0, score.numel()], dtype=torch.int32)
    keys = torch.tensor([0, 1], dtype=torch.int32)
    output = gdpa.varlen_attention(query, one, one, queries, keys, activation=name, scale=1.0)
    output.sum().backward()
    assert query.grad is not None
    return output.detach().flatten(), query.grad.flatten()


def worst(actual: torch.Tensor, score: torch.Tensor, exact: Callable[[mpf], mpf]) -> float:
    """The largest |error| / max(1, |exact|), in units of the type's epsilon."""
    errors = []
    for number, result in zip(score.tolist(), actual.tolist(), strict=True):
        expected = exact(mpf(number))
        errors.append(float(abs(mpf(result) - expected) / max(mpf(1), abs(expected))))
    return max(errors) / torch.finfo(score.dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", list(DEFINITIONS))
def test_named_functions_follow_their_definitions(name: str, dtype: torch.dtype) -> None:
    score = scores(dtype)
    value, derivative = through_operator(name, score)
    definition = DEFINITIONS[name]
    assert worst(value, score, definition) <= 4
    off_kink = (score.abs() - 3).abs() > 1e-5  # hardswish's slope jumps there, and a score is rounded to either side
    assert worst(derivative[off_kink], score[off_kink], lambda s: slope(definition, s)) <= 4
