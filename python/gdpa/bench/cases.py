"""The timed cases, from a suite, from generated lengths, from a file of lengths, or from MovieLens 100K."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

DIRECTIONS = ("fwd", "bwd")
SUITES_FILE = Path(__file__).with_name("suites.json")  # `gdpa bench` embeds the same file


@dataclass(frozen=True)
class Case:
    """A problem of the benchmark. A row is the result of one system for one case and one direction."""

    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    heads: int
    head_dim: int
    dtype: str = "float32"  # PyTorch's name
    activation: str = "gelu"
    mask: str = "none"  # "none", "causal", "window:LEFT,RIGHT" from the bottom right, or a mask of masks.py
    layout: str = "packed"  # "packed", "kv_of:N" (N consecutive query sequences have the same keys), or "pages:ROWS"
    shared_q: bool = False  # one query operand for the whole batch
    shared_kv: bool = False
    deterministic: bool = False  # the same bits every time; only gdpa runs such a case
    directions: tuple[str, ...] = DIRECTIONS  # the directions to time
    batch_limit: int = 0  # sequences in one call; 0 means all sequences
    name: str | None = None  # the name of the shape in its suite
    gradients: str = "qkv"  # the gradients of a backward call; only --against uses this field
    tensors: tuple[tuple[str, str], ...] = ()  # names and values (tensors.py) of the tensors that functions read
    tensor_gradients: str = "all"  # the gradients of these tensors: "all", "none", or names with commas

    @property
    def names_read(self) -> tuple[str, ...]:
        """The names of the tensors that the function reads."""
        return tuple(name for name, _ in self.tensors if re.search(rf"\b{name}\b", self.activation))

    def wants_gradient(self, name: str) -> bool:
        return self.tensor_gradients == "all" or name in self.tensor_gradients.split(",")

    @property
    def rows_q(self) -> int:
        """The rows of the query operand."""
        return self.lengths_q[0] if self.shared_q else sum(self.lengths_q)

    @property
    def rows_k(self) -> int:
        return self.lengths_k[0] if self.shared_kv else sum(self.lengths_of_keys)

    @property
    def entries_of_keys(self) -> int:
        """The number of query sequences with the same keys."""
        return int(self.layout.removeprefix("kv_of:")) if self.layout.startswith("kv_of") else 1

    @property
    def lengths_of_keys(self) -> tuple[int, ...]:
        """The lengths of the sequences of keys in memory."""
        return self.lengths_k[:: self.entries_of_keys]

    @property
    def has_window(self) -> bool:
        """Whether the mask is a window, or none."""
        return self.mask in ("none", "causal") or self.mask.startswith("window:")

    def batches(self) -> Iterator[Case]:
        """Returns the case divided into calls of at most `batch_limit` sequences, in order."""
        size = self.batch_limit or len(self.lengths_q)
        for first in range(0, len(self.lengths_q), size):
            part = slice(first, first + size)
            yield replace(self, lengths_q=self.lengths_q[part], lengths_k=self.lengths_k[part])

    @property
    def window(self) -> tuple[int, int]:
        named = {"none": "-1,-1", "causal": "-1,0"}
        left, right = named.get(self.mask, self.mask.removeprefix("window:")).split(",")
        return (int(left), int(right))


def uniform(seed: int, index: int) -> float:
    """Returns number `index` of splitmix64 with `seed`, in [0, 1). `gdpa bench` uses the same generator."""
    mask = (1 << 64) - 1
    z = ((seed << 32) + (index + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def generate_lengths(batch: int, max_length: int, fill: float, seed: int) -> tuple[int, ...]:
    """Returns lengths with the mean fill * max_length, spread evenly over the widest range within [0, max_length]."""
    low = max(0.0, 2 * fill - 1) * max_length
    high = min(1.0, 2 * fill) * max_length
    return tuple(math.floor(low + uniform(seed, b) * (high - low) + 0.5) for b in range(batch))


def suites() -> dict[str, Any]:
    """Returns a dictionary from the name of a suite to its description, batch, heads, dtype, activation and shapes."""
    return json.loads(SUITES_FILE.read_text())


def cases_of_suite(
    name: str, batch_factor: float = 1.0, seed: int = 0, wanted: Sequence[str] | None = None
) -> list[Case]:
    """Returns the cases of a suite. `shapes` selects shapes by name, by number from 1, or by range, such as "3-7".

    A shape may override these values of the suite: batch, heads, dtype, activation (one or a list), mask, layout,
    self_attention, shared operands, deterministic, directions, tensors and tensor_gradients. Raises ValueError for an
    unknown shape.
    """
    suite = suites()[name]
    shapes = suite["shapes"] if wanted is None else chosen_shapes(suite["shapes"], wanted)
    return [case for shape in shapes for case in cases_of_shape(suite | shape, batch_factor, seed)]


def chosen_shapes(shapes: list[dict[str, Any]], wanted: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the selected shapes in the order of the suite."""
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
    """Groups cases that differ only in f. Returns the first case and all functions of each group."""
    functions: dict[Case, list[str]] = {}
    for case in cases:
        functions.setdefault(replace(case, activation=""), []).append(case.activation)
    return [(replace(shape, activation=names[0]), names) for shape, names in functions.items()]


# What a case copies from its shape.
COPIED = (
    *("heads", "head_dim", "dtype", "mask", "layout", "shared_q", "shared_kv"),
    *("deterministic", "name", "tensor_gradients"),
)


def cases_of_shape(shape: dict[str, Any], batch_factor: float, seed: int) -> Iterator[Case]:
    batch = max(1, round(shape["batch"] * batch_factor))
    lengths_q = generate_lengths(batch, shape["length_q"], shape.get("fill", 1.0), seed)
    lengths_k = generate_lengths(batch, shape["length_k"], shape.get("fill_k", 1.0), seed + 1)
    if shape.get("self_attention", False):
        lengths_k = lengths_q
    if shape.get("shared_q", False):
        lengths_q = (shape["length_q"],) * batch
    if shape.get("shared_kv", False):
        lengths_k = (shape["length_k"],) * batch
    copied = {name: shape[name] for name in COPIED if name in shape}
    directions, tensors = tuple(shape.get("directions", DIRECTIONS)), tuple(shape.get("tensors", {}).items())
    for activation in shape["activation"] if isinstance(shape["activation"], list) else [shape["activation"]]:
        yield Case(lengths_q, lengths_k, activation=activation, directions=directions, tensors=tensors, **copied)


def movielens_lengths() -> tuple[int, ...]:
    """Returns the lengths of the 943 user histories of MovieLens 100K, in the order of the users."""
    from gdpa.demo.histories import load

    return tuple(load().lengths.tolist())


def read_lengths(source: str) -> tuple[int, ...]:
    """Returns lengths from "movielens", from a list such as "3,17,0,5", or from a file of numbers with '#' comments."""
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
        raise ValueError(f"--lengths {source}: expected whole numbers of 0 or more") from None
    if not lengths or min(lengths) < 0:
        raise ValueError(f"--lengths {source}: expected at least one number, none below 0")
    return lengths
