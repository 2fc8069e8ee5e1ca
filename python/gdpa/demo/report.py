"""The measurements of the demonstration, errors of gdpa and PyTorch against fp64 and times of both, and its report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import gdpa
from gdpa.bench.cases import DIRECTIONS
from gdpa.bench.counts import flops_of
from gdpa.bench.device import Device
from gdpa.bench.measure import BatchTimer, Effort, Progress, Result, row_of, work_of
from gdpa.bench.plot import Bar, Group, Panel
from gdpa.bench.progress import silent
from gdpa.bench.report import Report, Row, Table, number
from gdpa.bench.systems import Operands, System
from gdpa.demo.histories import Embedding, Histories
from gdpa.demo.uses import WITH_GDPA, Reference, Use, WithoutPadding, WithPadding, without_padding

RESULTS = ("O", "dQ", "dK", "dV")
ROUNDS = 3  # of the systems on a sample


@dataclass(frozen=True, kw_only=True)
class DemoRow(Row):
    """One use (the shape) with one function. gdpa computes all batches, and PyTorch computes the samples."""

    B: int
    H: int
    d: int
    forward_ms: float  # of gdpa, over all batches
    backward_ms: float
    forward_gflops: float  # over the scores that the mask selects
    backward_gflops: float
    speed_up_over_padded: float | None  # forward and backward together over PyTorch on the samples
    speed_up_over_packed: float | None  # None: PyTorch cannot compute the use without padding
    errors: dict[str, dict[str, float]]  # the relative 2-norm of gdpa's and PyTorch's error of each result

    @property
    def label(self) -> str:
        """The short name of the function in a table: its name, or "own" for an expression."""
        return self.activation if self.activation.isidentifier() else "own"


def speed_up(row: DemoRow) -> str:
    packed = number(row.speed_up_over_packed, ".1f")
    return number(row.speed_up_over_padded, ".1f") + "x" + (f" ({packed}x)" if packed else "")


def errors_of(name: str) -> Callable[[DemoRow], str]:
    return lambda row: "|".join(f"{error:.1e}" for error in row.errors[name].values()).replace("e-0", "e-")


NAMES: dict[str, Callable[[DemoRow], str]] = {"use": lambda row: str(row.shape), "f": lambda row: row.label}
ERRORS = NAMES | {name: errors_of(name) for name in RESULTS}
TIMES = NAMES | {
    "fwd ms": lambda row: f"{row.forward_ms:.1f}",
    "bwd ms": lambda row: f"{row.backward_ms:.1f}",
    "fwd GFLOP/s": lambda row: f"{row.forward_gflops:.0f}",
    "bwd GFLOP/s": lambda row: f"{row.backward_gflops:.0f}",
    "speed-up": speed_up,
}


class DemoReport(Report):
    row_type = DemoRow
    caption = "rates of gdpa with its speed-up, and errors of gdpa and PyTorch"

    def tables(self) -> list[Table]:
        errors = "Error against fp64 (relative 2-norm): gdpa | PyTorch in the same type"
        times = "All histories once; speed-up of forward and backward over padded (packed) PyTorch"
        return [Table.of(what, of, self.rows, len(NAMES)) for what, of in ((errors, ERRORS), (times, TIMES))]

    def panels(self) -> list[Panel]:
        def group(row: DemoRow, bars: dict[str, Bar]) -> Group:
            return Group(f"{row.shape}\n{row.label}", bars)

        def rates(row: DemoRow) -> dict[str, Bar]:
            return {"forward": Bar(row.forward_gflops, speed_up(row)), "backward": Bar(row.backward_gflops)}

        def errors(row: DemoRow) -> dict[str, Bar]:
            return {f"{name}, {who}": Bar(one) for name, of in row.errors.items() for who, one in of.items()}

        return [
            Panel("GFLOP/s; speed-up over padded (packed) PyTorch", [group(row, rates(row)) for row in self.rows]),
            Panel("error against fp64, relative 2-norm", [group(row, errors(row)) for row in self.rows]),
        ]

    def path(self, folder: Path, ending: str) -> Path:
        return folder / f"demo.{ending}"


def sampled(batches: int, wanted: int) -> set[int]:
    """Returns the indices of `wanted` batches, spread evenly."""
    wanted = min(wanted, batches)
    return {(2 * i + 1) * batches // (2 * wanted) for i in range(wanted)}


def results_of(system: System, operands: Operands) -> list[Tensor]:
    """Returns O, dQ, dK and dV in the layout of the system."""
    return system.prepare(system.timed(operands.case), operands).results()


def squares_of(operands: Operands) -> Tensor:
    """Returns the squared 2-norms of O, dQ, dK and dV in fp64, and of the differences of gdpa and of padded PyTorch."""
    case = operands.case
    exact = results_of(Reference().variant(dtype="float64"), operands)
    lengths = case.lengths_q, case.lengths_q, case.lengths_k, case.lengths_k
    padded = map(without_padding, results_of(WithPadding(), operands), lengths)
    results = zip(exact, results_of(WITH_GDPA, operands), padded, strict=True)
    norms = [
        torch.stack([want.norm(), (got - want).norm(), (of_padded - want).norm()]) for want, got, of_padded in results
    ]
    return torch.stack(norms).square().cpu()


def measure(
    use: Use, activation: str, batches: Sequence[Histories], embedding: Embedding, samples: int, device: Device,
    progress: Progress,
) -> DemoRow:  # fmt: skip
    """Runs gdpa on every batch, and compares it with fp64 and PyTorch on the samples."""
    seconds, flops = (dict.fromkeys(DIRECTIONS, 0.0) for _ in range(2))
    of_samples: defaultdict[str, float] = defaultdict(float)
    squares = torch.zeros(len(RESULTS), 3, dtype=torch.float64)
    chosen = sampled(len(batches), samples)
    for index, batch in enumerate(batches):
        operands = use.operands(batch, embedding, activation)
        prepared = WITH_GDPA.prepare(operands.case, operands)
        for direction in DIRECTIONS:
            work = work_of(prepared, direction)
            if index == 0:  # the first call parses the function and generates the products for this head_dim
                device.call_times(work, 1)
            seconds[direction] += sum(device.call_times(work, 1))
            flops[direction] += flops_of(operands.case, direction)
        if index in chosen:
            squares += squares_of(operands)
            timer = BatchTimer(operands.case, device, Result())
            for system in (WITH_GDPA, WithPadding(), WithoutPadding()):
                if system.refusal(operands.case) is None:
                    timer.prepare(operands, system, DIRECTIONS)
            for (name, _), taken in timer.rounds(Effort(0.0, ROUNDS), silent)[0].items():
                of_samples[name] += taken
        progress((index + 1) / len(batches), f"{use.name}, {activation}, batch {index + 1} of {len(batches)}")
    forward, backward = DIRECTIONS
    speed_ups = {name: taken / of_samples["gdpa"] for name, taken in of_samples.items()}
    errors = (squares[:, 1:] / squares[:, :1]).sqrt().tolist()
    return DemoRow(
        **row_of("gdpa", gdpa.__version__, "fwd+bwd", device.describe(), operands.case),
        B=sum(batch.users for batch in batches),
        H=operands.case.heads,
        d=operands.case.head_dim,
        forward_ms=seconds[forward] * 1e3,
        backward_ms=seconds[backward] * 1e3,
        forward_gflops=flops[forward] / seconds[forward] / 1e9,
        backward_gflops=flops[backward] / seconds[backward] / 1e9,
        speed_up_over_padded=speed_ups.get("padded"),
        speed_up_over_packed=speed_ups.get("packed"),
        errors={
            name: dict(zip(("gdpa", "pytorch"), of, strict=True)) for name, of in zip(RESULTS, errors, strict=True)
        },
    )
