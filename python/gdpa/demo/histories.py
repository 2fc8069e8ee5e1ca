"""The data: the ratings of every user of MovieLens 100K in chronological order, and their embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

RATINGS = 5


@dataclass(frozen=True)
class Histories:
    """The packed histories of all users."""

    items: Tensor  # (events,) int64, from 0
    ratings: Tensor  # (events,) int64, 0 for one star
    offsets: Tensor  # (users + 1,) int64: user u has the events [offsets[u], offsets[u + 1])

    @property
    def users(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        return self.offsets.diff()

    def batches(self, size: int) -> Iterator[Histories]:
        """Returns the histories in batches of `size` users. The last batch may be smaller."""
        for first in range(0, self.users, size):
            offsets = self.offsets[first : first + size + 1]
            events = slice(int(offsets[0]), int(offsets[-1]))
            yield Histories(self.items[events], self.ratings[events], offsets - offsets[0])


def data_file() -> Path:
    """Returns the path of the ratings in the installed package recbole, without importing the package."""
    package = find_spec("recbole")
    for folder in package.submodule_search_locations or [] if package else []:
        file = Path(folder) / "dataset_example" / "ml-100k" / "ml-100k.inter"
        if file.is_file():
            return file
    raise ValueError(
        "MovieLens 100K is a part of the package recbole, which is not installed: "
        "run `make demo` in a checkout of gdpa, or `pip install --no-deps recbole==1.2.1`."
    )


def load(users: int | None = None) -> Histories:
    """Returns the histories of the first `users` users, or of all users."""
    import numpy as np  # here, so that --help needs PyTorch alone

    user, item, rating, time = np.loadtxt(data_file(), skiprows=1, dtype=np.int64, unpack=True)
    order = np.lexsort((time, user))
    _, lengths = np.unique(user, return_counts=True)
    if users is not None and not 1 <= users <= len(lengths):
        raise ValueError(f"--users is a number from 1 to {len(lengths)}, got {users}.")
    lengths = lengths[:users]
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    events = order[: int(offsets[-1])]
    return Histories(torch.from_numpy(item[events] - 1), torch.from_numpy(rating[events] - 1), offsets)


class Embedding:
    """Random embeddings of items and ratings, and random projections to query, key and value, from one seed.

    The embeddings are untrained, but they have the scale of layer-normalised activations. Scores are about N(0, 1).
    """

    def __init__(
        self, histories: Histories, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        width = heads * head_dim
        self.device = device
        self.generator = torch.Generator().manual_seed(0)
        self.shape = (heads, head_dim)
        self.dtype = dtype
        self.items = self.normal(int(histories.items.max()) + 1, width)
        self.ratings = self.normal(RATINGS, width)
        self.projections = self.normal(3, width, width) / width**0.5

    def normal(self, *shape: int) -> Tensor:
        """Draws on the CPU, so that every device gets the same numbers."""
        return torch.randn(*shape, generator=self.generator).to(self.device)

    def rows(self, count: int) -> Tensor:
        """Returns N(0, 1) numbers (count, heads, head_dim), instead of learned rows."""
        return self.normal(count, *self.shape).to(self.dtype)

    def query_key_value(self, batch: Histories) -> tuple[Tensor, ...]:
        """Returns query, key and value, each (events, heads, head_dim)."""
        events = self.items[batch.items.to(self.device)] + self.ratings[batch.ratings.to(self.device)]
        events = torch.nn.functional.layer_norm(events, events.shape[-1:])
        return tuple((events @ matrix).view(-1, *self.shape).to(self.dtype) for matrix in self.projections)
