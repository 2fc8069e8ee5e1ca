"""The functions of the older HSTU wheel for Ampere, package `hstu_attn`: another order of arguments than in FBGEMM."""

from typing import Any

import torch

from gdpa.compat._order import in_order
from gdpa.compat.hstu import MASKS, Call

__all__ = ["hstu_attn_qkvpacked_func", "hstu_attn_varlen_func"]

#: The arguments after the operands up to has_drab, and what FBGEMM requires and the older wheels do not.
COMMON = f"cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k {MASKS}"
DEFAULTS: dict[str, Any] = {
    "seqused_q": None, "seqused_k": None, "scaling_seqlen": -1, "num_contexts": None, "num_targets": None,
}  # fmt: skip


@in_order(
    Call, f"q k v {COMMON} kv_cache page_offsets page_ids last_page_lens cu_seqlens_t func scaling_seqlen", **DEFAULTS
)
def hstu_attn_varlen_func(call: Call, cu_seqlens_t: torch.Tensor | None = None) -> torch.Tensor:
    """Computes gdpa.compat.hstu.hstu_attn_varlen_func, which describes the arguments.

    Args:
        cu_seqlens_t: without effect. num_targets has the same numbers.

    Example::

        >>> offsets = torch.tensor([0, 5, 12], dtype=torch.int32)
        >>> q, k, v = torch.randn(3, 12, 4, 64).unbind()
        >>> hstu_attn_varlen_func(q, k, v, offsets, offsets, 7, 7, window_size=(-1, 0)).shape
        torch.Size([12, 4, 64])
    """
    return call.attention()


@in_order(Call, f"qkv {COMMON} func scaling_seqlen", q=None, k=None, v=None, **DEFAULTS)
def hstu_attn_qkvpacked_func(call: Call, qkv: torch.Tensor) -> torch.Tensor:
    """Computes hstu_attn_varlen_func of the three parts of qkv, (T, 3, H, D), without copies.

    Example::

        >>> offsets = torch.tensor([0, 5, 12], dtype=torch.int32)
        >>> hstu_attn_qkvpacked_func(torch.randn(12, 3, 4, 64), offsets, offsets, 7, 7).shape
        torch.Size([12, 4, 64])
    """
    return call.packed_attention(qkv)
