"""PairBalancedSampler: the users of each rank, so that all ranks compute about the same number of scores."""

import heapq
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


class PairBalancedSampler:
    """Divides shuffled batches of sequences among ranks, so that each rank has about the same work.

    The work of a sequence of length n is n^2 + linear * n: the scores of self-attention, and the cost of its rows
    outside of attention in scores. The longest sequence of a batch goes first, always to the rank with the least work.
    Every rank computes the same division from the same seed, so no communication is needed. All ranks have the same
    number of batches. A rank may have no sequence in a batch.

    Args:
        lengths: the length of each sequence.
        batch: the number of sequences in a batch of all ranks together. The last batch of an epoch may be smaller.
        world: the number of ranks.
        seed: the seed of the permutations.
        linear: the cost of a row in scores.

    Example::

        >>> sampler = gdpa.distributed.PairBalancedSampler([100, 10, 10, 10, 10], batch=5, world=2)
        >>> for parts in sampler.epoch(0):
        ...     print(sorted(len(part) for part in parts))
        [1, 4]
    """

    def __init__(
        self, lengths: Sequence[int] | Tensor, batch: int, world: int = 1, *, seed: int = 0, linear: float = 0.0
    ) -> None:
        if batch < 1 or world < 1:
            raise ValueError(f"batch, world: expected numbers from 1 up, got {batch} and {world}; change them")
        numbers = torch.as_tensor(lengths, dtype=torch.float64)
        self.work: list[float] = (numbers * numbers + linear * numbers).tolist()
        self.batch, self.world, self.seed = batch, world, seed

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return -(-len(self.work) // self.batch)

    def epoch(self, number: int) -> Iterator[list[list[int]]]:
        """Yields the batches of an epoch: for each rank, the indices of its sequences."""
        generator = torch.Generator().manual_seed(hash((self.seed, number)) % 2**63)
        order = torch.randperm(len(self.work), generator=generator).tolist()
        for first in range(0, len(order), self.batch):
            yield self.divided(order[first : first + self.batch])

    def divided(self, sequences: Sequence[int]) -> list[list[int]]:
        """Returns the sequences of each rank."""
        parts: list[list[int]] = [[] for _ in range(self.world)]
        # Among ranks with equal work, the one with fewer sequences comes first, so empty sequences spread too.
        ranks = [(0.0, 0, rank) for rank in range(self.world)]
        for sequence in sorted(sequences, key=lambda index: (-self.work[index], index)):
            work, count, rank = heapq.heappop(ranks)
            parts[rank].append(sequence)
            heapq.heappush(ranks, (work + self.work[sequence], count + 1, rank))
        return parts
