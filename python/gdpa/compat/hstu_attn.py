"""The functions of the older HSTU wheel for Ampere, package `hstu_attn`: another order of arguments than in FBGEMM."""

from typing import Any

from gdpa.compat import hstu
from gdpa.compat._order import in_order

__all__ = ["hstu_attn_qkvpacked_func", "hstu_attn_varlen_func"]

#: The arguments after the operands up to has_drab, and what FBGEMM requires and the older wheels do not.
COMMON = (
    "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k num_contexts num_targets target_group_size window_size alpha "
    "rab has_drab"
)
DEFAULTS: dict[str, Any] = {
    "seqused_q": None, "seqused_k": None, "scaling_seqlen": -1, "num_contexts": None, "num_targets": None,
}  # fmt: skip


@in_order(
    hstu.hstu_attn_varlen_func,
    f"q k v {COMMON} kv_cache page_offsets page_ids last_page_lens cu_seqlens_t: func scaling_seqlen",
    **DEFAULTS,
)
def hstu_attn_varlen_func() -> None:
    """Computes gdpa.compat.hstu.hstu_attn_varlen_func, which describes the arguments.

    Args:
        cu_seqlens_t: without effect. num_targets has the same numbers.

    Example::

        >>> offsets = torch.tensor([0, 5, 12], dtype=torch.int32)
        >>> q, k, v = torch.randn(3, 12, 4, 64).unbind()
        >>> hstu_attn_varlen_func(q, k, v, offsets, offsets, 7, 7, window_size=(-1, 0)).shape
        torch.Size([12, 4, 64])
    """


@in_order(hstu.hstu_attn_qkvpacked_func, f"qkv {COMMON} func scaling_seqlen", **DEFAULTS)
def hstu_attn_qkvpacked_func() -> None:
    """Computes hstu_attn_varlen_func of the three parts of qkv, (T, 3, H, D), without copies.

    Example::

        >>> offsets = torch.tensor([0, 5, 12], dtype=torch.int32)
        >>> hstu_attn_qkvpacked_func(torch.randn(12, 3, 4, 64), offsets, offsets, 7, 7).shape
        torch.Size([12, 4, 64])
    """
