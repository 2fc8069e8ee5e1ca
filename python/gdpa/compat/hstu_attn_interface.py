"""The functions of the older HSTU wheel for Hopper, module `hstu_attn_interface`.

Its order of arguments differs from FBGEMM's, and after has_drab from the order of `hstu_attn`.
"""

import torch

from gdpa._leaf import leaf
from gdpa.compat import hstu
from gdpa.compat.hstu import (
    get_bm_and_bn_block_size_bwd,
    get_bm_and_bn_block_size_fwd,
    quantize_for_block_scale,
    quantize_for_head_batch_tensor,
    quantize_for_two_directions,
)
from gdpa.compat.hstu_attn import hstu_attn_qkvpacked_func

__all__ = [
    "get_bm_and_bn_block_size_bwd",
    "get_bm_and_bn_block_size_fwd",
    "hstu_attn_qkvpacked_func",
    "hstu_attn_varlen_func",
    "quantize_for_block_scale",
    "quantize_for_head_batch_tensor",
    "quantize_for_two_directions",
]


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
    func: torch.Tensor | None = None,
    quant_mode: int | None = -1,
    scaling_seqlen: int = -1,
) -> torch.Tensor:
    """Computes gdpa.compat.hstu.hstu_attn_varlen_func, which describes the arguments.

    Example::

        >>> offsets = torch.tensor([0, 5, 12], dtype=torch.int32)
        >>> q, k, v = torch.randn(3, 12, 4, 64).unbind()
        >>> hstu_attn_varlen_func(q, k, v, offsets, offsets, 7, 7, window_size=(-1, 0)).shape
        torch.Size([12, 4, 64])
    """
    return hstu.hstu_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, None, None, max_seqlen_q, max_seqlen_k, scaling_seqlen, num_contexts,
        num_targets, target_group_size, window_size, alpha, rab, has_drab, func=func, quant_mode=quant_mode,
    )  # fmt: skip
