"""AUC of the likes and NDCG@10 of the next item, on the events after the split."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from gdpa.train.data import Batch, Events
from gdpa.train.model import Recommender

CUT = 10


def auc(scores: Tensor, labels: Tensor) -> float:
    """Returns the probability that a positive has a higher score than a negative. A tie counts one half."""
    _, place, counts = scores.double().unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks = (last - (counts - 1) / 2)[place]  # the mean rank of equal scores, from 1
    positive = labels > 0
    number, others = int(positive.sum()), int((~positive).sum())
    if not number or not others:
        return float("nan")
    return float((ranks[positive].sum() - number * (number + 1) / 2) / (number * others))


def ndcg(ranks: Tensor) -> float:
    """Returns the mean of 1 / log2(2 + rank) of the target's rank from 0, if it is below CUT."""
    gains = torch.where(ranks < CUT, 1 / torch.log2(2.0 + ranks), 0.0)
    return float(gains.mean()) if len(gains) else float("nan")


def seen(batch: Batch, items: int) -> Tensor:
    """Returns a mask (T, items) of the items of the same user up to each row."""
    mask = torch.zeros(len(batch.items), items, dtype=torch.bool, device=batch.items.device)
    mask[torch.arange(len(batch.items), device=mask.device), batch.items] = True
    bounds = batch.cu_seqlens.tolist()
    for begin, end in pairwise(bounds):
        mask[begin:end] = mask[begin:end].cumsum(0) > 0
    return mask


@torch.no_grad()
def evaluate(model: Recommender, events: Events, after: int, users: int = 64) -> dict[str, float]:
    """Predicts every event after the split from all earlier events of its user, and returns the metrics."""
    device = model.item_bias.device
    likes, labels, ranks = [], [], []
    model.eval()
    for first in range(0, len(events.lengths), users):
        batch = events.batch(range(first, min(first + users, len(events.lengths))), after).to(device)
        model.expect_rows(len(batch.items))
        scores, like = model(batch.items, batch.ratings, batch.cu_seqlens, batch.next_items)
        rows = batch.predicts.nonzero().squeeze(1)
        of_items = scores.float().masked_fill(seen(batch, scores.shape[1]), -torch.inf)[rows]
        target = of_items.gather(1, batch.next_items[rows, None])
        ranks.append((of_items > target).sum(1).cpu())
        likes.append(like[rows].float().cpu())
        labels.append(batch.next_likes[rows].cpu())
    model.train()
    return {"auc": auc(torch.cat(likes), torch.cat(labels)), "ndcg@10": ndcg(torch.cat(ranks))}
