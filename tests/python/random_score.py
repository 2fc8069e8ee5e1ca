"""Random functions of the score that read positions and tensors, as a text for gdpa and in plain torch.

The two are built together from the same draws. The function comes from random_function; a random input is added to its
score, multiplies its score, multiplies its value or is added to its value.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from random_function import number, random_function
from score_reference import Call
from torch import Tensor

Number = Callable[[int, Tensor, Tensor, Tensor], Any]  # of b, h, i and j


@dataclass
class Index:
    """An index with its text. `size` is a size of the axis for which no index is clamped."""

    text: str
    value: Number
    size: int


class RandomScore:
    """One function for calls with these lengths, its tensors by name, and its value in plain torch."""

    def __init__(self, draw: random.Random, call: Call) -> None:
        self._draw, self._call = draw, call
        self.tensors: dict[str, Tensor] = {}
        text, function = random_function(draw)
        inner_text, inner = self._combined("s", lambda s, *place: s)
        self.text = re.sub(r"\bs\b", f"({inner_text})", f"({text})")
        self.text, self._value = self._combined(self.text, lambda s, *place: function(inner(s, *place)))

    def __call__(self, s: Tensor, b: Any, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self._value(s, b, h, i, j)

    def _combined(self, text: str, of: Callable[..., Tensor]) -> tuple[str, Callable[..., Tensor]]:
        """The expression alone, or combined with an input."""
        sign = self._draw.choice(["", "+", "*"])
        if not sign:
            return text, of
        of_input, value = self._input()
        if sign == "+":
            return f"{text} + {of_input}", lambda s, *place: of(s, *place) + value(*place)
        return f"{of_input} * {text}", lambda s, *place: value(*place) * of(s, *place)

    def _input(self) -> tuple[str, Number]:
        kind = self._draw.choice(["number", "position", "read", "read", "read", "read"])
        if kind == "number":
            shape = self._draw.choice([(), (self._call.heads,)])
            name, tensor = self._tensor(torch.randn(shape, dtype=torch.float64))
            return name, lambda b, h, i, j: tensor[h] if shape else tensor
        if kind == "position":
            factor = number(self._draw, 0.01, 0.3)
            index = self._index()
            return (
                f"({factor:g} * ({index.text}))",
                lambda *place: factor * torch.as_tensor(index.value(*place)).double(),
            )
        return self._read(lambda sizes: torch.randn(sizes, dtype=torch.float64))

    def _read(self, make: Callable[[list[int]], Tensor], most_axes: int = 4) -> tuple[str, Number]:
        indices = [self._index(most_axes) for _ in range(self._draw.randint(1, most_axes))]
        sizes, values = [], []
        for index in indices:
            # An axis of rows has an element for each row, or is broadcast.
            other = index.size + 1 if index.text in ("q_row", "kv_row") else self._draw.randint(1, 12)
            size = self._draw.choice([index.size, index.size, 1, other])
            sizes.append(size)
            values.append(clamped(index, size))
        name, tensor = self._tensor(make(sizes))
        text = f"{name}[{', '.join(index.text for index in indices)}]"
        return text, lambda *place: tensor[tuple(value(*place) for value in values)]

    def _tensor(self, tensor: Tensor) -> tuple[str, Tensor]:
        name = f"t{len(self.tensors)}"
        is_learned = tensor.is_floating_point() and self._draw.random() < 0.8
        self.tensors[name] = tensor.requires_grad_(is_learned)
        return name, self.tensors[name]

    def _index(self, most_axes: int = 4) -> Index:
        call, draw = self._call, self._draw
        n = draw.randint(2, 5)
        longest = max(call.longest_q, call.longest_k)
        choices = {
            "batch": (lambda b, h, i, j: b, call.batch),
            "head": (lambda b, h, i, j: h, call.heads),
            "q_idx": (lambda b, h, i, j: i, call.longest_q),
            "kv_idx": (lambda b, h, i, j: j, call.longest_k),
            "q_row": (lambda b, h, i, j: call.first_q[b] + i, call.tokens_q),
            "kv_row": (lambda b, h, i, j: call.first_k[b] + j, call.tokens_k),
            f"floor(q_row / {n})": (lambda b, h, i, j: (call.first_q[b] + i) // n, call.tokens_q // n + 1),
            f"clamp(kv_row - q_row, 0, {n})": (
                lambda b, h, i, j: (call.first_k[b] + j - call.first_q[b] - i).clamp(0, n), n + 1),
            "abs(q_idx - kv_idx)": (lambda b, h, i, j: (i - j).abs(), longest),
            f"clamp(q_idx - kv_idx, {-n}, {n}) + {n}": (lambda b, h, i, j: (i - j).clamp(-n, n) + n, 2 * n + 1),
            f"floor(q_idx / {n})": (lambda b, h, i, j: i // n, longest // n + 1),
            f"kv_idx - floor(kv_idx / {n}) * {n}": (lambda b, h, i, j: j % n, n),
            "floor(log2(1 + abs(q_idx - kv_idx)))": (lambda b, h, i, j: logarithm(i - j), 8),
            f"where(q_idx < kv_idx, {n}, head)": (lambda b, h, i, j: torch.where(i < j, n, h), n + call.heads),
            f"{n}": (lambda b, h, i, j: n, n + 1),
        }  # fmt: skip
        text, (value, size) = draw.choice(list(choices.items()))
        if most_axes > 2 and len(self.tensors) < 4 and draw.random() < 0.2:
            is_whole = draw.random() < 0.5
            size = draw.randint(1, 9)
            if is_whole:
                dtype = draw.choice([torch.int32, torch.int64])
                text, value = self._read(lambda sizes: torch.randint(size, sizes, dtype=dtype), 2)
            else:
                of_read, real = self._read(lambda sizes: size * torch.rand(sizes, dtype=torch.float64), 2)
                self.tensors[of_read.partition("[")[0]].requires_grad_(False)
                text, value = f"floor({of_read})", lambda *place: real(*place).floor().long()
        return Index(text, value, size)


def clamped(index: Index, size: int) -> Number:
    return lambda *place: torch.as_tensor(index.value(*place)).long().clamp(0, size - 1)


def logarithm(distance: Tensor) -> Tensor:
    return torch.log2(1 + distance.abs().double()).floor().long()
