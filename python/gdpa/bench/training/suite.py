"""The suite training: its options, its steps, and its report."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

from gdpa.bench.command_line import count
from gdpa.bench.device import Device
from gdpa.bench.goals import OURS
from gdpa.bench.measure import Effort, Plan
from gdpa.bench.plot import Bar, Group, Panel
from gdpa.bench.report import Figure, Report, Table, grouped, heading, number, share
from gdpa.bench.systems import choose_systems
from gdpa.bench.training.breakdown import PARTS
from gdpa.bench.training.model_step import TrainingRow, measure_model
from gdpa.bench.training.models import MODELS, shapes_of

HELP = "A training step of a block (projections, attention, PFFN) and of models, with gdpa, padded, and with softmax"
SAME_FUNCTION, SOFTMAX = 1.3, 1.2  # the goals of the throughput
MODELS_WITH_GOALS = [model for model in MODELS if model != "block"]
VARLEN = "PyTorch varlen"
GIB = 2.0**30


def yes_or_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


COLUMNS: dict[str, Callable[[TrainingRow], str]] = {
    "shape": lambda row: str(row.shape),
    "system": lambda row: row.system,
    "f": lambda row: row.activation,
    "compiled": lambda row: yes_or_no(row.compiled),
    "sequences": lambda row: str(row.B),
    "ms": lambda row: f"{row.ms:.2f}",
    "M tokens/s": lambda row: f"{row.tokens_per_second * 1e-6:.2f}",
    "gdpa's speed-up": lambda row: number(row.gdpa_speedup, ".2f"),
    "TFLOP/s": lambda row: number(row.tflops, ".3g"),
    "of cuBLAS": lambda row: share(row.tflops or 0.0, row.cublas_tflops),
    "peak GiB": lambda row: number(row.peak_bytes and row.peak_bytes / GIB, ".1f"),
    "KiB a token": lambda row: number(row.bytes_of_a_token and row.bytes_of_a_token / 1024, ".1f"),
    "host waits": lambda row: yes_or_no(row.host_waits),
    "difference": lambda row: number(row.difference, ".1e"),
}


def goals_of(shape: str, rows: Sequence[TrainingRow]) -> list[Figure]:
    """Returns the goals of one model: its throughput against other systems, its memory, and no waiting."""
    ours = next((row for row in rows if row.system == OURS), None)
    others = [row for row in rows if row.system != OURS]
    same = [row for row in others if row.activation != "softmax"]
    varlen = [row for row in others if row.system == VARLEN]

    def speedup(what: str, rivals: list[TrainingRow], goal: float) -> Figure:
        best = max(rivals, key=lambda row: row.tokens_per_second, default=None)
        if best is None or ours is None or best.gdpa_speedup is None:
            return Figure(f"{shape}: {what}", None, goal, "gdpa and this system must run")
        return Figure(f"{shape}: {what} ({best.system})", best.gdpa_speedup, goal, "times the throughput")

    figures = [
        speedup("best system with the same function", same, SAME_FUNCTION),
        speedup("softmax", varlen, SOFTMAX),
    ]
    memory = [row.bytes_of_a_token for row in others if row.bytes_of_a_token is not None]
    mine = ours.bytes_of_a_token if ours else None
    ratio = mine / min(memory) if mine is not None and memory else None
    unit = "not measured on this device" if ratio is None else "times the least of the others"
    figures.append(Figure(f"{shape}: peak memory of a token", ratio, 1.0, unit, more_is_better=False))
    if ours is not None and ours.host_waits is not None:
        figures.append(Figure(f"{shape}: the host waits", float(ours.host_waits), 0.0, "1 if it does", False))
    return figures


class TrainingReport(Report):
    row_type = TrainingRow
    caption = "milliseconds for a million tokens, and the parts of gdpa's step"

    def by_shape(self) -> dict[str, list[TrainingRow]]:
        return grouped(self.rows, lambda row: str(row.shape))

    @property
    def figures(self) -> list[Figure]:
        shapes = self.by_shape().items()
        return [one for shape, rows in shapes if rows[0].model in MODELS_WITH_GOALS for one in goals_of(shape, rows)]

    def parts(self) -> dict[str, dict[str, float]]:
        """Returns the milliseconds of each part of gdpa's step for each shape, as far as they are known."""
        return {str(row.shape): row.parts for row in self.rows if row.parts}

    def tables(self) -> list[Table]:
        row = self.rows[0]
        what = f"Forward, backward and AdamW with {row.H} heads of {row.d}, {row.dtype}"
        tables = [Table.of(what, COLUMNS, self.rows, texts=3)]
        if self.parts():
            lines = []
            for shape, parts in self.parts().items():
                whole = sum(parts.values())
                cells = (f"{parts[part]:.2f} ({parts[part] / whole:.0%})" for part in PARTS)
                lines.append((shape, *cells, f"{whole:.2f}"))
            columns = ("shape", *(f"{part}, ms" for part in PARTS), "sum, ms")
            tables.append(Table("The parts of gdpa's step", columns, lines, texts=1))
        return tables

    def panels(self) -> list[Panel]:
        def bar(row: TrainingRow) -> Bar:
            return Bar(1e9 / row.tokens_per_second, number(row.gdpa_speedup, ".2f"))

        groups = [
            Group(shape.replace(", ", "\n"), {f"{row.system} ({row.activation})": bar(row) for row in rows})
            for shape, rows in self.by_shape().items()
        ]
        parts = [
            Group(shape.replace(", ", "\n"), {part: Bar(parts[part], f"{parts[part]:.1f}") for part in PARTS})
            for shape, parts in self.parts().items()
        ]
        panels = [Panel("ms for a million tokens", groups), Panel("parts of gdpa's step, ms", parts)]
        return [panel for panel in panels if panel.groups]

    def sort(self) -> None:
        self.rows.sort(key=lambda row: list(MODELS).index(row.model))


REPORT = TrainingReport


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME",
        help=f"any of {', '.join(MODELS)} (all)",
    )  # fmt: skip
    parser.add_argument("--layers", type=count, default=2, metavar="N", help="layers of a model (2)")
    parser.add_argument(
        "--limit", type=float, default=60.0, metavar="S",
        help="seconds for each shape, after which no further system begins; 0 has no limit (60)",
    )  # fmt: skip


def plan(options: argparse.Namespace, device: Device, effort: Effort) -> Plan:
    kind = device.torch_device.type
    systems = [one for one in choose_systems(options.systems, options.without, kind) if one.can_train]
    if not systems:
        raise ValueError(
            "--systems: expected gdpa, padded, FlexAttention or a system on packed operands; got "
            f"{' '.join(options.systems or [])!r}"
        )
    systems.sort(key=lambda system: system.name != OURS)
    compile = kind == "cuda"
    models = dict.fromkeys(options.model)
    shapes = [shape for one in models for shape in shapes_of(one, options.layers, kind, options.scale_batch)]
    steps = [partial(measure_model, shape, systems, compile, options.limit, effort, device) for shape in shapes]
    report = TrainingReport(*heading(options.command, device.describe(), effort.seconds, effort.rounds))
    return Plan(report, steps, len(shapes) * (len(systems) + compile))
