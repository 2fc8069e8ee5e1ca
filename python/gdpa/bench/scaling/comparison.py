"""A call on one rank and the same work on all ranks: the description of the work, its timing, and its row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import gdpa
from gdpa.bench import command
from gdpa.bench.device import Work
from gdpa.bench.measure import Effort, Progress
from gdpa.bench.report import Row
from gdpa.bench.scaling.ranks import BACKENDS, Ranks

FSDP, CONTEXT = "FSDP2", "context parallelism"


@dataclass(frozen=True, kw_only=True)
class ScalingRow(Row):
    """The throughput of one rank and of all ranks. The system is the strategy."""

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
    largest_part: float  # the largest number of scores of a rank, divided by the mean
    difference: float

    @property
    def place(self) -> tuple[object, ...]:
        return (*super().place, self.mask)


@dataclass(frozen=True)
class Comparison:
    """Work on one rank, which every rank does at the same time, and the work of all ranks together."""

    about: dict[str, Any]  # the fields of the row that are known before the measurement
    tokens_one: float  # tokens in the work of one rank, as the mean over the ranks
    one: Work
    all: Work

    def row(self, ranks: Ranks, one: float, several: float) -> ScalingRow:
        """Returns the row for these seconds of the work of one rank, and of the work of all ranks."""
        rate_one, rate = self.tokens_one / one, self.about["tokens"] / several
        return ScalingRow(
            **self.about,
            version=gdpa.__version__,
            commit=command.commit(),
            device=ranks.device.describe(),
            processes=ranks.world,
            backend=BACKENDS[ranks.device.torch_device.type],
            ms_one=one * 1e3,
            ms=several * 1e3,
            tokens_per_second_one=rate_one,
            tokens_per_second=rate,
            scaling=rate / rate_one,
        )


def measure(ranks: Ranks, comparisons: Sequence[Comparison], effort: Effort, progress: Progress) -> list[ScalingRow]:
    """Returns a row for each comparison. One rank and all ranks alternate in each round."""
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in comparisons]
    for round_index in range(effort.rounds):
        for index, comparison in enumerate(comparisons):
            done = (round_index + index / len(comparisons)) / effort.rounds
            progress(done, f"{comparison.about['system']} {comparison.about['direction']}, round {round_index + 1}")
            one, several = times[index]
            one += ranks.times(comparison.one, effort.seconds / effort.rounds, "mean")
            several += ranks.times(comparison.all, effort.seconds / effort.rounds, "longest")
    return [
        comparison.row(ranks, median(one), median(several))
        for comparison, (one, several) in zip(comparisons, times, strict=True)
    ]
