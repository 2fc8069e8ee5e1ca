"""A call on one rank and the same work on all ranks: the description of the work, and the rounds of its timing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import gdpa
from gdpa.bench import command
from gdpa.bench.device import Work
from gdpa.bench.measure import Effort, Progress
from gdpa.bench.scaling.ranks import BACKENDS, Ranks
from gdpa.bench.scaling.report import ScalingRow


@dataclass(frozen=True)
class Comparison:
    """Work on one rank, which every rank does at the same time, and the work of all ranks together."""

    strategy: str
    direction: str
    shape: str
    mask: str
    activation: str
    dtype: str
    batch: int  # sequences in the work of all ranks
    heads: int
    head_dim: int
    longest: int
    tokens_one: float  # tokens in the work of one rank, as the mean over the ranks
    tokens: int  # tokens in the work of all ranks
    largest_part: float  # the largest number of scores of a rank, divided by the mean
    difference: float
    one: Work
    all: Work

    def row(self, ranks: Ranks, one: float, several: float) -> ScalingRow:
        """Returns the row for these seconds of the work of one rank, and of the work of all ranks."""
        rate_one, rate = self.tokens_one / one, self.tokens / several
        return ScalingRow(
            system=self.strategy,
            version=gdpa.__version__,
            commit=command.commit(),
            direction=self.direction,
            device=ranks.device.describe(),
            shape=self.shape,
            dtype=self.dtype,
            activation=self.activation,
            mask=self.mask,
            B=self.batch,
            H=self.heads,
            d=self.head_dim,
            q=self.longest,
            tokens=self.tokens,
            processes=ranks.world,
            backend=BACKENDS[ranks.device.torch_device.type],
            ms_one=one * 1e3,
            ms=several * 1e3,
            tokens_per_second_one=rate_one,
            tokens_per_second=rate,
            scaling=rate / rate_one,
            largest_part=self.largest_part,
            difference=self.difference,
        )


def measure(ranks: Ranks, comparisons: Sequence[Comparison], effort: Effort, progress: Progress) -> list[ScalingRow]:
    """Returns a row for each comparison. One rank and all ranks alternate in each round."""
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in comparisons]
    for round_index in range(effort.rounds):
        for index, comparison in enumerate(comparisons):
            done = (round_index + index / len(comparisons)) / effort.rounds
            progress(done, f"{comparison.strategy} {comparison.direction}, round {round_index + 1}")
            one, several = times[index]
            one += ranks.times(comparison.one, effort.seconds / effort.rounds, "mean")
            several += ranks.times(comparison.all, effort.seconds / effort.rounds, "longest")
    return [
        comparison.row(ranks, median(one), median(several))
        for comparison, (one, several) in zip(comparisons, times, strict=True)
    ]
