"""Times calls on all ranks of a process group. All ranks make the same number of calls."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from gdpa.bench.device import QUEUED_CALLS, Device, Gpu, Processor, Work

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
            device = Processor()
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
