"""NDCG@10 and HR@10 of the next item among all items, of the validation and of the test."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gdpa.train.data import Events
from gdpa.train.model import Recommender

CUT = 10


@dataclass(frozen=True)
class Metrics:
    """The mean over the users."""

    ndcg: float
    hit_rate: float


def metrics_of(ranks: Tensor) -> Metrics:
    """Returns the means of 1 / log2(2 + rank) and of 1, where the rank of the next item, from 0, is below CUT."""
    hits = ranks < CUT
    return Metrics(float((hits / torch.log2(2.0 + ranks)).mean()), float(hits.double().mean()))


@torch.no_grad()
def evaluate(model: Recommender, events: Events, history: int, users: int = 128) -> tuple[Metrics, Metrics]:
    """Returns the metrics of the validation and of the test.

    The last event of each user is the test, and the event before it is the validation.
    The candidates are all items, also those that the user has rated.
    """
    device = model.item_bias.device
    ranks = []
    was_training = model.training
    model.eval()
    for first in range(0, events.users, users):
        batch = events.batch(range(first, min(first + users, events.users)), events.ends, history).to(device)
        model.expect_rows(len(batch.items))
        rows = batch.cu_seqlens[1:, None].long() - torch.tensor([2, 1], device=device)
        scores = model(batch.items, batch.cu_seqlens, rows.flatten()).float()
        target = scores.gather(1, batch.next_items[rows].view(-1, 1))
        above = scores.shape[1] - (scores <= target).sum(1)  # a NaN is above
        ranks.append(above.view(-1, 2).cpu())
    model.train(was_training)
    validation, test = torch.cat(ranks).unbind(1)
    return metrics_of(validation), metrics_of(test)
