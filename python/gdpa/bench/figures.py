"""The figures of the project with their goals, and the measurement of the cost of a call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

import gdpa
from gdpa.bench import command
from gdpa.bench.measure import Progress

CALLS_BEFORE_WAITING = 50  # fewer calls than a GPU's queue holds, so that no call waits


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

    def cells(self) -> tuple[str, ...]:
        measured = "not measured" if self.measured is None else f"{self.measured:.4g}"
        bound = "at least" if self.more_is_better else "at most"
        return (self.what, self.unit, measured, f"{bound} {self.goal:g}", "yes" if self.reached else "no")


COLUMNS = ("figure", "unit", "measured", "goal", "reached")


def call_cost(record: bool, device: torch.device, dtype: torch.dtype, calls: int = 2000) -> float:
    """Returns the median microseconds of one forward call on one query and one key, with or without recording.

    The time is the host's part, because no measured call waits for a GPU.
    """
    query, key, value = torch.randn(3, 1, 1, 64, dtype=dtype, device=device, requires_grad=record).unbind()
    offsets = torch.tensor([0, 1], device=device)
    times = []
    with torch.set_grad_enabled(record):
        for call in range(calls):
            if device.type == "cuda" and call % CALLS_BEFORE_WAITING == 0:
                torch.cuda.synchronize()
            start = time.perf_counter()
            gdpa.varlen_attention(query, key, value, offsets, offsets)
            times.append(time.perf_counter() - start)
    return median(times[calls // 10 :]) * 1e6


def from_command(what: str, goal: float, unit: str, ask: Callable[[], float]) -> Figure:
    try:
        return Figure(what, ask(), goal, unit, more_is_better=False)
    except command.CommandMissing as missing:
        return Figure(what, None, goal, str(missing), more_is_better=False)


def host_costs(device: torch.device, dtype: torch.dtype) -> list[Figure]:
    unit = "us a call"
    asked = ("bench", "--host-cost", "--device", str(device))
    return [
        from_command("one row, C++", 5, unit, lambda: command.json_of(*asked)["host_cost_us"]),
        Figure("one row, PyTorch", call_cost(False, device, dtype), 15, unit, more_is_better=False),
        Figure("one row, PyTorch, recording", call_cost(True, device, dtype), 30, unit, more_is_better=False),
    ]


def part_of(progress: Progress, index: int, parts: int, what: str) -> Progress:
    """Returns the progress display of one part of a run."""
    return lambda done, text: progress((index + done) / parts, f"{what}, {text}")
