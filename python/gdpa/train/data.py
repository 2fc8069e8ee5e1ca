"""The histories of MovieLens 100K, and jagged batches of their events with the next item of each event.

The split is leave-one-out: the last event of a user is the test, the one before it is the validation, and the model
trains on the others.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gdpa.demo import histories
from gdpa.demo.histories import Histories

ITEMS = 1682


@dataclass(frozen=True)
class Batch:
    """Parts of the histories of some users, and the next item of each event."""

    items: Tensor  # (T,)
    cu_seqlens: Tensor  # (B + 1)
    next_items: Tensor  # (T,)

    def to(self, device: torch.device) -> Batch:
        return Batch(**{name: one.to(device, non_blocking=True) for name, one in vars(self).items()})


class Events(Histories):
    """The events of all users, from which batches for the training are made."""

    @property
    def ends(self) -> Tensor:
        """The index of the last item of each user, which is the item of the test."""
        return self.offsets[1:] - 1

    def trained(self, history: int) -> Tensor:
        """Returns the number of events of each user that one epoch trains on: all, but at most `history`."""
        return (self.lengths - 3).clamp(max=history)

    def training_ends(self, history: int, generator: torch.Generator) -> Tensor:
        """Returns the index of the last item to predict of each user, so that a random part of the history is used."""
        spare = self.lengths - 3 - self.trained(history)
        return self.ends - 2 - (torch.rand(self.users, generator=generator) * (spare + 1)).long()

    def batch(self, users: Sequence[int], ends: Tensor, history: int) -> Batch:
        """Returns up to `history` events of each of these users, of which the last one has the next item ends[user]."""
        begins = torch.maximum(self.offsets[:-1], ends - history)
        ranges = [torch.arange(int(begins[user]), int(ends[user])) for user in users]
        rows = torch.cat([torch.empty(0, dtype=torch.int64), *ranges])
        cu_seqlens = torch.tensor([0, *(len(one) for one in ranges)]).cumsum(0)
        return Batch(self.items[rows], cu_seqlens.int(), self.items[rows + 1])


@functools.cache
def load(users: int | None = None) -> Events:
    """Returns the events of the first `users` users, or of all users."""
    return Events(**vars(histories.load(users)))
