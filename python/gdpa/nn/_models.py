"""InterFormer and Kunlun, which learn sequences and other features of a sample together."""

from typing import Any

import torch
from torch import Tensor, nn

from gdpa.nn._attention import GDPAttention
from gdpa.nn._feed_forward import PFFN
from gdpa.nn._interaction import DotInteraction, Gating, TokenMLP
from gdpa.nn._jagged import check_batch, first_rows, last_rows, prepend, unpacked
from gdpa.nn._pooling import HSP, PMA


class SequenceSummary(nn.Module):
    """The summary of a sequence in InterFormer's cross architecture: Gating([CLS, PMA, recent]).

    CLS are the first rows of the sequence, PMA are tokens of learned queries, and recent are the last rows. A short
    sequence has zeros instead of the rows that it lacks. The result has the shape (B, cls + queries + recent, D).
    """

    def __init__(self, dim: int, heads: int, *, cls: int, queries: int, recent: int, **options: Any) -> None:
        super().__init__()
        self.cls, self.recent = cls, recent
        self.pool = PMA(dim, heads, queries, **options)
        self.gate = Gating(dim)

    def forward(self, s: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Returns the summary of the rows s (T, D)."""
        first, last = first_rows(s, cu_seqlens, self.cls), last_rows(s, cu_seqlens, self.recent)
        return self.gate(torch.cat([first, self.pool(s, cu_seqlens).to(s.dtype), last], dim=1))


class InterFormerLayer(nn.Module):
    """One layer of InterFormer: cross, interaction and sequence architecture.

        X_sum = Gating(MLP(X))                              (B, n_sum, D)
        S_sum = Gating([CLS(S), PMA(S), recent(S)])         (B, n_sum + k + r, D)
        X' = Interaction([X, S_sum])                        (B, n, D)
        S' = MHA(PFFN(X_sum, S))                            (T, D)

    The rows S begin with the n_sum CLS tokens of each sequence. See InterFormer.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        features: int,
        summary: int,
        queries: int,
        recent: int,
        window_size: tuple[int, int],
        **options: Any,
    ) -> None:
        super().__init__()
        self.summarise = nn.Sequential(TokenMLP(features, summary, dim), Gating(dim))
        self.summarise_sequence = SequenceSummary(dim, heads, cls=summary, queries=queries, recent=recent, **options)
        self.interact = DotInteraction(features + summary + queries + recent, features, dim)
        self.feed_forward = PFFN(dim, heads, tau=float(summary), **{**options, "activation": "identity"})
        self.attention = GDPAttention(dim, heads, norm=nn.LayerNorm(dim), window_size=window_size, **options)

    def forward(self, x: Tensor, s: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        """Returns X' and S'. The rows s begin with CLS tokens."""
        x_sum = self.summarise(x)
        s_sum = self.summarise_sequence(s, cu_seqlens)
        x_next = self.interact(torch.cat([x.to(s_sum.dtype), s_sum], dim=1))
        return x_next, self.attention(self.feed_forward(s, x_sum, cu_seqlens), cu_seqlens)


class InterFormer(nn.Module):
    """InterFormer (arXiv 2411.09852): features and sequence of a sample exchange summaries in every layer.

    Each layer has three parts. The interaction architecture mixes the features with a summary of the sequence. The
    sequence architecture applies a PFFN with weights made from the features, in its linear form, and then attention.
    The cross architecture makes both summaries: gated features, and gated CLS, PMA and recent tokens. The summary of
    the features is put before the sequence as CLS tokens in the first layer. GDPA replaces softmax, and a layer
    normalisation precedes the projections of the attention.

    Args:
        dim: D.
        heads: H.
        layers: the number of layers.
        features: n, the number of feature tokens.
        summary: n_sum, the number of summary tokens of the features, which are the CLS tokens.
        queries: k, the number of PMA tokens.
        recent: r, the number of recent tokens.
        window_size: the window of the attention, such as (-1, 0) or (64, 0).
        options: further arguments of varlen_attention for all layers, such as deterministic. activation is f of the
            attention and of PMA, with the default "silu".

    Shapes: x (B, n, D) and the rows s (T, D) with cu_seqlens (B + 1), or s as a nested tensor. The results are X (B, n,
    D), and the summary of the sequence (B, n_sum + k + r, D) after the last layer.

    Example::

        >>> model = gdpa.nn.InterFormer(32, heads=4, layers=2, features=6)
        >>> x, s_sum = model(torch.randn(2, 6, 32), torch.randn(12, 32), torch.tensor([0, 5, 12]))
        >>> x.shape, s_sum.shape
        (torch.Size([2, 6, 32]), torch.Size([2, 12, 32]))
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        layers: int,
        *,
        features: int,
        summary: int = 4,
        queries: int = 4,
        recent: int = 4,
        window_size: tuple[int, int] = (-1, -1),
        **options: Any,
    ) -> None:
        super().__init__()
        self.cls = nn.Sequential(TokenMLP(features, summary, dim), Gating(dim))
        tokens: dict[str, Any] = {"features": features, "summary": summary, "queries": queries, "recent": recent}
        self.layers = nn.ModuleList(
            InterFormerLayer(dim, heads, **tokens, window_size=window_size, **options) for _ in range(layers)
        )
        self.summarise_sequence = SequenceSummary(dim, heads, cls=summary, queries=queries, recent=recent, **options)

    def forward(self, x: Tensor, s: Tensor, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns X and the summary of the sequence after the last layer."""
        rows, offsets = unpacked("s", s, cu_seqlens)
        check_batch("x", x, offsets)
        rows, offsets = prepend(self.cls(x), rows, offsets)
        for layer in self.layers:
            x, rows = layer(x, rows, offsets)
        return x, self.summarise_sequence(rows, offsets)


class KunlunLayer(nn.Module):
    """One layer of Kunlun: an interaction block and a transformer block, with computation skipping.

        X_sum = MLP(X)                                      (B, n_sum, D)
        H = HSP(S), or the H of the layer before            (B, N, D)
        X' = Interaction([X_sum, H])                        (B, n, D)
        S' = PFFN(X_sum, S), or GDPAttention(S) in a window

    A personal layer computes HSP and PFFN. A local layer skips both, reuses H and computes attention. See Kunlun.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        features: int,
        summary: int,
        seeds: int,
        tokens: int,
        experts: int,
        tau: float | None,
        window_size: tuple[int, int],
        is_personal: bool,
        is_local: bool,
        **options: Any,
    ) -> None:
        super().__init__()
        self.summarise = TokenMLP(features, summary, dim)
        self.pool = HSP(dim, heads, seeds, tokens, **options) if is_personal else None
        self.norm = nn.LayerNorm(dim) if is_personal else None
        self.feed_forward = PFFN(dim, heads, tau=tau, **options) if is_personal else None
        self.attention: GDPAttention | None = None
        if is_local:
            self.attention = GDPAttention(dim, heads, norm=nn.LayerNorm(dim), window_size=window_size, **options)
        self.parts = [len(part) for part in torch.arange(summary + tokens).tensor_split(experts)]
        made = [len(part) for part in torch.arange(features).tensor_split(experts)]
        self.experts = nn.ModuleList(DotInteraction(m, n, dim) for m, n in zip(self.parts, made, strict=True))

    def forward(self, x: Tensor, s: Tensor, cu_seqlens: Tensor, pooled: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns X', S' and H. `pooled` is the H of an earlier layer, which a local layer needs."""
        x_sum = self.summarise(x)
        if self.pool is not None:
            pooled = self.pool(s, cu_seqlens)
        if pooled is None:
            raise ValueError("pooled: expected the H of an earlier layer, got None; the first layer is personal")
        both = torch.cat([x_sum, pooled.to(x_sum.dtype)], dim=1).split(self.parts, dim=1)
        x_next = torch.cat([expert(part) for expert, part in zip(self.experts, both, strict=True)], dim=1)
        if self.feed_forward is not None and self.norm is not None:
            s = self.norm(self.feed_forward(s, x_sum, cu_seqlens))
        if self.attention is not None:
            s = self.attention(s, cu_seqlens)
        return x_next, s, pooled


class Kunlun(nn.Module):
    """Kunlun (arXiv 2602.10016): InterFormer with GDPA, HSP, sliding windows and computation skipping.

    With `skip`, the layers alternate: layers 0, 2, ... pool the sequence with HSP and apply a PFFN with weights made
    from the features. Layers 1, 3, ... reuse the pooled tokens and apply attention in a window. Without `skip`, every
    layer does all of it. The interaction is a number of experts, each with its part of the tokens. After the last
    layer, an HSP pools the rows. Without it, the last attention would have no effect.

    Args:
        dim: D.
        heads: H.
        layers: the number of layers.
        features: n, the number of feature tokens.
        summary: n_sum, the number of summary tokens of the features, which are the rows of K and V in the PFFN.
        seeds, tokens: as in HSP.
        experts: the number of interaction modules in a layer.
        window_size: the window of the attention.
        tau: the divisor of the scores of the PFFN. The paper uses the maximum length of a sequence. The default is
            sqrt(d).
        skip: whether the layers alternate.
        options: further arguments of varlen_attention for all layers, such as deterministic. activation is f of
            attention, PFFN and HSP, with the default "silu".

    Shapes: x (B, n, D) and the rows s (T, D) with cu_seqlens (B + 1), or s as a nested tensor. The results are X (B, n,
    D), and the pooled tokens H (B, tokens, D) of the rows after the last layer.

    Example::

        >>> model = gdpa.nn.Kunlun(32, heads=4, layers=2, features=6, seeds=16, tokens=4)
        >>> x, pooled = model(torch.randn(2, 6, 32), torch.randn(12, 32), torch.tensor([0, 5, 12]))
        >>> x.shape, pooled.shape
        (torch.Size([2, 6, 32]), torch.Size([2, 4, 32]))
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        layers: int,
        *,
        features: int,
        summary: int = 4,
        seeds: int = 32,
        tokens: int = 8,
        experts: int = 2,
        window_size: tuple[int, int] = (64, 0),
        tau: float | None = None,
        skip: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        if not 1 <= experts <= min(features, summary + tokens):
            raise ValueError(
                f"experts: expected a number from 1 to {min(features, summary + tokens)}, the number of tokens, got "
                f"{experts}; change it"
            )
        sizes: dict[str, Any] = dict(features=features, summary=summary, seeds=seeds, tokens=tokens, experts=experts)
        options = {"activation": "silu", **options}
        self.layers = nn.ModuleList()
        for number in range(layers):
            kind: dict[str, Any] = {"is_personal": not skip or number % 2 == 0, "is_local": not skip or number % 2 == 1}
            self.layers.append(KunlunLayer(dim, heads, **sizes, **kind, tau=tau, window_size=window_size, **options))
        self.pool = HSP(dim, heads, seeds, tokens, **options)

    def forward(self, x: Tensor, s: Tensor, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns X and the pooled tokens after the last layer."""
        rows, offsets = unpacked("s", s, cu_seqlens)
        check_batch("x", x, offsets)
        pooled: Tensor | None = None
        for layer in self.layers:
            x, rows, pooled = layer(x, rows, offsets, pooled)
        return x, self.pool(rows, offsets)
