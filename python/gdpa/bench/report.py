"""The report of rates with goals, figures and tables, and the merging of reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpa.bench import cases, goals
from gdpa.bench.document import Document, markdown_table
from gdpa.bench.figures import COLUMNS, Figure
from gdpa.bench.measure import Result
from gdpa.bench.plot import case_of, draw, name
from gdpa.bench.rows import Refused, Row, fields, has_cublas, lengths, print_rows, print_table, share
from gdpa.bench.training.models_report import MODELS_SUBJECT, ModelsReport, ModelStep
from gdpa.bench.training.report import TRAINING, Step, TrainingReport


@dataclass(frozen=True)
class Report(Document):
    """The report of a suite, of the project's figures, or of shapes."""

    result: Result
    figures: list[Figure]

    @property
    def rows(self) -> list[Row]:
        return self.result.rows

    @property
    def refusals(self) -> list[Refused]:
        return self.result.refusals

    @property
    def standings(self) -> list[goals.Standing]:
        """The goals of the suite with the measured numbers."""
        return goals.standings(self.subject, self.rows, self.refusals)

    def draw(self, path: Path) -> None:
        draw(path, self.title, self.rows, self.standings)

    def show(self) -> None:
        print_rows(f"{self.device}, PyTorch {self.torch}", self.rows, self.refusals)
        if self.figures:
            print_table("figures", COLUMNS, [figure.cells() for figure in self.figures], texts=2)
        if self.standings:
            print_table(goals.in_words(self.standings), *goals.table(self.standings), texts=3)

    def findings(self) -> dict[str, Any]:
        return {
            "figures": [figure.as_json() for figure in self.figures],
            "goals": [standing.as_json() for standing in self.standings],
        }

    def tables(self) -> list[str]:
        parts = []
        if self.figures:
            parts.append(markdown_table(COLUMNS, [figure.cells() for figure in self.figures]))
        if self.standings:
            parts += [f"## Goals: {goals.in_words(self.standings)}", markdown_table(*goals.table(self.standings))]
        for direction, heading in (("fwd", "Forward"), ("bwd", "Backward")):
            rows = [row for row in self.rows if row.direction == direction]
            if rows:
                unit = "TFLOP/s (share of cuBLAS)" if has_cublas(rows) else "GFLOP/s"
                parts += [f"## {heading}, {unit}", rate_table(rows)]
        return parts


def rate_table(rows: list[Row]) -> str:
    """Returns a table with one line for each case, and one column for each system and function."""
    factor = 1.0 if has_cublas(rows) else 1e3
    series = list(dict.fromkeys(name(row) for row in rows))
    by_case: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        by_case.setdefault(case_of(row), []).append(row)
    lines = []
    for case in by_case.values():
        rates = {name(row): in_words(row.tflops * factor, share(row.tflops, row.cublas_tflops)) for row in case}
        first = case[0]
        sizes = (str(first.B), str(first.d), *lengths(first), f"{first.fill:.2f}")
        limits = (first.cublas_tflops, first.floor_tflops, goals.frontier(first))
        bounds = (f"{rate * factor:.0f}" if rate else "" for rate in limits)
        lines.append(
            (first.shape or "", first.dtype, first.mask, *sizes, *bounds, *(rates.get(one, "") for one in series))
        )
    columns = ("shape", "dtype", "mask", "B", "d", "q", "kv", "fill", "cuBLAS", "floor", "frontier", *series)
    return markdown_table(columns, lines)


def in_words(rate: float, of_cublas: str) -> str:
    return f"{rate:.1f}" + (f" ({of_cublas})" if of_cublas else "")


def merged(paths: Sequence[Path]) -> Document:
    """Joins the documents of several parts of a run into one report. For a repeated row, the later document counts.

    Raises ValueError if a document has another subject, another device or other fields than the first document.
    """
    documents = [document(path) for path in paths]
    first = documents[0]
    kind = kind_of_rows(first)
    rows: dict[object, Any] = {}
    refusals: dict[object, Refused] = {}
    figures: dict[str, Figure] = {}
    for path, part in zip(paths, documents, strict=True):
        for field in ("subject", "device"):
            if part[field] != first[field]:
                raise ValueError(f"--merge: expected parts of one run; {paths[0]} has the {field} {first[field]!r}, "
                                 f"{path} has {part[field]!r}")  # fmt: skip
        for numbers in part["rows"]:
            row = kind(**numbers)
            rows[row.system, row.activation, row.direction, case_of(row) if isinstance(row, Row) else row.shape] = row
            refusals.pop((row.system, row.direction, row.shape), None)
        for refused in (Refused(**words) for words in part["not_run"]):
            refusals[refused.system, refused.direction, refused.shape] = refused
        for numbers in part.get("figures", []):
            figure = Figure(**{field: value for field, value in numbers.items() if field != "reached"})
            figures[figure.what] = figure

    def all_of(field: str) -> str:
        return "; ".join(dict.fromkeys(part[field] for part in documents))

    circumstances = (first["subject"], first["device"], all_of("torch"), all_of("commit"), all_of("method"))
    refused_parts = Result([], list(refusals.values()))
    if kind is Step:
        return TrainingReport(*circumstances, list(rows.values()), refused_parts)
    if kind is ModelStep:
        return ModelsReport(*circumstances, list(rows.values()), refused_parts)
    in_order = in_order_of_suite(first["subject"], list(rows.values()))
    return Report(*circumstances, Result(in_order, list(refusals.values())), list(figures.values()))


def in_order_of_suite(subject: str, rows: list[Row]) -> list[Row]:
    """Returns the rows by direction and in the order of the suite's shapes, or unchanged if there is no such suite."""
    if subject not in cases.suites():
        return rows
    places = {shape["name"]: place for place, shape in enumerate(cases.suites()[subject]["shapes"])}
    return sorted(
        rows, key=lambda row: (cases.DIRECTIONS.index(row.direction), places.get(row.shape or "", len(places)))
    )


def kind_of_rows(document: dict[str, Any]) -> type[Row] | type[Step] | type[ModelStep]:
    kinds: dict[str, type[Step] | type[ModelStep]] = {TRAINING: Step, MODELS_SUBJECT: ModelStep}
    return kinds.get(document["subject"], Row)


def document(path: Path) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads(path.read_text())
        known = all(list(row) == fields(kind_of_rows(read)) for row in read["rows"])
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise ValueError(f"--merge: expected a document that --report of this version has written, got {path}")
    return read
