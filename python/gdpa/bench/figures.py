"""The figures that the project is held to, measured on the histories of MovieLens 100K, beside their goals."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

import gdpa
from gdpa.bench import command
from gdpa.bench.cases import Case, movielens_lengths
from gdpa.bench.measure import DIRECTIONS, Effort, Result, measure
from gdpa.bench.rows import Rates
from gdpa.bench.systems import Gdpa, GdpaIn, Padded, SdpaPerSequence

USERS_IN_A_CALL = 64
LONG_SEQUENCE = 100_000
SYSTEMS = (Gdpa(), GdpaIn("bfloat16"), GdpaIn("float16"), SdpaPerSequence(), Padded())


@dataclass(frozen=True)
class Figure:
    """A measured number and what it should be: at least `goal` where `more_is_better`, else at most."""

    what: str
    measured: float | None  # None: could not be measured, `unit` says why
    goal: float
    unit: str
    more_is_better: bool = True

    @property
    def reached(self) -> bool:
        if self.measured is None:
            return False
        return self.measured >= self.goal if self.more_is_better else self.measured <= self.goal

    def cells(self) -> tuple[str, ...]:
        measured = "not measured" if self.measured is None else f"{self.measured:.2f}"
        bound = "at least" if self.more_is_better else "at most"
        return (self.what, self.unit, measured, f"{bound} {self.goal:g}", "yes" if self.reached else "no")


COLUMNS = ("figure", "unit", "measured", "goal", "reached")


def ratios(result: Result, mask: str) -> list[Figure]:
    """gdpa's speed against each other system's, and its own in 16 bits against float32."""
    ms = {(row.system, row.dtype, row.direction): row.ms for row in result.rows}
    gdpa_fp32 = ("gdpa", "float32")
    comparisons = (
        (gdpa_fp32, ("SDPA per sequence", "float32"), 1.2, "float32 against SDPA per sequence"),
        (gdpa_fp32, ("padded", "float32"), 3.0, "float32 against padded product-GELU-product"),
        (("gdpa", "bfloat16"), gdpa_fp32, 0.8, "bfloat16 against float32"),
        (("gdpa", "float16"), gdpa_fp32, 0.8, "float16 against float32"),
    )
    found = []
    for fast, other, goal, what in comparisons:
        for direction in DIRECTIONS:
            pair = (ms.get((*fast, direction)), ms.get((*other, direction)))
            ratio = pair[1] / pair[0] if pair[0] and pair[1] else None
            found.append(Figure(f"{what}, mask {mask}, {direction}", ratio, goal, "times the speed"))
    return found


def call_cost(record: bool, calls: int = 2000) -> float:
    """Median microseconds of one forward call on one query and one key, with or without a record for the gradient."""
    query, key, value = torch.randn(3, 1, 1, 64, requires_grad=record).unbind()
    offsets = torch.tensor([0, 1])
    times = []
    with torch.set_grad_enabled(record):
        for _ in range(calls):
            start = time.perf_counter()
            gdpa.varlen_attention(query, key, value, offsets, offsets)
            times.append(time.perf_counter() - start)
    return median(times[calls // 10 :]) * 1e6


def from_command(what: str, goal: float, unit: str, ask: Callable[[], float]) -> Figure:
    try:
        return Figure(what, ask(), goal, unit, more_is_better=False)
    except command.CommandMissing as missing:
        return Figure(what, None, goal, str(missing), more_is_better=False)


def workspace_per_thread(direction: str) -> float:
    """MiB beyond inputs and outputs for each thread, on one long sequence, as the plan says."""
    lengths = ("--lengths", str(LONG_SEQUENCE), "--heads", "4", "--head-dim", "128")
    plan = command.json_of("explain", *lengths)[direction]
    return plan["workspace_bytes"] / plan["threads"] / 2**20


def host_costs() -> list[Figure]:
    unit = "us a call"
    return [
        from_command("one row, C++", 5, unit, lambda: command.json_of("bench", "--host-cost")["host_cost_us"]),
        Figure("one row, PyTorch", call_cost(record=False), 15, unit, more_is_better=False),
        Figure("one row, PyTorch, recording", call_cost(record=True), 30, unit, more_is_better=False),
    ]


def workspaces() -> list[Figure]:
    what = f"memory beyond inputs and outputs, {LONG_SEQUENCE} tokens"
    return [
        from_command(f"{what}, {direction}", 64, "MiB a thread", partial(workspace_per_thread, direction))
        for direction in ("forward", "backward")
    ]


def progress_of_batch(progress: Callable[[str], None], mask: str, batch: str) -> None:
    progress(f"mask {mask}, batch {batch}")


def measure_figures(
    effort: Effort, rates: Rates | None, users: int | None, progress: Callable[[str], None]
) -> tuple[Result, list[Figure]]:
    """All rows that were timed, and the figures made of them."""
    lengths = movielens_lengths()[:users]
    everything = Result()
    figures: list[Figure] = []
    for mask in ("none", "causal"):
        case = Case(lengths, lengths, heads=4, head_dim=128, mask=mask, batch_limit=USERS_IN_A_CALL)
        progress_of_mask = partial(progress_of_batch, progress, mask)
        result = measure(case, SYSTEMS, DIRECTIONS, effort, rates, progress_of_mask)
        everything.rows += result.rows
        everything.refusals += result.refusals
        figures += ratios(result, mask)
    return everything, figures + host_costs() + workspaces()
