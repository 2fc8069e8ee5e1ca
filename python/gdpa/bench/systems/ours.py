"""gdpa through PyTorch, with the options of the case or in a variant that alternates with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
        # --against also times builds that do not have every option, so a case passes only the options that it needs.
        options: dict[str, Any] = {"deterministic": case.deterministic}
        if params:
            options["params"] = params
        if case.has_window:
            options["window_size"] = case.window
        else:
            from gdpa.bench.masks import mask_of_case

            options["mask"] = mask_of_case(case, device)
        offsets_q = None if case.shared_q else offsets(case.lengths_q, device)
        offsets_k = None if case.shared_kv else offsets(case.lengths_of_keys, device)
        kind, _, number = case.layout.partition(":")
        rows = int(number or 0)  # of a page
        if kind == "kv_of":
            options["kv_of"] = torch.arange(len(case.lengths_q), device=device) // case.entries_of_keys
        elif kind == "pages":
            offsets_k = None
            options |= pages_of(case, rows, device)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            if kind == "pages":
                key, value = key.unflatten(0, (-1, rows)), value.unflatten(0, (-1, rows))
            return gdpa.varlen_attention(query, key, value, offsets_q, offsets_k, activation=case.activation, **options)

        return attend


def pages_of(case: Case, rows: int, device: torch.device) -> dict[str, Tensor]:
    """Returns the block table, with the pages in random order, and the lengths of the keys."""
    if any(length % rows for length in case.lengths_k):
        raise ValueError(f"layout {case.layout}: expected lengths that are multiples of {rows}; got {case.lengths_k}")
    longest = max(case.lengths_k) // rows
    table = torch.zeros(len(case.lengths_k), longest, dtype=torch.int32)
    pages = torch.randperm(case.rows_k // rows, dtype=torch.int32).split([n // rows for n in case.lengths_k])
    for row, pages_of_row in zip(table, pages, strict=True):
        row[: len(pages_of_row)] = pages_of_row
    lengths = torch.tensor(case.lengths_k, dtype=torch.int32)
    return {"block_table": table.to(device), "seqused_k": lengths.to(device)}


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
