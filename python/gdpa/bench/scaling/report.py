"""The report of scaling: the goals, a table, and a picture of the throughput divided by the throughput of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpa.bench.document import Document, markdown_table
from gdpa.bench.figures import COLUMNS as GOAL_COLUMNS
from gdpa.bench.figures import Figure
from gdpa.bench.plot import COLOURS, GOAL_COLOURS
from gdpa.bench.rows import Refused, print_table

SCALING = "scaling"  # the subject of its documents
FSDP, CONTEXT = "FSDP2", "context parallelism"
STEP = "step"
GOALS = {FSDP: 0.925, CONTEXT: 0.85}  # the scaling divided by the number of GPUs
COLUMNS = (
    "strategy", "", "mask", "shape", "ms on 1", "ms on {n}", "Mtokens/s on 1", "Mtokens/s on {n}", "scaling",
    "of {n}", "largest part", "difference",
)  # fmt: skip


@dataclass(frozen=True)
class ScalingRow:
    """The throughput of one rank and of all ranks; docs/benchmarks.md explains the fields."""

    system: str
    version: str
    commit: str
    direction: str
    device: str
    shape: str
    dtype: str
    activation: str
    mask: str
    B: int
    H: int
    d: int
    q: int
    tokens: int
    processes: int
    backend: str
    ms_one: float
    ms: float
    tokens_per_second_one: float
    tokens_per_second: float
    scaling: float
    largest_part: float
    difference: float

    def cells(self) -> tuple[str, ...]:
        rates = (self.tokens_per_second_one, self.tokens_per_second)
        return (
            self.system, self.direction, self.mask, self.shape, f"{self.ms_one:.3f}", f"{self.ms:.3f}",
            *(f"{rate * 1e-6:.3f}" for rate in rates), f"{self.scaling:.3f}", f"{self.scaling / self.processes:.3f}",
            f"{self.largest_part:.3f}", f"{self.difference:.1e}",
        )  # fmt: skip

    @property
    def goal(self) -> Figure:
        """The goal of this row. Processes of one CPU share its cores, so their scaling is not compared with a goal."""
        what = f"{self.system}, {self.direction}, {self.shape}, mask {self.mask}"
        goal = GOALS[self.system] * self.processes
        if self.backend != "nccl":
            return Figure(what, None, goal, "needs several GPUs")
        return Figure(what, self.scaling, goal, f"throughput of {self.processes} GPUs by that of one")


@dataclass(frozen=True)
class ScalingReport(Document):
    measured: list[ScalingRow]

    caption = "throughput of all GPUs divided by the throughput of one, with the goals"

    @property
    def rows(self) -> list[ScalingRow]:
        return self.measured

    @property
    def refusals(self) -> list[Refused]:
        return []

    @property
    def figures(self) -> list[Figure]:
        return [row.goal for row in self.rows]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.format(n=self.rows[0].processes) for column in COLUMNS)

    def findings(self) -> dict[str, Any]:
        return {"figures": [figure.as_json() for figure in self.figures]}

    def tables(self) -> list[str]:
        row = self.rows[0]
        what = f"{row.processes} processes with {row.backend}, {row.H} heads of {row.d}, {row.dtype}, {row.activation}."
        goals = markdown_table(GOAL_COLUMNS, [figure.cells() for figure in self.figures])
        return [goals, what, markdown_table(self.columns, [row.cells() for row in self.rows])]

    def show(self) -> None:
        print_table(f"{self.device}, PyTorch {self.torch}", self.columns, [row.cells() for row in self.rows], texts=4)
        print_table("goals", GOAL_COLUMNS, [figure.cells() for figure in self.figures], texts=2)

    def draw(self, path: Path) -> None:
        """Draws a bar for each row, its goal, and a line at the number of ranks. This function needs matplotlib."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axis = pyplot.subplots(figsize=(8.0, 3.8), layout="constrained")
        bars = axis.bar(range(len(self.rows)), [row.scaling for row in self.rows], 0.6, color=COLOURS[0])
        axis.bar_label(bars, [f"{row.scaling:.2f}" for row in self.rows], fontsize=8)
        for position, goal in enumerate(self.figures):
            if goal.measured is not None:
                colour = GOAL_COLOURS[goal.reached]
                axis.hlines(goal.goal, position - 0.3, position + 0.3, color=colour, linewidth=2.5)
        axis.axhline(self.rows[0].processes, color="black", linewidth=1, linestyle="dashed")
        labels = [f"{row.system}\n{row.direction}, mask {row.mask}" for row in self.rows]
        axis.set_xticks(range(len(self.rows)), labels, fontsize=8)
        axis.set_ylabel("times the throughput of one")
        axis.spines[["top", "right"]].set_visible(False)
        figure.suptitle(self.title, fontsize=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        pyplot.close(figure)
