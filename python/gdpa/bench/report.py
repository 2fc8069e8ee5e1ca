"""The report of a run: one JSON document, the tables in Markdown, and the picture, under one name."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gdpa.bench import goals
from gdpa.bench.figures import COLUMNS, Figure
from gdpa.bench.measure import Result
from gdpa.bench.plot import case_of, draw, name
from gdpa.bench.rows import Refused, Row, fields, has_cublas, lengths, not_run, share


@dataclass(frozen=True)
class Report:
    subject: str  # of the run: the suite's name, "figures", or "shapes"
    device: str
    torch: str
    commit: str
    method: str  # how long was measured, in a sentence
    result: Result
    figures: list[Figure]

    @property
    def title(self) -> str:
        return f"{self.subject}: {self.device}, PyTorch {self.torch}, gdpa {self.commit}"

    @property
    def standings(self) -> list[goals.Standing]:
        """The goals of the suite beside what was measured."""
        return goals.standings(self.subject, self.result.rows, self.result.refusals)

    def write(self, folder: Path) -> list[Path]:
        """SUBJECT-DEVICE.json, .md and, where there are rows, .png."""
        written = {ending: self.path(folder, ending) for ending in ("json", "md", "png")}
        self.write_document(folder)
        written["md"].write_text(self.as_markdown(written["png"].name))
        if self.result.rows:
            draw(written["png"], self.title, self.result.rows, self.standings)
        return [path for ending, path in written.items() if ending != "png" or self.result.rows]

    def write_document(self, folder: Path) -> None:
        """SUBJECT-DEVICE.json alone, which is what parts of a run are merged from."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path(folder, "json").write_text(self.as_json())

    def path(self, folder: Path, ending: str) -> Path:
        device = re.sub("[^a-z0-9]+", "-", self.device.lower().removeprefix("nvidia ")).strip("-")
        return folder / f"{self.subject}-{device}.{ending}"

    def as_json(self) -> str:
        document = {
            "subject": self.subject,
            "device": self.device,
            "torch": self.torch,
            "commit": self.commit,
            "method": self.method,
            "figures": [asdict(figure) | {"reached": figure.reached} for figure in self.figures],
            "goals": [standing.as_json() for standing in self.standings],
            "not_run": [asdict(refused) for refused in dict.fromkeys(self.result.refusals)],
        }
        rows = ",\n".join("  " + json.dumps(asdict(row)) for row in self.result.rows)
        return json.dumps(document, indent=1).removesuffix("\n}") + f',\n "rows": [\n{rows}\n ]\n}}\n'

    def as_markdown(self, picture: str) -> str:
        parts = [f"# {self.title}", self.method]
        if self.figures:
            parts.append(markdown_table(COLUMNS, [figure.cells() for figure in self.figures]))
        if self.standings:
            parts += [f"## Goals: {goals.in_words(self.standings)}", markdown_table(*goals.table(self.standings))]
        for direction, heading in (("fwd", "Forward"), ("bwd", "Backward")):
            rows = [row for row in self.result.rows if row.direction == direction]
            if rows:
                unit = "TFLOP/s (share of cuBLAS)" if has_cublas(rows) else "GFLOP/s"
                parts += [f"## {heading}, {unit}", rate_table(rows)]
        if self.result.rows:
            parts.append(f"![rates of every system on every shape]({picture})")
        refused = not_run(self.result.refusals)
        if refused:
            parts += ["## Not run", "\n".join(f"- {line}" for line in refused)]
        return "\n\n".join(parts) + "\n"


def rate_table(rows: list[Row]) -> str:
    """One line a case, one column a system and function."""
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


def markdown_table(columns: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, ("---",) * len(columns), *lines))


def merged(paths: Sequence[Path]) -> Report:
    """The documents of parts of one run as one report. A row that came twice is the later document's.

    Raises ValueError for a document of another subject or device than the first, or of rows with other fields.
    """
    documents = [document(path) for path in paths]
    first = documents[0]
    rows: dict[object, Row] = {}
    refusals: dict[object, Refused] = {}
    figures: dict[str, Figure] = {}
    for path, part in zip(paths, documents, strict=True):
        for field in ("subject", "device"):
            if part[field] != first[field]:
                raise ValueError(f"--merge: expected parts of one run; {paths[0]} has the {field} {first[field]!r}, "
                                 f"{path} has {part[field]!r}")  # fmt: skip
        for numbers in part["rows"]:
            row = Row(**numbers)
            rows[row.system, row.activation, row.direction, case_of(row)] = row
            refusals.pop((row.system, row.direction, row.shape), None)
        for refused in (Refused(**words) for words in part["not_run"]):
            refusals[refused.system, refused.direction, refused.shape] = refused
        for numbers in part["figures"]:
            figure = Figure(**{field: value for field, value in numbers.items() if field != "reached"})
            figures[figure.what] = figure

    def all_of(field: str) -> str:
        return "; ".join(dict.fromkeys(part[field] for part in documents))

    result = Result(list(rows.values()), list(refusals.values()))
    return Report(first["subject"], first["device"], all_of("torch"), all_of("commit"), all_of("method"), result,
                  list(figures.values()))  # fmt: skip


def document(path: Path) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads(path.read_text())
        known = all(list(row) == fields() for row in read["rows"])
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise ValueError(f"--merge: expected documents that --report of this version writes; {path} is none")
    return read
