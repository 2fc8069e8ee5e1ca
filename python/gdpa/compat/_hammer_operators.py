"""The operators hstu::hstu_mha, hstu_mha_fwd and hstu_mha_bwd of generative-recommenders (ops/cpp/hstu_attention)."""

from collections.abc import Callable
from typing import Any

import torch

from gdpa.compat.generative_recommenders import (
    attend,
    options_of,
    out_scale_of,
    refuse_softmax,
    with_stride_one,
    write_gradients,
)
from gdpa.mask import Mask

_MASK = (
    "Tensor? seq_offsets, bool causal, Tensor? num_targets, Tensor? attn_scale, int max_attn_len, "
    "int min_full_attn_seq_len, int contextual_seq_len, "
)
_DESCALES = "Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, "
_LENGTHS = (
    "Tensor? max_seq_len_tensor=None, Tensor? contextual_seq_len_tensor=None, Tensor? max_attn_len_tensor=None, "
    "Tensor? min_full_attn_seq_len_tensor=None, int num_groups=1"
)
_QUERIES = "Tensor? seq_offsets_q=None, int num_softmax_heads=0, "

#: The schemas of the operators, as in generative-recommenders.
SCHEMAS = {
    "hstu_mha": f"(SymInt max_seq_len, float alpha, Tensor q, Tensor k, Tensor v, {_MASK}{_DESCALES}"
    f"bool sort_by_length, bool deterministic, int sm_margin=0, SymInt max_q_len=0, {_QUERIES}bool training=True, "
    f"{_LENGTHS}, bool use_bf16_dq_accum=False) -> Tensor",
    "hstu_mha_fwd": f"(SymInt max_seq_len, float alpha, Tensor q, Tensor k, Tensor v, {_MASK}{_DESCALES}"
    f"int sm_margin=0, SymInt max_q_len=0, {_QUERIES}bool training=True, {_LENGTHS}) -> (Tensor, Tensor?)",
    "hstu_mha_bwd": "(SymInt max_seq_len, float alpha, Tensor dout, Tensor q, Tensor k, Tensor v, Tensor dq, "
    f"Tensor dk, Tensor dv, Tensor out, {_MASK}bool sort_by_length, bool deterministic, int sm_margin=0, "
    f"SymInt max_q_len=0, {_QUERIES}Tensor? softmax_lse=None, {_LENGTHS}, bool use_bf16_dq_accum=False) -> Tensor[]",
}


def _mask_of(
    q: torch.Tensor,
    alpha: float,
    seq_offsets: torch.Tensor | None,
    causal: bool,
    num_targets: torch.Tensor | None,
    max_attn_len: int,
    min_full_attn_seq_len: int,
    contextual_seq_len: int,
    seq_offsets_q: torch.Tensor | None,
    lengths: tuple[Any, ...],
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Returns the offsets of the queries, and the arguments of varlen_attention for the keys and the mask."""
    if any(one is not None for one in lengths[:4]) or lengths[4:5] not in ((), (1,)):
        raise NotImplementedError("hstu_mha: expected no tensors of lengths and num_groups 1")
    if seq_offsets is None:
        seq_offsets = torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device) * q.shape[1]
    elif seq_offsets.shape[0] == 0:
        seq_offsets = seq_offsets.new_zeros(1)  # no sequence
    options = options_of(
        alpha, seq_offsets, num_targets, max_attn_len, contextual_seq_len, min_full_attn_seq_len
    )  # fmt: skip
    if not causal and max_attn_len <= 0:  # a window is causal in each case
        options = {"cu_seq_k": seq_offsets, "activation": "silu", "scale": alpha}
        if num_targets is not None:
            options["mask"] = Mask("(kv_idx < len_k - targets[batch]) | (kv_idx == q_idx)", {"targets": num_targets})
    if seq_offsets_q is None:
        return seq_offsets, options
    if "mask" in options or max_attn_len > 0:
        raise NotImplementedError(
            "hstu_mha: expected no window, contexts and targets with seq_offsets_q, as in generative-recommenders"
        )
    return seq_offsets_q, options


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns (batch, length, heads, head_dim) as (tokens, heads, head_dim)."""
    return tensor.flatten(0, 1) if tensor.dim() == 4 else tensor


def _number(attn_scale: torch.Tensor | None) -> torch.Tensor | None:
    """Returns a tensor with one element as a number."""
    return attn_scale.view(()) if attn_scale is not None and attn_scale.numel() == 1 else attn_scale


def hstu_mha(
    max_seq_len: int,
    alpha: float,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seq_offsets: torch.Tensor | None,
    causal: bool,
    num_targets: torch.Tensor | None,
    attn_scale: torch.Tensor | None,
    max_attn_len: int,
    min_full_attn_seq_len: int,
    contextual_seq_len: int,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    sort_by_length: bool,
    deterministic: bool,
    sm_margin: int = 0,
    max_q_len: int = 0,
    seq_offsets_q: torch.Tensor | None = None,
    num_softmax_heads: int = 0,
    training: bool = True,
    *lengths: Any,
) -> torch.Tensor:
    """`lengths` are four tensors in place of numbers, num_groups and use_bf16_dq_accum."""
    refuse_softmax(num_softmax_heads)
    if any(one is not None for one in (q_descale, k_descale, v_descale)):
        raise NotImplementedError("hstu_mha: gdpa has no fp8; pass bfloat16 operands without descales")
    offsets_q, options = _mask_of(
        q, alpha, seq_offsets, causal, num_targets, max_attn_len, min_full_attn_seq_len, contextual_seq_len,
        seq_offsets_q, lengths,
    )  # fmt: skip
    operands = with_stride_one(_flat(q), _flat(k), _flat(v))
    output = attend(*operands, offsets_q, max_seq_len, _number(attn_scale), deterministic=deterministic, **options)
    return output.view(*q.shape[:-1], output.shape[-1])


def hstu_mha_fwd(*arguments: Any) -> tuple[torch.Tensor, None]:
    """Has no sort_by_length and deterministic after the descales. The second result is for softmax heads."""
    with torch.no_grad():
        return hstu_mha(*arguments[:15], False, False, *arguments[15:]), None


def hstu_mha_bwd(
    max_seq_len: int,
    alpha: float,
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    out: torch.Tensor,
    seq_offsets: torch.Tensor | None,
    causal: bool,
    num_targets: torch.Tensor | None,
    attn_scale: torch.Tensor | None,
    max_attn_len: int,
    min_full_attn_seq_len: int,
    contextual_seq_len: int,
    sort_by_length: bool,
    deterministic: bool,
    sm_margin: int = 0,
    max_q_len: int = 0,
    seq_offsets_q: torch.Tensor | None = None,
    num_softmax_heads: int = 0,
    softmax_lse: torch.Tensor | None = None,
    *lengths: Any,
) -> list[torch.Tensor]:
    """Writes the gradients into dq, dk and dv, which may be views with any strides, and returns them."""
    refuse_softmax(num_softmax_heads)
    offsets_q, options = _mask_of(
        q, alpha, seq_offsets, causal, num_targets, max_attn_len, min_full_attn_seq_len, contextual_seq_len,
        seq_offsets_q, lengths,
    )  # fmt: skip
    operands = with_stride_one(_flat(q), _flat(k), _flat(v))
    out_scale = out_scale_of(max_seq_len, _number(attn_scale), operands[0].shape[0], offsets_q.shape[0] - 1)
    flat = [_flat(one) for one in (dq, dk, dv)]
    write_gradients(
        _flat(dout), *operands, offsets_q, *flat, out_scale=out_scale, deterministic=deterministic, **options
    )
    for one, written in zip((dq, dk, dv), flat, strict=True):
        if one.data_ptr() != written.data_ptr():  # a copy, because the two dimensions are not one
            one.copy_(written.view(one.shape))
    return [dq, dk, dv]


OPERATORS: dict[str, Callable[..., Any]] = {
    "hstu_mha": hstu_mha,
    "hstu_mha_fwd": hstu_mha_fwd,
    "hstu_mha_bwd": hstu_mha_bwd,
}
