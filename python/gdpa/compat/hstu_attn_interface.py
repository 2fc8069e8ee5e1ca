"""The functions of the older HSTU wheel for Hopper, module `hstu_attn_interface`.

Its order of arguments differs from FBGEMM's, and after has_drab from the order of `hstu_attn`.
"""

import torch

from gdpa.compat._order import in_order
from gdpa.compat.hstu import (
    Call,
    get_bm_and_bn_block_size_bwd,
    get_bm_and_bn_block_size_fwd,
    quantize_for_block_scale,
    quantize_for_head_batch_tensor,
    quantize_for_two_directions,
)
from gdpa.compat.hstu_attn import COMMON, DEFAULTS, hstu_attn_qkvpacked_func

__all__ = [
    "get_bm_and_bn_block_size_bwd",
    "get_bm_and_bn_block_size_fwd",
    "hstu_attn_qkvpacked_func",
    "hstu_attn_varlen_func",
    "quantize_for_block_scale",
    "quantize_for_head_batch_tensor",
    "quantize_for_two_directions",
]


@in_order(Call, f"q k v {COMMON} func quant_mode scaling_seqlen", **DEFAULTS)
def hstu_attn_varlen_func(call: Call) -> torch.Tensor:
    """Computes gdpa.compat.hstu.hstu_attn_varlen_func, which describes the arguments.

    Example::

        >>> offsets = torch.tensor([0, 5, 12], dtype=torch.int32)
        >>> q, k, v = torch.randn(3, 12, 4, 64).unbind()
        >>> hstu_attn_varlen_func(q, k, v, offsets, offsets, 7, 7, window_size=(-1, 0)).shape
        torch.Size([12, 4, 64])
    """
    return call.attention()
