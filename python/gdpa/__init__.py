"""Generalized Dot-Product Attention: O = out_scale * f(scale * Q K^T) V with any elementwise function f.

Two functions compute it for jagged and for dense batches, forward and backward; see docs/pytorch.md::

    import gdpa, torch

    lengths = torch.tensor([0, 5, 12])
    query, key, value = torch.randn(3, 12, 4, 64, requires_grad=True).unbind()
    output = gdpa.varlen_attention(query, key, value, lengths, lengths, activation="s * sigmoid(1.702 * s)")
    output.sum().backward()
"""

from importlib.metadata import version as _version

from gdpa._activation import Activation
from gdpa._attention import generalized_dot_product_attention, varlen_attention, varlen_attention_backward
from gdpa._compilation import CompiledKernel, Warmup
from gdpa._prepare import prepare_mask
from gdpa._warmup import warmup

from gdpa import compat, distributed, mask, nn  # isort: skip  # they use the names above

__version__ = _version("gdpa")

__all__ = [
    "Activation",
    "CompiledKernel",
    "Warmup",
    "compat",
    "distributed",
    "generalized_dot_product_attention",
    "mask",
    "nn",
    "prepare_mask",
    "varlen_attention",
    "varlen_attention_backward",
    "warmup",
]
