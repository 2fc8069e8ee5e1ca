"""The processes of a training run that torchrun has started, and the embedding table that they share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Ranks:
    """This process among all processes of the run."""

    rank: int = 0
    world: int = 1

    @classmethod
    def start(cls, device: torch.device) -> Ranks:
        """Joins the processes that torchrun has started, or returns the only process."""
        if "WORLD_SIZE" not in os.environ:
            return cls()
        if device.type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    def total(self, number: Tensor) -> Tensor:
        """Returns the sum over the processes."""
        if self.world > 1:
            dist.all_reduce(number)
        return number


ONE = Ranks()


class ShardedEmbedding(nn.Module):
    """An embedding table whose rows lie on all ranks, as a DTensor.

    Each rank looks up its own ids. The ids of all ranks are gathered, every rank reads the rows that it has, and the
    sums go back to the ranks of the ids. All ranks pad their ids to `longest`, which the caller sets before each batch.
    """

    def __init__(self, table: nn.Embedding, ranks: Ranks, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        super().__init__()
        self.mesh = init_device_mesh(device.type, (ranks.world,))
        self.weight = nn.Parameter(distribute_tensor(table.weight.detach(), self.mesh, [Shard(0)]))
        # Every rank adds its part. DDP gives the mean over the ranks to the other weights.
        self.weight.register_hook(lambda gradient: gradient / ranks.world)
        self.longest = 0

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the rows of this rank's ids (T, D)."""
        from torch.distributed.tensor import DTensor, Shard

        padded = F.pad(ids, (0, max(1, self.longest) - len(ids)))
        placed = DTensor.from_local(padded, self.mesh, [Shard(0)], run_check=False)
        rows: Any = F.embedding(placed, self.weight)
        return rows.redistribute(placements=[Shard(0)]).to_local()[: len(ids)]

    def whole(self) -> Tensor:
        """Returns the whole table, for the scores of all items."""
        from torch.distributed.tensor import Partial

        weight: Any = self.weight
        return weight.full_tensor(grad_placements=[Partial()])


def clip(parameters: Iterable[nn.Parameter], bound: float) -> None:
    """Scales the gradients to this norm at most. Gradients of sharded tables are DTensors."""
    gradients: list[Any] = [one.grad for one in parameters if one.grad is not None]
    norms = [one.norm() for one in gradients]
    total = torch.stack([one.full_tensor() if hasattr(one, "full_tensor") else one for one in norms]).norm()
    factor = (bound / (total + 1e-6)).clamp(max=1.0)
    for one in gradients:
        (one.to_local() if hasattr(one, "to_local") else one).mul_(factor)
