"""Helpers of the tests of the benchmark: a small case, a system by its name, results without padding, and fields."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import torch

from gdpa.bench.cases import Case
from gdpa.bench.systems import SYSTEMS, System


def small_case(**changes: object) -> Case:
    lengths = (7, 3, 12)
    return replace(Case(lengths, lengths, heads=2, head_dim=8, dtype="float64", activation="silu"), **changes)


def by_name(name: str) -> System:
    return next(system for system in SYSTEMS if system.name == name)


def unpadded(output: torch.Tensor, lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.cat([output[b, :, :length].transpose(0, 1) for b, length in enumerate(lengths)])


def fields(kind: type[Any]) -> list[str]:
    return [one.name for one in dataclasses.fields(kind)]
