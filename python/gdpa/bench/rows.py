"""The rows of the benchmark: their fields, the printed table, and JSON with one object for each row."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gdpa.bench.cases import Case


@dataclass(frozen=True)
class Row:
    """One figure with the fields of `gdpa bench --json`, which docs/benchmarks.md explains."""

    system: str
    version: str
    commit: str
    direction: str
    device: str
    shape: str | None
    dtype: str
    activation: str
    accuracy: str | None
    deterministic: bool
    mask: str
    B: int
    H_q: int
    H_k: int
    d: int
    d_v: int
    q: int
    kv: int
    fill: float
    shared_q: bool
    shared_kv: bool
    bytes: float
    ms: float
    tflops: float
    cublas_tflops: float | None
    floor_tflops: float | None


def reason_of(error: Exception) -> str:
    """Returns the error message in one line.

    For a full GPU, only the requested size, which is the same each time. The first line of a message of Triton's
    compiler is a position such as "at 1:17:", and its last line is the cause.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return str(error).partition(" GPU ")[0]
    lines = str(error).strip().splitlines() or [""]
    cause = f" {lines[-1].strip()}" if lines[0].endswith(":") and len(lines) > 1 else ""
    return f"{type(error).__name__}: {lines[0]}{cause}"


@dataclass(frozen=True)
class Refused:
    """A system that did not run a case in one direction, with the reason."""

    system: str
    direction: str
    reason: str
    shape: str | None = None


@dataclass(frozen=True)
class Rates:
    """The rates of the device, measured in this run: FLOP/s of products and bytes/s of copies."""

    product_flops: float
    copy_bytes: float

    def floor_tflops(self, case: Case, direction: str) -> float:
        flops = case.flops(direction)
        seconds = max(flops / self.product_flops, case.bytes(direction) / self.copy_bytes)
        return flops / seconds * 1e-12 if seconds > 0 else 0.0


def write_json(path: Path | None, rows: Sequence[Any]) -> None:
    """Writes one JSON object for each row (a dataclass) to a file, or to standard output if the path is None."""
    text = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
    if path is None:
        print(text, end="")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


COLUMNS = ("", "system", "dtype", "f", "mask", "B", "H", "d", "q", "kv", "fill", "ms")


def has_cublas(rows: list[Row]) -> bool:
    return any(row.cublas_tflops for row in rows)


def columns(rows: list[Row]) -> tuple[str, ...]:
    """Returns the columns of every row, and the rates. On a GPU, the share of cuBLAS is included."""
    return (*COLUMNS, *(("TFLOP/s", "of cuBLAS", "of floor") if has_cublas(rows) else ("GFLOP/s", "of floor")))


def share(rate: float, of: float | None) -> str:
    return f"{rate / of:.2f}" if of else ""


def cells(row: Row) -> tuple[str, ...]:
    with_cublas = (f"{row.tflops:.1f}", share(row.tflops, row.cublas_tflops))
    return (
        row.direction,
        row.system,
        row.dtype,
        row.activation,
        row.mask,
        str(row.B),
        str(row.H_q),
        str(row.d),
        *lengths(row),
        f"{row.fill:.2f}",
        f"{row.ms:.3f}",
        *(with_cublas if row.cublas_tflops else (f"{row.tflops * 1e3:.1f}",)),
        share(row.tflops, row.floor_tflops),
    )


def lengths(row: Row) -> tuple[str, str]:
    return (
        f"{row.q} shared" if row.shared_q else str(row.q),
        f"{row.kv} shared" if row.shared_kv else str(row.kv),
    )


def print_table(title: str, columns: tuple[str, ...], lines: list[tuple[str, ...]], texts: int) -> None:
    """Prints a table, with rich if it is installed, otherwise in plain columns. The first `texts` columns are text."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        print_plain(title, columns, lines)
        return
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < texts else "right")
    for line in lines:
        table.add_row(*map(Text, line))  # a text has no markup: a function may contain brackets
    Console(width=None if Console().is_terminal else 160).print(table, highlight=False)


def print_plain(title: str, columns: tuple[str, ...], lines: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(columns, *lines, strict=True)]
    print(title)
    for line in (columns, *lines):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_rows(title: str, rows: list[Row], refusals: list[Refused]) -> None:
    print_table(title, columns(rows), [cells(row) for row in rows], texts=5)
    print_not_run(refusals)


def print_not_run(refusals: list[Refused]) -> None:
    for line in not_run(refusals):
        print(f"not run: {line}")


def not_run(refusals: list[Refused]) -> list[str]:
    """Returns one line for each system, direction and reason."""
    counted = Counter((refused.system, refused.direction, refused.reason) for refused in refusals)
    return [
        f"{system}, {direction}: {reason}" + (f" ({cases} cases)" if cases > 1 else "")
        for (system, direction, reason), cases in counted.items()
    ]


def fields(kind: type[Any] = Row) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]
