"""One training run: its steps, its checkpoints, and its resumption."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from gdpa.distributed import PairBalancedSampler
from gdpa.train.data import Batch, Events
from gdpa.train.metrics import Metrics, evaluate
from gdpa.train.model import VARIANTS, Recommender, Sizes
from gdpa.train.parallel import ONE, Ranks, ShardedEmbedding, clip

_WHOLE = StateDictOptions(full_state_dict=True)


@dataclass(frozen=True)
class Settings:
    """Everything on which the loss curve of a run depends."""

    variant: str
    seed: int
    epochs: int
    users: int  # in a batch
    history: int  # the most events of a user in a batch
    sizes: Sizes
    learning_rate: float = 1e-2
    weight_decay: float = 0.1
    bf16: bool = False


def loss_of(model: Any, batch: Batch, targets: int) -> Tensor:
    """Returns the cross-entropy of the next items over all items, summed over the rows and divided by `targets`."""
    rows = torch.arange(len(batch.items), device=batch.items.device)
    scores = model(batch.items, batch.cu_seqlens, rows)
    return F.cross_entropy(scores.float(), batch.next_items, reduction="sum") / targets


class Run:
    """A run that saves its state after each epoch, and continues with the same losses after it is killed.

    The state is the losses of the steps, the metrics of the epochs, the weights and the optimiser. The batches and the
    dropout of an epoch follow from the seed and the epoch. With several ranks, every rank has a part of each batch, and
    the first rank writes the checkpoints.
    """

    def __init__(
        self,
        settings: Settings,
        events: Events,
        device: torch.device,
        compile: bool,
        folder: Path,
        restart: bool = False,
        ranks: Ranks = ONE,
        is_sharded: bool = False,
    ) -> None:
        self.settings, self.events, self.device, self.ranks = settings, events, device, ranks
        self.file = folder / f"{settings.variant}-{settings.seed}.pt"
        torch.manual_seed(settings.seed)  # the initial weights are the same on every device
        self.model = Recommender(settings.sizes, VARIANTS[settings.variant]).to(device)
        trained: Any = self.model
        if is_sharded:
            self.model.items = ShardedEmbedding(self.model.items, ranks, device)  # type: ignore[arg-type]
            trained._ddp_params_and_buffers_to_ignore = ["items.weight"]
        if ranks.world > 1:
            # A rank without rows does not use the softmax attention, and DDP would wait for its gradients.
            has_unused = VARIANTS[settings.variant].attention is not None
            trained = DistributedDataParallel(trained, find_unused_parameters=has_unused)
        self.trained = torch.compile(trained, dynamic=True) if compile else trained
        # A fused optimiser has either DTensors or tensors in a group.
        tables = list(self.model.items.parameters())
        others = [one for name, one in self.model.named_parameters() if not name.startswith("items.")]
        self.optimiser = torch.optim.AdamW(
            [{"params": tables}, {"params": others}],
            settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.lengths = events.trained(settings.history)
        self.sampler = PairBalancedSampler(self.lengths, settings.users, ranks.world, seed=settings.seed)
        self.losses: list[Tensor] = []  # of each step
        self.metrics: list[tuple[Metrics, Metrics]] = []  # of the validation and of the test after each epoch
        self.seconds = 0.0
        if not restart:
            self.restore()

    @property
    def steps(self) -> int:
        """The number of steps of the whole run."""
        return self.settings.epochs * len(self.sampler)

    def restore(self) -> None:
        """Reads the checkpoint, if one with the same settings exists."""
        if not self.file.is_file():
            return
        state = torch.load(self.file, map_location=self.device, weights_only=True)
        if state["settings"] != asdict(self.settings):
            return
        set_state_dict(
            self.model,
            self.optimiser,
            model_state_dict=state["model"],
            optim_state_dict=state["optimiser"],
            options=_WHOLE,
        )
        self.losses = list(state["losses"].unbind())
        self.seconds = state["seconds"]
        self.metrics = [(Metrics(**validation), Metrics(**test)) for validation, test in state["metrics"]]

    def save(self) -> None:
        """Writes the checkpoint to another file and renames it, so that a kill leaves a whole checkpoint."""
        model, optimiser = get_state_dict(self.model, self.optimiser, options=_WHOLE)  # gathers sharded tables
        if self.ranks.rank > 0:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.file.with_suffix(".tmp")
        state = {
            "settings": asdict(self.settings),
            "model": model,
            "optimiser": optimiser,
            "losses": torch.stack(self.losses),
            "seconds": self.seconds,
            "metrics": [(asdict(validation), asdict(test)) for validation, test in self.metrics],
        }
        torch.save(state, temporary)
        os.replace(temporary, self.file)

    def batches(self, epoch: int) -> Iterator[tuple[Batch, int]]:
        """Yields this rank's batches of an epoch, with the number of targets of all ranks."""
        generator = torch.Generator().manual_seed(hash((self.settings.seed, epoch)) % 2**63)
        ends = self.events.training_ends(self.settings.history, generator)
        for parts in self.sampler.epoch(epoch):
            rows = [int(self.lengths[users].sum()) for users in parts]
            self.model.expect_rows(max(rows))
            batch = self.events.batch(parts[self.ranks.rank], ends, self.settings.history)
            yield batch.to(self.device), sum(rows)

    def learning_rate(self, step: int) -> float:
        """Rises during a tenth of the steps, then falls to zero."""
        warm = max(1, self.steps // 10)
        share = min((step + 1) / warm, (self.steps - step) / max(1, self.steps - warm))
        return self.settings.learning_rate * share

    def train(self) -> Iterator[Tensor]:
        """Trains the remaining epochs. Yields the loss of each step, on the device."""
        for epoch in range(len(self.metrics), self.settings.epochs):
            begin = time.perf_counter()
            torch.manual_seed(hash((self.settings.seed, epoch, self.ranks.rank)) % 2**63)  # of the dropout
            for batch, targets in self.batches(epoch):
                yield self.trained_step(batch, targets)
            self.metrics.append(evaluate(self.model, self.events, self.settings.history))
            self.seconds += time.perf_counter() - begin
            self.save()

    def trained_step(self, batch: Batch, targets: int) -> Tensor:
        """Trains one step, and returns its loss."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate(len(self.losses))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bf16):
            loss = loss_of(self.trained, batch, targets)
        self.optimiser.zero_grad()
        (loss * self.ranks.world).backward()  # DDP divides by the number of ranks
        clip(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.losses.append(self.ranks.total(loss.detach()))
        return self.losses[-1]
