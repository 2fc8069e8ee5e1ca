"""Random activations as a text for gdpa and as a torch function: smooth and kinked, flat and steep.

The two are built together from the same draws, so the torch function is an independent reference for the text. Values
and slopes stay finite for every score that the tests make.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Expression = tuple[str, Callable[[Tensor], Tensor]]

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh({})": torch.tanh,
    "sigmoid({})": torch.sigmoid,
    "silu({})": F.silu,
    "gelu({})": F.gelu,
    "gelu_tanh({})": lambda x: F.gelu(x, approximate="tanh"),
    "relu({})": F.relu,
    "softplus({})": lambda x: torch.logaddexp(x, torch.zeros_like(x)),  # F.softplus is linear from 20 on
    "sin({})": torch.sin,
    "cos({})": torch.cos,
    "erf({})": torch.erf,
    "abs({})": torch.abs,
    "exp(-({0})^2)": lambda x: torch.exp(-(x**2)),
    "sqrt(1 + ({0})^2)": lambda x: torch.sqrt(1 + x**2),
    "({0}) / (1 + abs({0}))": lambda x: x / (1 + x.abs()),
    "log1p(abs({}))": lambda x: torch.log1p(x.abs()),
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "({} + {})": lambda x, y: x + y,
    "({} - {})": lambda x, y: x - y,
    "({} * {})": lambda x, y: x * y,
    "max({}, {})": torch.maximum,
    "min({}, {})": torch.minimum,
}


def number(draw: random.Random, low: float, high: float) -> float:
    """Log-uniform, of three digits, so that text and torch have the same number."""
    return float(f"{math.exp(draw.uniform(math.log(low), math.log(high))):.3g}")


def argument(draw: random.Random) -> Expression:
    """A multiple of the score, or one that is shifted. Factors above 1 make a function steep."""
    factor = number(draw, 0.2, 12) * draw.choice([1, 1, -1])
    shift = number(draw, 0.1, 3) * draw.choice([1, -1]) if draw.random() < 0.3 else 0.0
    return f"({factor:g} * s + {shift:g})", lambda s: factor * s + shift


def term(draw: random.Random) -> Expression:
    text, function = draw.choice(list(UNARY.items()))
    of_text, of = argument(draw)
    return text.format(of_text), lambda s: function(of(s))


def random_function(draw: random.Random) -> Expression:
    """One term, or two or three that are combined, often with the score itself as a factor."""
    text, function = term(draw)
    for _ in range(draw.choice([0, 0, 1, 2])):
        text, function = combined(draw, (text, function), term(draw))
    if draw.random() < 0.4:
        text, function = f"s * {text}", times_score(function)
    return text, function


def combined(draw: random.Random, left: Expression, right: Expression) -> Expression:
    text, function = draw.choice(list(BINARY.items()))
    one, other = left[1], right[1]
    return text.format(left[0], right[0]), lambda s: function(one(s), other(s))


def times_score(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda s: s * function(s)


def random_scale(draw: random.Random, head_dim: int) -> float:
    """Returns a scale, usually not a power of two. With N(0, 1) operands, scores have a deviation of .2 to 5."""
    deviation = math.exp(draw.uniform(math.log(0.2), math.log(5)))
    return deviation / math.sqrt(head_dim) * draw.choice([1, 1, 1, -1])
