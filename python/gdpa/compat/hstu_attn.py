"""The functions of the older HSTU wheel for Ampere, package `hstu_attn`: another order of arguments than in FBGEMM."""

import torch

from gdpa._leaf import leaf
from gdpa.compat import hstu

__all__ = ["hstu_attn_qkvpacked_func", "hstu_attn_varlen_func"]


@leaf
def hstu_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_contexts: torch.Tensor | None = None,
    num_targets: torch.Tensor | None = None,
    target_group_size: int = 1,
    window_size: tuple[int, int] = (-1, -1),
    alpha: float = 1.0,
    rab: torch.Tensor | None = None,
    has_drab: bool = False,
    kv_cache: torch.Tensor | None = None,
    page_offsets: torch.Tensor | None = None,
    page_ids: torch.Tensor | None = None,
    last_page_lens: torch.Tensor | None = None,
    cu_seqlens_t: torch.Tensor | None = None,
    func: torch.Tensor | None = None,
    scaling_seqlen: int = -1,
) -> torch.Tensor:
    """Computes gdpa.compat.hstu.hstu_attn_varlen_func, which describes the arguments.

    Args:
        cu_seqlens_t: without effect. num_targets has the same numbers.

    Example::

        >>> offsets = torch.tensor([0, 5, 12], dtype=torch.int32)
        >>> q, k, v = torch.randn(3, 12, 4, 64).unbind()
        >>> hstu_attn_varlen_func(q, k, v, offsets, offsets, 7, 7, window_size=(-1, 0)).shape
        torch.Size([12, 4, 64])
    """
    return hstu.hstu_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, None, None, max_seqlen_q, max_seqlen_k, scaling_seqlen, num_contexts,
        num_targets, target_group_size, window_size, alpha, rab, has_drab, kv_cache, page_offsets, page_ids,
        last_page_lens, func,
    )  # fmt: skip


@leaf
def hstu_attn_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_contexts: torch.Tensor | None = None,
    num_targets: torch.Tensor | None = None,
    target_group_size: int = 1,
    window_size: tuple[int, int] = (-1, -1),
    alpha: float = 1.0,
    rab: torch.Tensor | None = None,
    has_drab: bool = False,
    func: torch.Tensor | None = None,
    scaling_seqlen: int = -1,
) -> torch.Tensor:
    """Computes hstu_attn_varlen_func of the three parts of qkv, (T, 3, H, D), without copies.

    Example::

        >>> offsets = torch.tensor([0, 5, 12], dtype=torch.int32)
        >>> hstu_attn_qkvpacked_func(torch.randn(12, 3, 4, 64), offsets, offsets, 7, 7).shape
        torch.Size([12, 4, 64])
    """
    return hstu.hstu_attn_qkvpacked_func(
        qkv, cu_seqlens_q, cu_seqlens_k, None, None, max_seqlen_q, max_seqlen_k, scaling_seqlen, num_contexts,
        num_targets, target_group_size, window_size, alpha, rab, has_drab, func,
    )  # fmt: skip
