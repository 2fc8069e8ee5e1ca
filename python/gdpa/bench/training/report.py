"""The rows of training steps, and their report: a table, and a picture of the milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gdpa.bench.document import Document, markdown_table
from gdpa.bench.measure import Result
from gdpa.bench.plot import grouped_bars
from gdpa.bench.rows import Refused, print_not_run, print_table, share

TRAINING = "training-step"  # the subject of its documents
STEP = "step"  # replaces the direction of a row of rates
OURS = "gdpa"
GIB = 2.0**30
COLUMNS = (
    "sequences", "tokens", "system", "f", "compiled", "ms", "times gdpa's", "M tokens/s", "TFLOP/s", "of cuBLAS",
    "peak GiB", "difference",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A training step of one system; docs/benchmarks.md explains the fields."""

    system: str
    version: str
    commit: str
    device: str
    shape: str
    dtype: str
    activation: str
    compiled: bool
    B: int
    H: int
    d: int
    ffn_rows: int
    max_length: int
    tokens: int
    ms: float
    times_gdpa: float | None
    tokens_per_second: float
    tflops: float
    cublas_tflops: float | None
    peak_bytes: int | None
    difference: float | None

    direction: ClassVar[str] = STEP


@dataclass(frozen=True)
class TrainingReport(Document):
    steps: list[Step]
    result: Result  # the refused blocks

    caption = "milliseconds of a training step of every system on every shape"

    @property
    def rows(self) -> list[Step]:
        return self.steps

    @property
    def refusals(self) -> list[Refused]:
        return self.result.refusals

    def tables(self) -> list[str]:
        if not self.steps:
            return []
        block = self.steps[0]
        what = f"{block.H} heads of {block.d} and a PFFN of {block.ffn_rows} rows, in {block.dtype}"
        return [f"Forward, backward and AdamW of a block of {what}.", markdown_table(COLUMNS, lines(self.steps))]

    def show(self) -> None:
        print_table(f"{self.device}, PyTorch {self.torch}", COLUMNS, lines(self.steps), texts=1)
        print_not_run(self.refusals)

    def draw(self, path: Path) -> None:
        """Draws a group of bars for each shape, with one bar for each system. This function needs matplotlib."""
        bars = {
            (f"{step.shape} rows", f"{step.system} ({step.activation})"): (step.ms, multiple(step))
            for step in self.steps
        }
        grouped_bars(path, self.title, "ms a training step", bars)


def multiple(step: Step) -> str:
    """Returns the time divided by gdpa's time, as text."""
    return f"{step.times_gdpa:.2f}" if step.times_gdpa else ""


def lines(steps: Sequence[Step]) -> list[tuple[str, ...]]:
    """Returns the cells of COLUMNS, one line for each step."""
    return [
        (
            step.shape,
            str(step.tokens),
            step.system,
            step.activation,
            "yes" if step.compiled else "no",
            f"{step.ms:.2f}",
            multiple(step),
            f"{step.tokens_per_second * 1e-6:.2f}",
            f"{step.tflops:.3g}",
            share(step.tflops, step.cublas_tflops),
            "" if step.peak_bytes is None else f"{step.peak_bytes / GIB:.1f}",
            "" if step.difference is None else f"{step.difference:.1e}",
        )
        for step in steps
    ]
