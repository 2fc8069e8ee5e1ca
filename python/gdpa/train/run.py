"""One training run: its steps, its checkpoints, and its resumption."""

from __future__ import annotations

import os
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
from gdpa.train.model import VARIANTS, Recommender, Sizes
from gdpa.train.parallel import ONE, Ranks, ShardedEmbedding, clip

_WHOLE = StateDictOptions(full_state_dict=True)


@dataclass(frozen=True)
class Settings:
    """Everything on which the loss curve of a run depends."""

    variant: str
    seed: int
    steps: int
    users: int  # in a batch
    sizes: Sizes
    learning_rate: float = 8e-3
    weight_decay: float = 0.1
    bf16: bool = False


def made(settings: Settings, device: torch.device) -> Recommender:
    """Returns the model with the initial weights of the seed, which are the same on every device."""
    torch.manual_seed(settings.seed)
    return Recommender(settings.sizes, VARIANTS[settings.variant]).to(device)


def loss_of(model: Any, batch: Batch, targets: int | None = None) -> Tensor:
    """Returns the loss of the predicting rows, divided by `targets` or by their number.

    The loss is the cross-entropy of the next item, and of its like.
    """
    scores, like = model(batch.items, batch.ratings, batch.cu_seqlens, batch.next_items)
    predicts = batch.predicts.float()
    of_item = F.cross_entropy(scores.float(), batch.next_items, reduction="none")
    of_like = F.binary_cross_entropy_with_logits(like.float(), batch.next_likes, reduction="none")
    return ((of_item + of_like) * predicts).sum() / (predicts.sum().clamp(min=1) if targets is None else targets)


class Run:
    """A run that saves its state, and continues with the same losses after it is killed at any step.

    The state is the step, the losses, the weights and the optimiser. The batch of a step follows from the seed and the
    step. With several ranks, every rank has a part of each batch, and the first rank writes the checkpoints.
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
        self.model = made(settings, device)
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
        self.sampler = PairBalancedSampler(events.lengths, settings.users, ranks.world, seed=settings.seed)
        self.losses: list[Tensor] = []
        if not restart:
            self.restore()

    @property
    def step(self) -> int:
        return len(self.losses)

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
            "losses": torch.stack(self.losses) if self.losses else torch.zeros(0),
        }
        torch.save(state, temporary)
        os.replace(temporary, self.file)

    def batches(self) -> Iterator[tuple[Batch, int]]:
        """Yields this rank's batches from the current step on, with the number of targets of all ranks."""
        step = self.step
        while True:
            epoch, skipped = divmod(step, len(self.sampler))
            for number, parts in enumerate(self.sampler.epoch(epoch)):
                if number < skipped:
                    continue
                lengths = [self.events.lengths[users] for users in parts]
                self.model.expect_rows(max(int(part.sum()) for part in lengths))
                targets = sum(int((part - 1).clamp(min=0).sum()) for part in lengths)
                yield self.events.batch(parts[self.ranks.rank]).to(self.device), max(1, targets)
                step += 1

    def learning_rate(self, step: int) -> float:
        """Rises during a tenth of the steps, then falls to zero."""
        warm = max(1, self.settings.steps // 10)
        share = min((step + 1) / warm, (self.settings.steps - step) / max(1, self.settings.steps - warm))
        return self.settings.learning_rate * share

    def train(self, save_every: int) -> Iterator[Tensor]:
        """Trains the remaining steps. Yields the loss of each step, on the device."""
        batches = self.batches()
        kind = self.device.type
        while self.step < self.settings.steps:
            for group in self.optimiser.param_groups:
                group["lr"] = self.learning_rate(self.step)
            batch, targets = next(batches)
            with torch.autocast(kind, torch.bfloat16, enabled=self.settings.bf16):
                loss = loss_of(self.trained, batch, targets)
            self.optimiser.zero_grad()
            (loss * self.ranks.world).backward()  # DDP divides by the number of ranks
            clip(self.model.parameters(), 1.0)
            self.optimiser.step()
            self.losses.append(self.ranks.total(loss.detach()))
            if self.step % save_every == 0 or self.step == self.settings.steps:
                self.save()
            yield self.losses[-1]
