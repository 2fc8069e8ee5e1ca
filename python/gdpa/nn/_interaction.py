"""The parts of the models that mix the tokens of a sample: token MLP, gating, and interaction by inner products."""

import torch
from torch import Tensor, nn


def over_tokens(weight: Tensor, x: Tensor) -> Tensor:
    """Returns W X for each sample: (m, n) and (B, n, D) to (B, m, D).

    A batched product with one weight for all samples has a contiguous gradient. For W @ X, PyTorch transposes X and its
    gradient, and torch.compile then mistakes the strides of a layer normalisation before it (PyTorch 2.15).
    """
    return torch.bmm(weight.expand(x.shape[0], -1, -1), x)


class TokenMLP(nn.Module):
    """An MLP over the token axis, and a map of each token: (B, n, D) to (B, m, D).

    Y = W2 gelu(W1 X) W_d          W1 (hidden, n), W2 (m, hidden), W_d (D, D)
    """

    def __init__(self, tokens_in: int, tokens_out: int, dim: int, *, hidden: int | None = None) -> None:
        super().__init__()
        hidden = 2 * max(tokens_in, tokens_out) if hidden is None else hidden
        self.first = nn.Linear(tokens_in, hidden)
        self.second = nn.Linear(hidden, tokens_out)
        self.mix = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Returns Y (B, m, D)."""
        hidden = nn.functional.gelu(over_tokens(self.first.weight, x) + self.first.bias[:, None])
        return self.mix(over_tokens(self.second.weight, hidden) + self.second.bias[:, None])


class Gating(nn.Module):
    """The self-gate of InterFormer (arXiv 2411.09852, section 4.4): Gating(X) = sigmoid(X * MLP(X))."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the shape of x."""
        return torch.sigmoid(x * self.mlp(x))


class DotInteraction(nn.Module):
    """Interaction of tokens by their inner products, with a short cut: (B, m, D) to (B, n, D).

        P = X X^T / sqrt(D)                                 the inner products (B, m, m)
        Y = Norm(reshape(MLP(P)) + W_s X)                   W_s (n, m)

    InterFormer and Kunlun leave the interaction open (inner products, DCNv2, DHEN, Wukong). This module uses inner
    products, with the short cut and the normalisation of DHEN.
    """

    def __init__(self, tokens_in: int, tokens_out: int, dim: int, *, hidden: int | None = None) -> None:
        super().__init__()
        hidden = 2 * dim if hidden is None else hidden
        self.tokens_out = tokens_out
        self.mlp = nn.Sequential(nn.Linear(tokens_in**2, hidden), nn.GELU(), nn.Linear(hidden, tokens_out * dim))
        self.short_cut = nn.Parameter(torch.empty(tokens_out, tokens_in).normal_(0, tokens_in**-0.5))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Returns Y (B, n, D)."""
        products = torch.bmm(x, x.mT) * x.shape[-1] ** -0.5
        mixed = self.mlp(products.flatten(1)).unflatten(-1, (self.tokens_out, -1))
        return self.norm(mixed + over_tokens(self.short_cut, x))
