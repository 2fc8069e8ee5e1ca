"""What is timed: cases, made from a suite, from generated lengths, from a file of lengths or from MovieLens 100K."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

DIRECTIONS = ("fwd", "bwd")
SUITES_FILE = Path(__file__).with_name("suites.json")  # `gdpa bench` embeds the same file


@dataclass(frozen=True)
class Case:
    """A row of the benchmark in each of its directions, but for the system."""

    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    heads: int
    head_dim: int
    dtype: str = "float32"  # as PyTorch spells it
    activation: str = "gelu"
    mask: str = "none"  # "none", "causal", or "window:LEFT,RIGHT", counted from the bottom right
    shared_q: bool = False  # one query operand for the whole batch
    shared_kv: bool = False
    deterministic: bool = False  # the same bits every time, which gdpa alone is asked for
    directions: tuple[str, ...] = DIRECTIONS  # those that are worth timing
    batch_limit: int = 0  # sequences in one call; 0 is all of them
    name: str | None = None  # of the shape in its suite
    gradients: str = "qkv"  # which a backward call computes; --against alone reads it

    def batches(self) -> Iterator[Case]:
        """The case cut into calls of at most `batch_limit` sequences, in order."""
        size = self.batch_limit or len(self.lengths_q)
        for first in range(0, len(self.lengths_q), size):
            part = slice(first, first + size)
            yield replace(self, lengths_q=self.lengths_q[part], lengths_k=self.lengths_k[part])

    @property
    def window(self) -> tuple[int, int]:
        if self.mask == "none":
            return (-1, -1)
        if self.mask == "causal":
            return (-1, 0)
        left, right = self.mask.removeprefix("window:").split(",")
        return (int(left), int(right))

    @property
    def kept_scores(self) -> int:
        """Scores of one head that the mask keeps, over the batch."""
        return sum(kept_scores(q, k, self.window) for q, k in zip(self.lengths_q, self.lengths_k, strict=True))

    def flops(self, direction: str) -> float:
        """2 * H * (d + d_v) * kept scores; the backward pass has five products to the forward pass's two."""
        forward = 4.0 * self.heads * self.head_dim * self.kept_scores
        return forward if direction == "fwd" else 2.5 * forward

    def bytes(self, direction: str) -> float:
        """Each input read once and each output written once."""
        rows_q = self.lengths_q[0] if self.shared_q else sum(self.lengths_q)
        rows_k = self.lengths_k[0] if self.shared_kv else sum(self.lengths_k)
        rows = rows_q + 2 * rows_k  # query, key and value, or their gradients
        operands = rows + sum(self.lengths_q) if direction == "fwd" else 2 * rows + sum(self.lengths_q)
        return float(operands * self.heads * self.head_dim * SIZES[self.dtype])


SIZES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


@cache
def kept_scores(length_q: int, length_k: int, window: tuple[int, int]) -> int:
    """Scores of one sequence and one head inside the window (left, right); -1 is no bound."""
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


def uniform(seed: int, index: int) -> float:
    """Number `index` of the stream `seed` of splitmix64, in [0, 1): the generator of `gdpa bench`."""
    mask = (1 << 64) - 1
    z = ((seed << 32) + (index + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def generate_lengths(batch: int, max_length: int, fill: float, seed: int) -> tuple[int, ...]:
    """Lengths spread evenly over the widest range within [0, max_length] whose mean is fill * max_length."""
    low = max(0.0, 2 * fill - 1) * max_length
    high = min(1.0, 2 * fill) * max_length
    return tuple(math.floor(low + uniform(seed, b) * (high - low) + 0.5) for b in range(batch))


def suites() -> dict[str, Any]:
    """Name -> description, batch, heads, dtype, activation and shapes."""
    return json.loads(SUITES_FILE.read_text())


def suite_named(name: str) -> dict[str, Any]:
    """Raises ValueError for an unknown name."""
    if name not in suites():
        raise ValueError(f"--suite: expected one of {', '.join(suites())}; got {name!r}")
    return suites()[name]


def cases_of_suite(
    name: str, batch_factor: float = 1.0, seed: int = 0, wanted: Sequence[str] | None = None
) -> list[Case]:
    """The cases of a suite, or of those of its shapes that are wanted: their names, numbers from 1, or ranges "3-7".

    A shape says what differs from the suite: batch, heads, dtype, activation, mask, what is shared, whether it is
    deterministic, and directions, where not both are timed; an activation may be a list. Raises ValueError for an
    unknown name.
    """
    suite = suite_named(name)
    shapes = suite["shapes"] if wanted is None else chosen_shapes(suite["shapes"], wanted)
    return [case for shape in shapes for case in cases_of_shape(suite | shape, batch_factor, seed)]


def chosen_shapes(shapes: list[dict[str, Any]], wanted: Sequence[str]) -> list[dict[str, Any]]:
    """In the order of the suite, however they are asked for."""
    numbers = {shape["name"]: number for number, shape in enumerate(shapes, 1)}
    chosen: set[int] = set()
    for word in wanted:
        first, _, last = word.partition("-")
        if word in numbers:
            chosen.add(numbers[word])
        elif first.isdecimal() and (last or first).isdecimal() and 1 <= int(first) <= int(last or first) <= len(shapes):
            chosen.update(range(int(first), int(last or first) + 1))
        else:
            known = "; ".join(f"{number} {name}" for name, number in numbers.items())
            raise ValueError(f"--shapes: expected names, numbers or ranges such as 3-7 of {known}; got {word!r}")
    return [shape for number, shape in enumerate(shapes, 1) if number in chosen]


def by_shape(cases: Sequence[Case]) -> list[tuple[Case, list[str]]]:
    """The cases that differ in nothing but f, which take turns: the first of them, and the functions of all."""
    functions: dict[Case, list[str]] = {}
    for case in cases:
        functions.setdefault(replace(case, activation=""), []).append(case.activation)
    return [(replace(shape, activation=names[0]), names) for shape, names in functions.items()]


def cases_of_shape(shape: dict[str, Any], batch_factor: float, seed: int) -> Iterator[Case]:
    batch = max(1, round(shape["batch"] * batch_factor))
    shared_q, shared_kv = shape.get("shared_q", False), shape.get("shared_kv", False)
    lengths_q = generate_lengths(batch, shape["length_q"], shape.get("fill", 1.0), seed)
    lengths_k = generate_lengths(batch, shape["length_k"], shape.get("fill_k", 1.0), seed + 1)
    activations = shape["activation"] if isinstance(shape["activation"], list) else [shape["activation"]]
    for activation in activations:
        yield Case(
            (shape["length_q"],) * batch if shared_q else lengths_q,
            (shape["length_k"],) * batch if shared_kv else lengths_k,
            shape["heads"],
            shape["head_dim"],
            shape["dtype"],
            activation,
            shape.get("mask", "none"),
            shared_q=shared_q,
            shared_kv=shared_kv,
            deterministic=shape.get("deterministic", False),
            directions=tuple(shape.get("directions", DIRECTIONS)),
            name=shape.get("name"),
        )


def movielens_lengths() -> tuple[int, ...]:
    """The lengths of the 943 user histories of MovieLens 100K, in the order of the users."""
    from gdpa.demo.histories import load

    return tuple(load().lengths.tolist())


def read_lengths(source: str) -> tuple[int, ...]:
    """Lengths from "movielens", from a list such as "3,17,0,5", or from a file of numbers in which '#' is a comment."""
    if source == "movielens":
        return movielens_lengths()
    text = source
    if not set(source) <= set("0123456789, "):
        path = Path(source)
        if not path.is_file():
            raise ValueError(f"--lengths: expected movielens, numbers such as 3,17,0,5, or a file; got {source!r}")
        text = " ".join(line.partition("#")[0] for line in path.read_text().splitlines())
    try:
        lengths = tuple(int(word) for word in text.replace(",", " ").split())
    except ValueError:
        raise ValueError(f"--lengths {source}: expected whole numbers from 0 on") from None
    if not lengths or min(lengths) < 0:
        raise ValueError(f"--lengths {source}: expected at least one number, none below 0")
    return lengths
