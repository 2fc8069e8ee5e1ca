"""Blocks of recommendation models on jagged batches, made of gdpa's attention: see docs/models.md.

The rows of a batch are a tensor (T, D) with cumulative lengths, or a nested tensor (B, ragged, D) of layout
torch.jagged, which has its own offsets::

    block = gdpa.nn.GDPAttention(256, heads=4, activation="silu", window_size=(-1, 0))
    output = block(rows, cu_seqlens)  # (T, 256)
    output = block(nested)  # (B, ragged, 256)
"""

from gdpa.nn import functional
from gdpa.nn._attention import GDPA, GDPACrossAttention, GDPAttention
from gdpa.nn._feed_forward import PFFN
from gdpa.nn._hstu import HSTULayer
from gdpa.nn._interaction import DotInteraction, Gating, TokenMLP
from gdpa.nn._models import InterFormer, InterFormerLayer, Kunlun, KunlunLayer, SequenceSummary
from gdpa.nn._pooling import HSP, PMA, SumKronLinear

__all__ = [
    "GDPA",
    "HSP",
    "PFFN",
    "PMA",
    "DotInteraction",
    "GDPACrossAttention",
    "GDPAttention",
    "Gating",
    "HSTULayer",
    "InterFormer",
    "InterFormerLayer",
    "Kunlun",
    "KunlunLayer",
    "SequenceSummary",
    "SumKronLinear",
    "TokenMLP",
    "functional",
]
