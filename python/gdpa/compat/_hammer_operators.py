"""The operators hstu::hstu_mha, hstu_mha_fwd and hstu_mha_bwd of generative-recommenders (ops/cpp/hstu_attention)."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from gdpa.compat._order import operator_of
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


def _mask_of(given: SimpleNamespace) -> tuple[torch.Tensor, dict[str, Any]]:
    """Returns the offsets of the queries, and the arguments of varlen_attention for the keys and the mask."""
    lengths = (given.max_seq_len_tensor, given.contextual_seq_len_tensor, given.max_attn_len_tensor)
    if any(one is not None for one in (*lengths, given.min_full_attn_seq_len_tensor)) or given.num_groups != 1:
        raise NotImplementedError("hstu_mha: expected no tensors of lengths and num_groups 1")
    q, seq_offsets, num_targets = given.q, given.seq_offsets, given.num_targets
    if seq_offsets is None:
        seq_offsets = torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device) * q.shape[1]
    elif seq_offsets.shape[0] == 0:
        seq_offsets = seq_offsets.new_zeros(1)  # no sequence
    options = options_of(
        given.alpha, seq_offsets, num_targets, given.max_attn_len, given.contextual_seq_len, given.min_full_attn_seq_len
    )
    if not given.causal and given.max_attn_len <= 0:  # a window is causal in each case
        options = {"cu_seq_k": seq_offsets, "activation": "silu", "scale": given.alpha}
        if num_targets is not None:
            options["mask"] = Mask("(kv_idx < len_k - targets[batch]) | (kv_idx == q_idx)", {"targets": num_targets})
    if given.seq_offsets_q is None:
        return seq_offsets, options
    if "mask" in options or given.max_attn_len > 0:
        raise NotImplementedError(
            "hstu_mha: expected no window, contexts and targets with seq_offsets_q, as in generative-recommenders"
        )
    return given.seq_offsets_q, options


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns (batch, length, heads, head_dim) as (tokens, heads, head_dim)."""
    return tensor.flatten(0, 1) if tensor.dim() == 4 else tensor


def _number(attn_scale: torch.Tensor | None) -> torch.Tensor | None:
    """Returns a tensor with one element as a number."""
    return attn_scale.view(()) if attn_scale is not None and attn_scale.numel() == 1 else attn_scale


def hstu_mha(given: SimpleNamespace) -> torch.Tensor:
    refuse_softmax(given.num_softmax_heads)
    if any(one is not None for one in (given.q_descale, given.k_descale, given.v_descale)):
        raise NotImplementedError("hstu_mha: gdpa has no fp8; pass bfloat16 operands without descales")
    offsets_q, options = _mask_of(given)
    operands = with_stride_one(_flat(given.q), _flat(given.k), _flat(given.v))
    options["deterministic"] = getattr(given, "deterministic", False)  # hstu_mha_fwd has no such argument
    output = attend(*operands, offsets_q, given.max_seq_len, _number(given.attn_scale), **options)
    return output.view(*given.q.shape[:-1], output.shape[-1])


def hstu_mha_fwd(given: SimpleNamespace) -> tuple[torch.Tensor, None]:
    """The second result is for softmax heads."""
    with torch.no_grad():
        return hstu_mha(given), None


def hstu_mha_bwd(given: SimpleNamespace) -> list[torch.Tensor]:
    """Writes the gradients into dq, dk and dv, which may be views with any strides, and returns them."""
    refuse_softmax(given.num_softmax_heads)
    offsets_q, options = _mask_of(given)
    operands = with_stride_one(_flat(given.q), _flat(given.k), _flat(given.v))
    batch = offsets_q.shape[0] - 1
    options["out_scale"] = out_scale_of(given.max_seq_len, _number(given.attn_scale), operands[0].shape[0], batch)
    gradients = [given.dq, given.dk, given.dv]
    flat = [_flat(one) for one in gradients]
    write_gradients(_flat(given.dout), *operands, offsets_q, *flat, deterministic=given.deterministic, **options)
    for one, written in zip(gradients, flat, strict=True):
        if one.data_ptr() != written.data_ptr():  # a copy, because the two dimensions are not one
            one.copy_(written.view(one.shape))
    return gradients


_KERNELS: dict[str, Callable[[SimpleNamespace], Any]] = {
    "hstu_mha": hstu_mha, "hstu_mha_fwd": hstu_mha_fwd, "hstu_mha_bwd": hstu_mha_bwd,
}  # fmt: skip
OPERATORS = {name: operator_of(SCHEMAS[name], kernel) for name, kernel in _KERNELS.items()}
