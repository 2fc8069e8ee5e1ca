"""Takes the times: systems take turns on one batch after the other; a figure is the sum of the batches' medians."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from gdpa.bench import command
from gdpa.bench.cases import Case
from gdpa.bench.rows import Rates, Refused, Row
from gdpa.bench.systems import Gdpa, Operands, Prepared, System

DIRECTIONS = ("fwd", "bwd")


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    seconds: float = 0.5  # for each figure, all rounds and batches together
    rounds: int = 3


@dataclass
class Result:
    rows: list[Row] = field(default_factory=list)
    refusals: list[Refused] = field(default_factory=list)


def describe_device() -> str:
    """As `gdpa bench` names it: the processor and the threads."""
    processors = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in processors if line.startswith("model name")), "cpu")
    threads = torch.get_num_threads()
    return f"{model}, {threads} thread{'' if threads == 1 else 's'}"


def busy_warning() -> str | None:
    """Other programs that run now make every time too long, PyTorch's most: its threads wait for each other."""
    load = os.getloadavg()[0]
    processors = len(os.sched_getaffinity(0))
    if load < 0.5 * processors:
        return None
    return f"warning: this machine is busy (load {load:.1f} on {processors} processors); the times mean little"


def measure_rates(dtype: str) -> Rates | None:
    """On as many threads as PyTorch has, from `gdpa doctor --rates`, or None where the command is missing."""
    try:
        rates = command.json_of("doctor", "--rates", "--threads", str(torch.get_num_threads()))["rates"]
    except command.CommandMissing:
        return None
    measured = rates["float64" if dtype == "float64" else "float32"]
    return Rates(measured["product_tflops"] * 1e12, measured["copy_gb_per_second"] * 1e9)


def time_forward(prepared: Prepared, seconds: float) -> list[float]:
    """Seconds of each forward call, without a record for the gradient, until `seconds` have passed."""
    times: list[float] = []
    with torch.no_grad():
        while sum(times) < seconds or not times:
            start = time.perf_counter()
            outputs = prepared.forward()
            times.append(time.perf_counter() - start)
            del outputs
    return times


def time_backward(prepared: Prepared, seconds: float) -> list[float]:
    """Seconds of each backward call alone; the forward call before it is not counted."""
    times: list[float] = []
    while sum(times) < seconds or not times:
        outputs = prepared.forward()
        start = time.perf_counter()
        gradients = prepared.backward(outputs)
        times.append(time.perf_counter() - start)
        del outputs, gradients
    return times


TIMERS: dict[str, Callable[[Prepared, float], list[float]]] = {"fwd": time_forward, "bwd": time_backward}


def time_batch(
    case: Case, systems: Sequence[System], directions: Sequence[str], seconds: float, rounds: int, result: Result
) -> dict[tuple[str, str], float]:
    """(system, direction) -> median seconds on one batch. A system that fails is refused with what it said."""
    operands = Operands.random(case, torch.device("cpu"))
    ready: dict[str, Prepared] = {}
    for system in systems:
        try:
            ready[system.name] = prepared = system.prepare(case, operands)
            for direction in directions:
                TIMERS[direction](prepared, 0.0)  # warms up
        except Exception as error:
            ready.pop(system.name, None)
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            result.refusals += [Refused(system.name, direction, reason) for direction in directions]
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, prepared in ready.items():
            for direction in directions:
                taken = times[name, direction]
                if sum(taken) <= 2 * seconds:  # a system so slow has had its time before the last round
                    taken += TIMERS[direction](prepared, seconds / rounds)
    return {figure: median(taken) for figure, taken in times.items()}


def measure(
    case: Case,
    systems: Sequence[System],
    directions: Sequence[str],
    effort: Effort,
    rates: Rates | None,
    progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """One row for each system and direction that can run the case, and a reason for each that cannot."""
    result = Result()
    able = []
    for system in systems:
        reason = system.refusal(case)
        if reason is None:
            able.append(system)
        else:
            result.refusals += [Refused(system.name, direction, reason) for direction in directions]
    batches = list(case.batches())
    totals: dict[tuple[str, str], float] = defaultdict(float)
    for index, batch in enumerate(batches):
        progress(f"{index + 1}/{len(batches)}")
        failed_before = {refused.system for refused in result.refusals}
        still_able = [system for system in able if system.name not in failed_before]
        for figure, seconds in time_batch(
            batch, still_able, directions, effort.seconds / len(batches), effort.rounds, result
        ).items():
            totals[figure] += seconds
    failed = {refused.system for refused in result.refusals}
    for system in able:
        if system.name not in failed:
            result.rows += [
                make_row(case, system, direction, totals[system.name, direction], rates) for direction in directions
            ]
    return result


def make_row(case: Case, system: System, direction: str, seconds: float, rates: Rates | None) -> Row:
    longest = max(case.lengths_q)
    room = longest * len(case.lengths_q)
    return Row(
        system=system.row_name,
        version=system.version(),
        commit=command.commit(),
        direction=direction,
        device=describe_device(),
        dtype=system.dtype or case.dtype,
        activation=system.function or case.activation,
        accuracy="fast" if isinstance(system, Gdpa) else None,
        deterministic=False,
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
        ms=seconds * 1e3,
        tflops=case.flops(direction) / seconds * 1e-12,
        cublas_tflops=None,
        floor_tflops=rates.floor_tflops(case, direction) if rates else None,
    )
