"""The report of norms around attention: the goal, a table, and a picture of the milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpa.bench.document import Document, markdown_table
from gdpa.bench.figures import COLUMNS as GOAL_COLUMNS
from gdpa.bench.figures import Figure
from gdpa.bench.measure import Result
from gdpa.bench.plot import grouped_bars
from gdpa.bench.rows import Refused, print_not_run, print_table

NORMS = "norms"  # the subject of its documents
FUSED, UNFUSED = "gdpa, fused", "PyTorch's norms"
COMPILED = ", compiled"  # the end of the name of a form under torch.compile
WHOLE = "norms and attention"
GOAL = 1.25
COLUMNS = ("part", "form", "ms", "times fused", "passes", "TB/s", "difference")


@dataclass(frozen=True)
class FormRow:
    """The time of forward and backward of one form; docs/benchmarks.md explains the fields."""

    system: str
    version: str
    commit: str
    direction: str
    device: str
    shape: str
    dtype: str
    activation: str
    B: int
    H: int
    d: int
    q: int
    kv: int
    tokens: int
    ms: float
    times_fused: float | None
    passes: int | None
    tb_per_second: float | None
    difference: float | None

    def cells(self) -> tuple[str, ...]:
        return (
            self.direction,
            self.system,
            f"{self.ms:.3f}",
            f"{self.times_fused:.2f}" if self.times_fused else "",
            str(self.passes or ""),
            f"{self.tb_per_second:.2f}" if self.tb_per_second else "",
            "" if self.difference is None else f"{self.difference:.1e}",
        )


@dataclass(frozen=True)
class NormsReport(Document):
    forms: list[FormRow]
    result: Result  # the refused forms

    caption = "milliseconds of forward and backward of every form"

    @property
    def rows(self) -> list[FormRow]:
        return self.forms

    @property
    def refusals(self) -> list[Refused]:
        return self.result.refusals

    @property
    def goal(self) -> Figure:
        """The time of the unfused sequence under torch.compile, divided by the time of the fused form."""
        what = "LayerNorm, GDPA, RMSNorm and residual, fused against unfused under torch.compile"
        times = {row.system: row.ms for row in self.rows if row.direction == WHOLE}
        ours, theirs = times.get(FUSED), times.get(UNFUSED + COMPILED)
        if ours is None or theirs is None:
            return Figure(what, None, GOAL, "both forms must run, on a GPU")
        return Figure(what, theirs / ours, GOAL, "times the speed")

    def findings(self) -> dict[str, Any]:
        return {"figures": [self.goal.as_json()]}

    def tables(self) -> list[str]:
        if not self.rows:
            return []
        row = self.rows[0]
        what = f"{row.shape}, {row.H} heads of {row.d}, {row.dtype}, {row.activation}. Forward and backward."
        forms = markdown_table(COLUMNS, [row.cells() for row in self.rows])
        return [markdown_table(GOAL_COLUMNS, [self.goal.cells()]), what, forms]

    def show(self) -> None:
        title = f"{self.device}, PyTorch {self.torch}"
        print_table(title, COLUMNS, [row.cells() for row in self.rows], texts=2)
        print_table("goal", GOAL_COLUMNS, [self.goal.cells()], texts=2)
        print_not_run(self.refusals)

    def draw(self, path: Path) -> None:
        bars = {(row.direction, row.system): (row.ms, f"{row.times_fused:.2f}") for row in self.rows if row.times_fused}
        grouped_bars(path, self.title, "ms, forward and backward", bars)
