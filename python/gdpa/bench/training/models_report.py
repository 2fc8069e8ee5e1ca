"""The report of training steps of models: goals, tables, and a picture of the systems and of the parts of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpa.bench.document import Document, markdown_table
from gdpa.bench.figures import COLUMNS as GOAL_COLUMNS
from gdpa.bench.figures import Figure
from gdpa.bench.measure import Result
from gdpa.bench.plot import COLOURS, bars_on
from gdpa.bench.rows import Refused, print_not_run, print_table
from gdpa.bench.training.breakdown import PARTS
from gdpa.bench.training.report import GIB, OURS, STEP

MODELS_SUBJECT = "training-models"  # the subject of its documents
SAME_FUNCTION, SOFTMAX = 1.3, 1.2  # the goals of the throughput
VARLEN = "PyTorch varlen"
COLUMNS = (
    "model", "system", "f", "compiled", "sequences", "ms", "M tokens/s", "gdpa's speed-up", "peak GiB", "KiB a token",
    "host waits", "difference",
)  # fmt: skip
PART_COLUMNS = ("model", *(f"{part}, ms" for part in PARTS), "sum, ms")


@dataclass(frozen=True)
class ModelStep:
    """A training step of a model on one system; docs/benchmarks.md explains the fields."""

    system: str
    version: str
    commit: str
    device: str
    shape: str
    dtype: str
    activation: str
    model: str
    layers: int
    compiled: bool
    B: int
    H: int
    d: int
    max_length: int
    tokens: int
    ms: float
    tokens_per_second: float
    gdpa_speedup: float | None
    peak_bytes: int | None
    difference: float | None
    host_waits: bool | None
    parts: dict[str, float] | None

    @property
    def direction(self) -> str:
        return step_of(self.model)

    @property
    def bytes_of_a_token(self) -> float | None:
        return None if self.peak_bytes is None else self.peak_bytes / self.tokens

    def cells(self) -> tuple[str, ...]:
        def number(value: float | None, form: str) -> str:
            return "" if value is None else format(value, form)

        return (
            self.model,
            self.system,
            self.activation,
            yes_or_no(self.compiled),
            str(self.B),
            f"{self.ms:.2f}",
            f"{self.tokens_per_second * 1e-6:.2f}",
            number(self.gdpa_speedup, ".2f"),
            number(self.peak_bytes and self.peak_bytes / GIB, ".1f"),
            number(self.bytes_of_a_token and self.bytes_of_a_token / 1024, ".1f"),
            "" if self.host_waits is None else yes_or_no(self.host_waits),
            number(self.difference, ".1e"),
        )


def step_of(model: str) -> str:
    """Returns the direction of a row, which also names the model of a refusal."""
    return f"{STEP} of {model}"


def yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def goals_of(shape: str, steps: Sequence[ModelStep]) -> list[Figure]:
    """Returns the goals of one model: its throughput against other systems, its memory, and no waiting."""
    ours = next((step for step in steps if step.system == OURS), None)
    others = [step for step in steps if step.system != OURS]
    same = [step for step in others if step.activation != "softmax"]
    varlen = [step for step in others if step.system == VARLEN]

    def speedup(what: str, rivals: list[ModelStep], goal: float) -> Figure:
        best = max(rivals, key=lambda step: step.tokens_per_second, default=None)
        if best is None or ours is None or best.gdpa_speedup is None:
            return Figure(f"{shape}: {what}", None, goal, "gdpa and this system must run")
        return Figure(f"{shape}: {what} ({best.system})", best.gdpa_speedup, goal, "times the throughput")

    figures = [
        speedup("best system with the same function", same, SAME_FUNCTION),
        speedup("softmax", varlen, SOFTMAX),
    ]
    memory = [step.bytes_of_a_token for step in others if step.bytes_of_a_token is not None]
    mine = ours.bytes_of_a_token if ours else None
    what = f"{shape}: peak memory of a token"
    if mine is None or not memory:
        figures.append(Figure(what, None, 1.0, "not measured on this device", more_is_better=False))
    else:
        figures.append(Figure(what, mine / min(memory), 1.0, "times the least of the others", more_is_better=False))
    if ours is not None and ours.host_waits is not None:
        figures.append(Figure(f"{shape}: the host waits", float(ours.host_waits), 0.0, "1 if it does", False))
    return figures


@dataclass(frozen=True)
class ModelsReport(Document):
    steps: list[ModelStep]
    result: Result  # the refused systems

    caption = "milliseconds for a million tokens, and the parts of gdpa's step"

    @property
    def rows(self) -> list[ModelStep]:
        return self.steps

    @property
    def refusals(self) -> list[Refused]:
        return self.result.refusals

    @property
    def shapes(self) -> list[str]:
        return list(dict.fromkeys(step.shape for step in self.steps))

    @property
    def figures(self) -> list[Figure]:
        by_shape = ((shape, [step for step in self.steps if step.shape == shape]) for shape in self.shapes)
        return [figure for shape, steps in by_shape for figure in goals_of(shape, steps)]

    @property
    def with_parts(self) -> list[ModelStep]:
        return [step for step in self.steps if step.parts]

    def findings(self) -> dict[str, Any]:
        return {"figures": [figure.as_json() for figure in self.figures]}

    def part_lines(self) -> list[tuple[str, ...]]:
        lines = []
        for step in self.with_parts:
            times = [(step.parts or {})[part] for part in PARTS]
            cells = (f"{time:.2f} ({time / sum(times):.0%})" for time in times)
            lines.append((step.model, *cells, f"{sum(times):.2f}"))
        return lines

    def tables(self) -> list[str]:
        if not self.steps:
            return []
        step = self.steps[0]
        what = (
            f"Forward, backward and AdamW of models of {step.layers} layers with {step.H} heads of {step.d}, sequences "
            f"of 1 to {step.max_length} rows, {step.dtype}."
        )
        parts = [markdown_table(GOAL_COLUMNS, [figure.cells() for figure in self.figures]), what]
        parts.append(markdown_table(COLUMNS, [step.cells() for step in self.steps]))
        if self.with_parts:
            parts += ["## The parts of gdpa's step", markdown_table(PART_COLUMNS, self.part_lines())]
        return parts

    def show(self) -> None:
        title = f"{self.device}, PyTorch {self.torch}"
        print_table(title, COLUMNS, [step.cells() for step in self.steps], texts=4)
        if self.with_parts:
            print_table("the parts of gdpa's step", PART_COLUMNS, self.part_lines(), texts=1)
        print_table("goals", GOAL_COLUMNS, [figure.cells() for figure in self.figures], texts=2)
        print_not_run(self.refusals)

    def draw(self, path: Path) -> None:
        """Draws a group of bars for each model, and the parts of gdpa's step. This function needs matplotlib."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        bars = {
            (step.model, f"{step.system} ({step.activation})"): (
                1e9 / step.tokens_per_second,
                f"{step.gdpa_speedup:.2f}" if step.gdpa_speedup else "",
            )
            for step in self.steps
        }
        systems = len({step.system for step in self.steps})
        size = (max(9.0, 0.7 * len(self.shapes) * systems), 4.6)
        figure, (left, right) = pyplot.subplots(1, 2, figsize=size, width_ratios=(3, 2), layout="constrained")
        bars_on(left, "ms for a million tokens", bars)
        for position, step in enumerate(self.with_parts):
            begin = 0.0
            for index, part in enumerate(PARTS):
                time = (step.parts or {})[part]
                label = part if position == 0 else None
                right.bar(position, time, 0.6, bottom=begin, color=COLOURS[index], label=label)
                begin += time
        right.set_xticks(range(len(self.with_parts)), [step.model for step in self.with_parts], fontsize=8)
        right.set_ylabel("the parts of gdpa's step, ms")
        right.spines[["top", "right"]].set_visible(False)
        for axis in (left, right) if self.with_parts else (left,):
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=3, fontsize=7, frameon=False)
        figure.suptitle(self.title, fontsize=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        pyplot.close(figure)
