"""Measures times. Systems alternate on each batch, and a figure is the sum of the medians of the batches."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch

from gdpa.bench import command
from gdpa.bench.agreement import Disagreement
from gdpa.bench.cases import Case
from gdpa.bench.counts import bytes_of, floor_tflops, flops_of
from gdpa.bench.device import Device, Work
from gdpa.bench.goals import RateRow
from gdpa.bench.report import Figure, Refused, Report, reason_of
from gdpa.bench.systems import Operands, Prepared, System

Progress = Callable[[float, str], None]  # receives the finished part of the case and the name of the current step


@dataclass(frozen=True)
class Effort:
    """The duration of a measurement."""

    seconds: float = 0.5  # for each figure, over all rounds and batches
    rounds: int = 3


@dataclass
class Result:
    rows: list[Any] = field(default_factory=list)
    refusals: list[Refused] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    first_calls: defaultdict[str, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # seconds, with compilation

    def add(self, other: Result) -> None:
        self.rows += other.rows
        self.refusals += other.refusals
        self.figures += other.figures
        for system, seconds in other.first_calls.items():
            self.first_calls[system] += seconds


@dataclass
class Plan:
    """A run before it begins: its empty report, its steps, and the number of timed figures of all steps."""

    report: Report
    steps: Sequence[Callable[[Progress], Result]]
    figures: int


def busy_warning() -> str | None:
    """Returns a warning if the machine is busy. This affects PyTorch most, because its threads wait for each other."""
    load = os.getloadavg()[0]
    processors = len(os.sched_getaffinity(0))
    if load < 0.5 * processors:
        return None
    return f"warning: this machine is busy (load {load:.1f} on {processors} processors); the times are not reliable"


def part_of(progress: Progress, index: int, parts: int, what: str) -> Progress:
    """Returns the progress display of one part of a step."""
    return lambda done, text: progress((index + done) / parts, f"{what}, {text}")


def work_of(prepared: Prepared, direction: str) -> Work:
    """Returns a forward call without recording, or a backward call. The forward call before backward does not count."""
    if direction == "fwd":
        return Work(lambda _: forward_alone(prepared))
    return Work(prepared.backward, prepared.forward)


@torch.no_grad()
def forward_alone(prepared: Prepared) -> list[torch.Tensor]:
    return prepared.forward()


class BatchTimer:
    """The prepared systems of one batch. A system that fails is refused with its message."""

    def __init__(self, case: Case, device: Device, result: Result) -> None:
        self.case = case
        self.device = device
        self.result = result
        self.work: dict[tuple[str, str], Work] = {}

    @contextmanager
    def first_call(self, name: str, *figures: tuple[str, str]) -> Iterator[None]:
        """Takes the time of the first call of a system. An error refuses the figures, except a Disagreement."""
        begin = time.perf_counter()
        try:
            yield
        except Disagreement:
            raise
        except Exception as error:
            for figure in figures:
                self.refuse(figure, error)
            self.device.release()
        else:
            self.result.first_calls[name] += time.perf_counter() - begin

    def prepare(self, operands: Operands, system: System, directions: Sequence[str]) -> None:
        figures = [(system.name, direction) for direction in directions]
        with self.first_call(system.row_name, *figures):
            prepared = system.prepare(system.timed(self.case), operands)
            for figure in figures:
                self.work[figure] = work_of(prepared, figure[1])
                self.measure(figure, 0.0)  # warms up

    def measure(self, figure: tuple[str, str], seconds: float) -> list[float]:
        try:
            return self.device.times(self.work[figure], seconds)
        except Exception as error:
            self.refuse(figure, error)
            del self.work[figure]
        self.device.release()  # another call may need the memory of the failed call
        return []

    def rounds(self, effort: Effort, progress: Progress) -> tuple[dict[tuple[str, str], float], list[float]]:
        """Times the product with which rates are compared, if it exists, and then every figure.

        Returns the median seconds of each figure, and the seconds of each call of the product.
        """
        product = self.device.product(self.case.dtype)
        product_times: list[float] = []
        samples: dict[tuple[str, str], list[float]] = defaultdict(list)
        slice_seconds = effort.seconds / effort.rounds
        for round_index in range(effort.rounds):
            if product:
                product_times += self.device.times(product.work, slice_seconds)
            for position, figure in enumerate(list(self.work)):
                progress(
                    (round_index + position / len(self.work)) / effort.rounds,
                    f"{figure[0]} {figure[1]}, round {round_index + 1}",
                )
                if sum(samples[figure]) <= 2 * effort.seconds:  # a slow system may use its time before the last round
                    samples[figure] += self.measure(figure, slice_seconds)
        return {figure: median(samples[figure]) for figure in self.work}, product_times

    def refuse(self, figure: tuple[str, str], error: Exception) -> None:
        self.result.refusals.append(Refused(*figure, reason_of(error), self.case.name))


def measure(
    case: Case,
    systems: Sequence[System],
    directions: Sequence[str],
    effort: Effort,
    device: Device,
    progress: Progress = lambda done, text: None,
) -> Result:
    """Returns a row for each system and direction that can run the case, and a reason for each that cannot."""
    result = Result()
    for system in systems:
        reason = system.refusal(system.timed(case))
        if reason is not None:
            result.refusals += [Refused(system.name, direction, reason, case.name) for direction in directions]

    def able() -> dict[System, list[str]]:
        """Returns the directions of each system without a refusal."""
        refused = {(refused.system, refused.direction) for refused in result.refusals}
        left = {s: [direction for direction in directions if (s.name, direction) not in refused] for s in systems}
        return {system: directions for system, directions in left.items() if directions}

    batches = list(case.batches())
    totals: dict[tuple[str, str], float] = defaultdict(float)
    product_times: list[float] = []
    effort_of_batch = Effort(effort.seconds / len(batches), effort.rounds)
    for index, batch in enumerate(batches):
        of_batch = part_of(progress, index, len(batches), f"batch {index + 1}/{len(batches)}")
        operands, timer = Operands.random(batch, device.torch_device), BatchTimer(batch, device, result)
        for system, of_system in able().items():
            of_batch(0.0, f"{system.name}, first call")
            timer.prepare(operands, system, of_system)
        figures, of_product = timer.rounds(effort_of_batch, of_batch)
        product_times += of_product
        for figure, seconds in figures.items():
            totals[figure] += seconds
        device.release()
    product = device.product(case.dtype)
    product_flops = product.flops / median(product_times) if product else None
    result.rows = [
        make_row(case, system, direction, totals[system.name, direction], device, product_flops)
        for system, timed in able().items()
        for direction in timed
    ]
    return result


def row_of(system: str, version: str, direction: str, device: str, case: Case) -> dict[str, Any]:
    """Returns the fields that the rows of all suites begin with."""
    return {
        "system": system, "version": version, "commit": command.commit(), "direction": direction, "device": device,
        "shape": case.name, "dtype": case.dtype, "activation": case.activation,
    }  # fmt: skip


def make_row(
    case: Case, system: System, direction: str, seconds: float, device: Device, product_flops: float | None
) -> RateRow:
    longest = max(case.lengths_q)
    room = longest * len(case.lengths_q)
    rates = device.rates(case.dtype, product_flops)
    timed = system.timed(case)
    timed = replace(timed, activation=system.function or timed.activation)
    return RateRow(
        **row_of(system.row_name, system.version(), direction, device.describe(), timed),
        accuracy="fast" if system.row_name == "gdpa" else None,
        deterministic=case.deterministic,
        mask=case.mask,
        B=len(case.lengths_q),
        H_q=case.heads,
        H_k=case.heads,
        d=case.head_dim,
        d_v=case.head_dim,
        q=longest,
        kv=max(case.lengths_k),
        fill=sum(case.lengths_q) / room if room else 0.0,
        shared_q=case.shared_q,
        shared_kv=case.shared_kv,
        bytes=bytes_of(case, direction),
        ms=seconds * 1e3,
        tflops=flops_of(case, direction) / seconds * 1e-12,
        cublas_tflops=product_flops * 1e-12 if product_flops else None,
        floor_tflops=floor_tflops(rates, case, direction) if rates else None,
    )
