"""A linear map over the token axis of dense tokens (B, n, D)."""

import torch
from torch import Tensor


def over_tokens(weight: Tensor, x: Tensor) -> Tensor:
    """Returns W X for each sample: (m, n) and (B, n, D) to (B, m, D).

    A batched product with one weight for all samples has a contiguous gradient. For W @ X, PyTorch transposes X and its
    gradient, and torch.compile then mistakes the strides of a layer normalisation before it (PyTorch 2.15).
    """
    return torch.bmm(weight.expand(x.shape[0], -1, -1), x)
