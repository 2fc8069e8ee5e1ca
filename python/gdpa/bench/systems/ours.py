"""gdpa through PyTorch, with the options of the case or in a variant that alternates with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

import gdpa
from gdpa.bench.cases import Case
from gdpa.bench.systems.base import Attend, Operands, Packed, Prepared, System, learned, offsets


class Gdpa(Packed):
    """gdpa through PyTorch, on the packed operands."""

    name = "gdpa"
    first_call = 0.5  # some compile a kernel

    def version(self) -> str:
        return gdpa.__version__

    def variants(self, functions: Sequence[str]) -> list[System]:
        return [self, *map(GdpaWith, functions[1:])]

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        inputs, params = operands.leaves(), operands.params(case)
        attend = self.packed(case, operands.query.device, params)
        return Prepared(lambda: [attend(*inputs)], [*inputs, *learned(params)], [operands.grad_output])

    def packed(self, case: Case, device: torch.device, params: dict[str, Tensor] | None = None) -> Attend:
        offsets_q = None if case.shared_q else offsets(case.lengths_q, device)
        offsets_k = None if case.shared_kv else offsets(case.lengths_k, device)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return gdpa.varlen_attention(
                query, key, value, offsets_q, offsets_k,
                activation=case.activation, params=params or None, window_size=case.window,
                deterministic=case.deterministic,
            )  # fmt: skip

        return attend


class GdpaIn(Gdpa):
    """gdpa in another type than the case. It alternates with the type of the case."""

    def __init__(self, dtype: str) -> None:
        self.name = f"gdpa, {dtype}"
        self.dtype = dtype

    @property
    def row_name(self) -> str:
        return "gdpa"

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        return super().prepare(case, operands.to(getattr(torch, str(self.dtype))))


def in_turn(systems: Sequence[System], case: Case, functions: Sequence[str]) -> list[System]:
    """Returns the systems for a case with several functions. Only gdpa runs a deterministic case."""
    if case.deterministic:
        systems = [system for system in systems if isinstance(system, Gdpa)]
    return [variant for system in systems for variant in system.variants(functions)]


class GdpaWith(Gdpa):
    """gdpa with another function than the case. It alternates with the function of the case."""

    def __init__(self, activation: str) -> None:
        self.name = f"gdpa, {activation}"
        self.function = activation

    @property
    def row_name(self) -> str:
        return "gdpa"

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        return super().prepare(replace(case, activation=str(self.function)), operands)
