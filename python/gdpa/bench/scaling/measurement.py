"""The whole measurement on one rank: FSDP2, and then context parallelism with each mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch.distributed as dist

from gdpa.bench.figures import part_of
from gdpa.bench.measure import Effort, Progress
from gdpa.bench.scaling import context, fsdp
from gdpa.bench.scaling.comparison import Comparison, measure
from gdpa.bench.scaling.ranks import Ranks
from gdpa.bench.scaling.report import CONTEXT, FSDP, ScalingRow

FIGURES = 2 * (1 + 2 * len(context.MASKS))  # timed calls: on one rank and on all ranks


@dataclass(frozen=True)
class Settings:
    kind: str  # cuda or cpu
    layers: int
    factor: float  # on the users of a rank, and on the rows of the long sequence
    threads: int | None  # of each rank on the CPU
    effort: Effort


def measure_on_rank(rank: int, world: int, store: str, progress: Progress, settings: Settings) -> list[ScalingRow]:
    """Returns the rows, which are the same on all ranks."""
    ranks = Ranks.join(rank, world, settings.kind, store, settings.threads)

    def fsdp_step() -> Sequence[Comparison]:
        return [fsdp.comparison_of(ranks, settings.layers, settings.factor)]

    def long_sequence(mask: str) -> Sequence[Comparison]:
        return context.comparisons_of(ranks, context.case_on(settings.kind, mask, settings.factor))

    subjects = [(FSDP, fsdp_step)]
    subjects += [(f"{CONTEXT}, mask {mask}", partial(long_sequence, mask)) for mask in context.MASKS]
    rows: list[ScalingRow] = []
    for index, (what, prepare) in enumerate(subjects):
        of_subject = part_of(progress, index, len(subjects), what)
        of_subject(0.0, "first call")
        rows += measure(ranks, prepare(), settings.effort, of_subject)
        ranks.device.release()
    dist.destroy_process_group()
    return rows
