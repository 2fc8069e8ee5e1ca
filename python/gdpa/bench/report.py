"""The report of a run: its rows, goals and refusals as printed tables, a JSON document, a page and a picture."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from gdpa.bench import command
from gdpa.bench.plot import Panel, draw

HEADING = ("subject", "device", "torch", "commit", "method")  # the first fields of a document
R = TypeVar("R")
K = TypeVar("K")


@dataclass(frozen=True, kw_only=True)
class Row:
    """The fields that the rows of every suite begin with; docs/benchmarks.md explains the fields."""

    system: str
    version: str
    commit: str
    direction: str
    device: str
    shape: str | None
    dtype: str
    activation: str

    @property
    def place(self) -> tuple[object, ...]:
        """What tells this row from the other rows of a report. A later row replaces a row in the same place."""
        return (self.system, self.activation, self.direction, self.shape)


@dataclass(frozen=True)
class Refused:
    """A system that did not run a case in one direction, with the reason."""

    system: str
    direction: str
    reason: str
    shape: str | None = None


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
class Figure:
    """A measured number and its goal. `goal` is a lower bound if `more_is_better`, otherwise an upper bound."""

    what: str
    measured: float | None  # None if the measurement failed; `unit` is then the reason
    goal: float
    unit: str
    more_is_better: bool = True

    @property
    def reached(self) -> bool:
        if self.measured is None:
            return False
        return self.measured >= self.goal if self.more_is_better else self.measured <= self.goal

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"reached": self.reached}


@dataclass(frozen=True)
class Table:
    """A table of texts. The first `texts` columns are words, and the others are numbers."""

    heading: str
    columns: tuple[str, ...]
    lines: list[tuple[str, ...]]
    texts: int

    @classmethod
    def of(cls, heading: str, columns: Mapping[str, Callable[[R], str]], rows: Sequence[R], texts: int) -> Table:
        """Makes a line of each row. `columns` has the function that returns the cell of each column."""
        return cls(heading, tuple(columns), [tuple(cell(row) for cell in columns.values()) for row in rows], texts)

    def as_markdown(self) -> str:
        lines = (self.columns, ("---",) * len(self.columns), *self.lines)
        return f"## {self.heading}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def show(self) -> None:
        # Here, so that --help needs PyTorch alone.
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(title=self.heading, title_justify="left")
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="left" if index < self.texts else "right")
        for line in self.lines:
            table.add_row(*map(Text, line))  # a text has no markup: a function may contain brackets
        Console(width=None if Console().is_terminal else 160).print(table, highlight=False)


def number(value: float | None, form: str) -> str:
    """Returns a cell for a number that may be missing."""
    return "" if value is None else format(value, form)


def grouped(rows: Sequence[R], key: Callable[[R], K]) -> dict[K, list[R]]:
    found: dict[K, list[R]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def share(rate: float, of: float | None) -> str:
    return f"{rate / of:.2f}" if of else ""


FIGURE_COLUMNS: dict[str, Callable[[Figure], str]] = {
    "figure": lambda figure: figure.what,
    "unit": lambda figure: figure.unit,
    "measured": lambda figure: number(figure.measured, ".4g") or "not measured",
    "goal": lambda figure: f"{'at least' if figure.more_is_better else 'at most'} {figure.goal:g}",
    "reached": lambda figure: "yes" if figure.reached else "no",
}


@dataclass
class Report:
    """The rows of one suite on one device. A subclass has the tables, the goals and the picture of its rows."""

    subject: str  # the suite, a part of the file names
    device: str
    torch: str
    commit: str
    method: str  # a sentence with the duration of the measurement
    rows: list[Any] = field(default_factory=list)
    refusals: list[Refused] = field(default_factory=list)
    measured: list[Figure] = field(default_factory=list)  # figures that do not follow from the rows

    row_type: ClassVar[type[Row]]
    caption: ClassVar[str]  # of the picture

    @property
    def figures(self) -> list[Figure]:
        """The goals with the measured numbers."""
        return self.measured

    def tables(self) -> list[Table]:
        """Returns the tables of the rows."""
        raise NotImplementedError

    def printed_tables(self) -> list[Table]:
        return self.tables()

    def panels(self) -> list[Panel]:
        """Returns the parts of the picture."""
        raise NotImplementedError

    def sort(self) -> None:
        """Puts the rows of several parts of a run into the order of the suite."""

    @property
    def title(self) -> str:
        return f"{self.subject}: {self.device}, PyTorch {self.torch}, gdpa {self.commit}"

    def goals(self) -> list[Table]:
        figures = self.figures
        reached = f"Goals: {sum(figure.reached for figure in figures)} of {len(figures)} reached"
        return [Table.of(reached, FIGURE_COLUMNS, figures, texts=2)] if figures else []

    def show(self) -> None:
        print(self.title)
        for table in [*(self.printed_tables() if self.rows else []), *self.goals()]:
            table.show()
        for line in self.not_run():
            print(f"not run: {line}")

    def not_run(self) -> list[str]:
        """Returns one line for each system, direction and reason."""
        counted = Counter((refused.system, refused.direction, refused.reason) for refused in self.refusals)
        return [
            f"{system}, {direction}: {reason}" + (f" ({cases} cases)" if cases > 1 else "")
            for (system, direction, reason), cases in counted.items()
        ]

    def as_json(self) -> str:
        lists = {
            "figures": [figure.as_json() for figure in self.figures],
            "not_run": [asdict(refused) for refused in dict.fromkeys(self.refusals)],
            "rows": [asdict(row) for row in self.rows],
        }
        return document({name: getattr(self, name) for name in HEADING}, lists)

    def as_markdown(self, picture: str) -> str:
        tables = [*self.goals(), *(self.tables() if self.rows else [])]
        parts = [f"# {self.title}", self.method, *(table.as_markdown() for table in tables)]
        if self.rows:
            parts.append(f"![{self.caption}]({picture})")
        if self.refusals:
            parts += ["## Not run", "\n".join(f"- {line}" for line in self.not_run())]
        return "\n\n".join(parts) + "\n"

    def path(self, folder: Path, ending: str) -> Path:
        device = re.sub("[^a-z0-9]+", "-", self.device.lower().removeprefix("nvidia ")).strip("-")
        return folder / f"{self.subject}-{device}.{ending}"

    def write_document(self, folder: Path) -> Path:
        """Writes SUBJECT-DEVICE.json, from which `redraw` makes a report."""
        folder.mkdir(parents=True, exist_ok=True)
        path = self.path(folder, "json")
        path.write_text(self.as_json())
        return path

    def write(self, folder: Path) -> list[Path]:
        """Writes SUBJECT-DEVICE.json, SUBJECT-DEVICE.md and, if the report has rows, SUBJECT-DEVICE.png."""
        document, page, picture = self.write_document(folder), self.path(folder, "md"), self.path(folder, "png")
        page.write_text(self.as_markdown(picture.name))
        if self.rows:
            self.draw(picture)
        return [document, page, picture] if self.rows else [document, page]

    def draw(self, path: Path) -> None:
        """Writes the picture. The suffix of the path determines the format."""
        draw(path, self.title, self.panels())


def document(heading: Mapping[str, object], lists: Mapping[str, Sequence[object]]) -> str:
    """Returns a JSON document with one line for each entry of a list, so that a diff shows what changed."""
    parts = [f' "{name}": {json.dumps(value)}' for name, value in heading.items()]
    for name, entries in lists.items():
        lines = ",\n".join("  " + json.dumps(entry) for entry in entries)
        parts.append(f' "{name}": [\n{lines}\n ]' if entries else f' "{name}": []')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write_rows(path: Path | None, rows: Sequence[Any]) -> None:
    """Writes one JSON object for each row (a dataclass) to a file, or to standard output if the path is None."""
    text = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
    if path is None:
        print(text, end="")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(path: Path, kinds: Mapping[str, type[Report]], usual: type[Report]) -> Report:
    """Reads a document. `kinds` has the reports that belong to a subject. All other subjects have `usual` reports.

    Raises ValueError if the file is no document of this version.
    """
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        report = kinds.get(document["subject"], usual)(*(document[name] for name in HEADING))
        report.rows = [report.row_type(**row) for row in document["rows"]]
        report.refusals = [Refused(**refused) for refused in document["not_run"]]
        for figure in document["figures"]:
            del figure["reached"]
            report.measured.append(Figure(**figure))
        return report
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"redraw: expected a document that --report of this version has written, got {path}") from None


def merged(paths: Sequence[Path], kinds: Mapping[str, type[Report]], usual: type[Report]) -> Report:
    """Joins the documents of several parts of a run into one report. For a repeated row, the later document counts.

    Raises ValueError if a document has another subject or another device than the first document.
    """
    parts = [read(path, kinds, usual) for path in paths]
    whole = parts[0]
    rows: dict[object, Any] = {}
    refusals: dict[object, Refused] = {}
    for path, part in zip(paths, parts, strict=True):
        for name in ("subject", "device"):
            if getattr(part, name) != getattr(whole, name):
                raise ValueError(
                    f"redraw: expected parts of one run; {paths[0]} has the {name} {getattr(whole, name)!r}, "
                    f"{path} has {getattr(part, name)!r}"
                )
        for row in part.rows:
            rows[row.place] = row
            refusals.pop((row.system, row.direction, row.shape), None)
        refusals |= {(one.system, one.direction, one.shape): one for one in part.refusals}
    for name in ("torch", "commit", "method"):
        setattr(whole, name, "; ".join(dict.fromkeys(getattr(part, name) for part in parts)))
    whole.rows, whole.refusals = list(rows.values()), list(refusals.values())
    whole.measured = list({figure.what: figure for part in parts for figure in part.measured}.values())
    whole.sort()
    return whole


def heading(subject: str, device: str, seconds: float, rounds: int) -> tuple[str, str, str, str, str]:
    """Returns subject, device, PyTorch, commit and method of a new report, for the time and the number of rounds."""
    method = f"{rounds} rounds, {seconds / rounds:.2g} s for each system in a round, by docs/benchmarks.md"
    return subject, device, torch.__version__, command.commit(), method
