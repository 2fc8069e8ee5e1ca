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

from gdpa.distributed import PairBalancedSampler
from gdpa.train.data import Batch, Events
from gdpa.train.model import VARIANTS, Recommender, Sizes


@dataclass(frozen=True)
class Settings:
    """Everything on which the loss curve of a run depends."""

    variant: str
    seed: int
    steps: int
    users: int  # in a batch
    sizes: Sizes
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    bf16: bool = False


def made(settings: Settings, device: torch.device) -> Recommender:
    """Returns the model with the initial weights of the seed, which are the same on every device."""
    torch.manual_seed(settings.seed)
    return Recommender(settings.sizes, VARIANTS[settings.variant]).to(device)


def loss_of(model: Any, batch: Batch) -> Tensor:
    """Returns the mean loss of the predicting rows: cross-entropy of the next item, and of its like."""
    scores, like = model(batch.items, batch.ratings, batch.cu_seqlens, batch.next_items)
    predicts = batch.predicts.float()
    of_item = F.cross_entropy(scores.float(), batch.next_items, reduction="none")
    of_like = F.binary_cross_entropy_with_logits(like.float(), batch.next_likes, reduction="none")
    return ((of_item + of_like) * predicts).sum() / predicts.sum().clamp(min=1)


class Run:
    """A run that saves its state, and continues with the same losses after it is killed at any step.

    The state is the step, the losses, the weights and the optimiser. The batch of a step follows from the seed and the
    step.
    """

    def __init__(
        self,
        settings: Settings,
        events: Events,
        device: torch.device,
        compile: bool,
        folder: Path,
        restart: bool = False,
    ) -> None:
        self.settings, self.events, self.device = settings, events, device
        self.file = folder / f"{settings.variant}-{settings.seed}.pt"
        self.model = made(settings, device)
        self.compiled = torch.compile(self.model, dynamic=True) if compile else self.model
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        self.sampler = PairBalancedSampler(events.lengths, settings.users, seed=settings.seed)
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
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.losses = list(state["losses"].unbind())

    def save(self) -> None:
        """Writes the checkpoint to another file and renames it, so that a kill leaves a whole checkpoint."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.file.with_suffix(".tmp")
        state = {
            "settings": asdict(self.settings),
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "losses": torch.stack(self.losses) if self.losses else torch.zeros(0),
        }
        torch.save(state, temporary)
        os.replace(temporary, self.file)

    def batches(self) -> Iterator[Batch]:
        """Yields the batches from the current step on."""
        step = self.step
        while True:
            epoch, skipped = divmod(step, len(self.sampler))
            for number, (users,) in enumerate(self.sampler.epoch(epoch)):
                if number >= skipped:
                    yield self.events.batch(users).to(self.device)
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
            with torch.autocast(kind, torch.bfloat16, enabled=self.settings.bf16):
                loss = loss_of(self.compiled, next(batches))
            self.optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimiser.step()
            self.losses.append(loss.detach())
            if self.step % save_every == 0 or self.step == self.settings.steps:
                self.save()
            yield self.losses[-1]
