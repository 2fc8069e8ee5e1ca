"""gdpa through PyTorch, with the options of the case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import gdpa
from gdpa.bench.cases import Case
from gdpa.bench.systems.base import Attend, System, offsets


class Gdpa(System):
    """gdpa through PyTorch, on the packed operands, with further options."""

    name = "gdpa"
    can_train = True
    reads_tensors = True

    def __init__(self, **options: Any) -> None:
        self.options = options

    def version(self) -> str:
        return gdpa.__version__

    def variants(self, functions: Sequence[str]) -> Sequence[System]:
        return [self, *(self.variant(function) for function in functions[1:])]

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        # `--against` also times builds that do not have every option, so a case passes only the options that it needs.
        options: dict[str, Any] = {"deterministic": case.deterministic, **self.options}
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


def in_turn(systems: Sequence[System], case: Case, functions: Sequence[str]) -> list[System]:
    """Returns the systems for a case with several functions. Only gdpa runs a deterministic case."""
    if case.deterministic:
        systems = [system for system in systems if isinstance(system, Gdpa)]
    return [variant for system in systems for variant in system.variants(functions)]
