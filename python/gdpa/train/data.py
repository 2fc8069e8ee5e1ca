"""The events of MovieLens 100K, split by time, as jagged batches with the next event of each event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gdpa.demo.histories import data_file

ITEMS = 1682
LIKED = 3  # ratings count from 0, and a rating of four stars or more is a like
TRAINED = 0.8  # the share of the events that the model trains on, the earliest ones


@dataclass(frozen=True)
class Batch:
    """The histories of some users. Row r predicts its next event, if `predicts[r]`."""

    items: Tensor  # (T,)
    ratings: Tensor  # (T,)
    cu_seqlens: Tensor  # (B + 1)
    next_items: Tensor  # (T,) the item of the next event
    next_likes: Tensor  # (T,) float32, 1 for a like
    predicts: Tensor  # (T,) bool

    def to(self, device: torch.device) -> Batch:
        return Batch(**{name: one.to(device, non_blocking=True) for name, one in vars(self).items()})


@dataclass(frozen=True)
class Events:
    """The events of all users, each user's in the order of time."""

    items: Tensor  # (events,) int64
    ratings: Tensor  # (events,) int64, 0 for one star
    times: Tensor  # (events,) int64
    offsets: Tensor  # (users + 1,) int64

    @property
    def split_time(self) -> int:
        """The time of the last event to train on."""
        return int(self.times.sort().values[int(TRAINED * len(self.times)) - 1])

    def until(self, time: int) -> Events:
        """Returns the events up to this time. Users without such events have empty histories."""
        kept = self.times <= time
        before = torch.cat([torch.zeros(1, dtype=torch.int64), kept.long().cumsum(0)])
        return Events(self.items[kept], self.ratings[kept], self.times[kept], before[self.offsets])

    @property
    def lengths(self) -> Tensor:
        return self.offsets.diff()

    def batch(self, users: Sequence[int], after: int = 0) -> Batch:
        """Returns the histories of these users. The rows whose next event is later than `after` predict it."""
        ranges = [torch.arange(int(self.offsets[user]), int(self.offsets[user + 1])) for user in users]
        rows = torch.cat([torch.empty(0, dtype=torch.int64), *ranges])
        lengths = [len(one) for one in ranges]
        cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
        next_rows = (rows + 1).clamp(max=max(0, len(self.items) - 1))
        predicts = torch.ones(len(rows), dtype=torch.bool)
        predicts[cu_seqlens[1:][cu_seqlens.diff() > 0] - 1] = False  # the last event of a user
        return Batch(
            items=self.items[rows],
            ratings=self.ratings[rows],
            cu_seqlens=cu_seqlens.int(),
            next_items=self.items[next_rows],
            next_likes=(self.ratings[next_rows] >= LIKED).float(),
            predicts=predicts & (self.times[next_rows] > after),
        )


def load(users: int | None = None) -> Events:
    """Returns the events of the first `users` users, or of all users."""
    user, item, rating, time = np.loadtxt(data_file(), skiprows=1, dtype=np.int64, unpack=True)
    order = np.lexsort((time, user))
    _, lengths = np.unique(user, return_counts=True)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths[:users])]))
    order = order[: int(offsets[-1])]
    items, ratings, times = (torch.from_numpy(column[order]) for column in (item - 1, rating - 1, time))
    return Events(items, ratings, times, offsets)
