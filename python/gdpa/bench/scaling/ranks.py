"""Starts a process for each rank, and times work on one rank and the same work on all ranks."""

from __future__ import annotations

import math
import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

import gdpa
from gdpa.bench import command
from gdpa.bench.command_line import RankFailed
from gdpa.bench.device import QUEUED_CALLS, Device, Gpu, Work
from gdpa.bench.measure import Effort, Progress
from gdpa.bench.progress import silent
from gdpa.bench.report import Row

LIMIT = timedelta(minutes=5)  # of a collective; the ranks compile kernels between two collectives
BACKENDS = {"cuda": "nccl", "cpu": "gloo"}

Of = Literal["mean", "longest"]


@dataclass(frozen=True)
class Ranks:
    """The device of this rank, and its place among the ranks.

    A call is either a call of every rank on its own, or a call of all ranks together. All ranks begin at the same time
    in both cases, so that all GPUs have the same load.
    """

    rank: int
    world: int
    device: Device

    @classmethod
    def join(cls, rank: int, world: int, kind: str, store: str, threads: int | None) -> Ranks:
        """Joins the default process group: NCCL on GPUs (rank r has GPU r), gloo on the CPU."""
        device: Device
        if kind == "cuda":
            device = Gpu(torch.device("cuda", rank))
        else:
            torch.set_num_threads(threads or max(1, torch.get_num_threads() // world))
            device = Device()
        dist.init_process_group(
            BACKENDS[kind], init_method=f"file://{store}", rank=rank, world_size=world, timeout=LIMIT,
            device_id=device.torch_device if kind == "cuda" else None,
        )  # fmt: skip
        return cls(rank, world, device)

    def over_ranks(self, numbers: list[float], of: Of) -> list[float]:
        """Returns the mean or the largest of each number over the ranks."""
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self.device.torch_device)
        dist.all_reduce(tensor, dist.ReduceOp.SUM if of == "mean" else dist.ReduceOp.MAX)
        return (tensor / self.world if of == "mean" else tensor).tolist()

    def times(self, work: Work, seconds: float, of: Of) -> list[float]:
        """Returns the seconds of each call, as the mean or the longest time of the ranks.

        The measurement takes about `seconds`, after a warm-up of the same duration.
        """
        (latest,) = self.over_ranks(self.device.call_times(work, 1), "longest")
        calls = min(max(math.ceil(seconds / latest), 1), QUEUED_CALLS)
        self.device.call_times(work, calls)
        dist.barrier()
        return self.over_ranks(self.device.call_times(work, calls), of)


# Receives the rank, the number of ranks, the file of the store, the progress display and further arguments.
Target = Callable[..., Any]


def run(rank: int, target: Target, world: int, folder: Path, progress: Progress, arguments: tuple[Any, ...]) -> None:
    """Runs the target in the process of a rank. The process of rank 0 writes its result to a file."""
    result = target(rank, world, str(folder / "store"), progress if rank == 0 else silent, *arguments)
    if rank == 0:
        (folder / "result").write_bytes(pickle.dumps(result))


def launch(target: Target, world: int, arguments: tuple[Any, ...], progress: Progress) -> Any:
    """Runs the target on `world` ranks of one machine, and returns the result of rank 0.

    Args:
        target: a function of a module, called as target(rank, world, store, progress, *arguments). `store` is the path
            of a file, for the rendezvous of torch.distributed.
        progress: used in the process of rank 0.

    Raises:
        RankFailed: a rank has raised an error or died.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            start_processes(run, (target, world, folder, progress, arguments), world, daemon=True, start_method="spawn")
        except (ProcessRaisedException, ProcessExitedException) as error:
            reason = str(error).strip()
            raise RankFailed(f"rank {error.error_index}: {reason}; all ranks have been ended") from None
        return pickle.loads((folder / "result").read_bytes())


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
    rows = []
    for comparison, (one, several) in zip(comparisons, times, strict=True):
        rate_one, rate = comparison.tokens_one / median(one), comparison.about["tokens"] / median(several)
        rows.append(
            ScalingRow(
                **comparison.about,
                version=gdpa.__version__,
                commit=command.commit(),
                device=ranks.device.describe(),
                processes=ranks.world,
                backend=BACKENDS[ranks.device.torch_device.type],
                ms_one=median(one) * 1e3,
                ms=median(several) * 1e3,
                tokens_per_second_one=rate_one,
                tokens_per_second=rate,
                scaling=rate / rate_one,
            )
        )
    return rows
