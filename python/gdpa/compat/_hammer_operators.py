"""The operators hstu::hstu_mha, hstu_mha_fwd and hstu_mha_bwd of generative-recommenders (ops/cpp/hstu_attention)."""

from types import SimpleNamespace
from typing import Any

import torch

from gdpa.compat._order import operator_of
from gdpa.compat.generative_recommenders import Call, refuse_softmax
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

# As in generative-recommenders.
_SCHEMAS = {
    "hstu_mha": f"(SymInt max_seq_len, float alpha, Tensor q, Tensor k, Tensor v, {_MASK}{_DESCALES}"
    f"bool sort_by_length, bool deterministic, int sm_margin=0, SymInt max_q_len=0, {_QUERIES}bool training=True, "
    f"{_LENGTHS}, bool use_bf16_dq_accum=False) -> Tensor",
    "hstu_mha_fwd": f"(SymInt max_seq_len, float alpha, Tensor q, Tensor k, Tensor v, {_MASK}{_DESCALES}"
    f"int sm_margin=0, SymInt max_q_len=0, {_QUERIES}bool training=True, {_LENGTHS}) -> (Tensor, Tensor?)",
    "hstu_mha_bwd": "(SymInt max_seq_len, float alpha, Tensor dout, Tensor q, Tensor k, Tensor v, Tensor dq, "
    f"Tensor dk, Tensor dv, Tensor out, {_MASK}bool sort_by_length, bool deterministic, int sm_margin=0, "
    f"SymInt max_q_len=0, {_QUERIES}Tensor? softmax_lse=None, {_LENGTHS}, bool use_bf16_dq_accum=False) -> Tensor[]",
}


def _call_of(given: SimpleNamespace) -> tuple[Call, torch.Tensor, dict[str, Any]]:
    """Returns the call, the offsets of the queries, and the arguments of varlen_attention for the keys and the mask."""
    refuse_softmax(given.num_softmax_heads)
    lengths = (given.max_seq_len_tensor, given.contextual_seq_len_tensor, given.max_attn_len_tensor)
    if any(one is not None for one in (*lengths, given.min_full_attn_seq_len_tensor)) or given.num_groups != 1:
        raise NotImplementedError("hstu_mha: expected no tensors of lengths and num_groups 1")
    call = Call(**{name: value for name, value in vars(given).items() if name in Call.__dataclass_fields__})
    call.q, call.k, call.v = (_flat(one) for one in (given.q, given.k, given.v))
    if call.seq_offsets is None:
        call.seq_offsets = (
            torch.arange(given.q.shape[0] + 1, dtype=torch.int32, device=call.q.device) * given.q.shape[1]
        )
    elif call.seq_offsets.shape[0] == 0:
        call.seq_offsets = call.seq_offsets.new_zeros(1)  # no sequence
    if call.attn_scale is not None and call.attn_scale.numel() == 1:
        call.attn_scale = call.attn_scale.view(())
    options = call.options()
    if not given.causal and given.max_attn_len <= 0:  # a window is causal in each case
        options = {"cu_seq_k": call.seq_offsets, "activation": "silu", "scale": given.alpha}
        if given.num_targets is not None:
            text = "(kv_idx < len_k - targets[batch]) | (kv_idx == q_idx)"
            options["mask"] = Mask(text, {"targets": given.num_targets})
    options["deterministic"] = getattr(given, "deterministic", False)  # hstu_mha_fwd has no such argument
    if given.seq_offsets_q is None:
        return call, call.seq_offsets, options
    if "mask" in options or given.max_attn_len > 0:
        raise NotImplementedError(
            "hstu_mha: expected no window, contexts and targets with seq_offsets_q, as in generative-recommenders"
        )
    return call, given.seq_offsets_q, options


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns (batch, length, heads, head_dim) as (tokens, heads, head_dim)."""
    return tensor.flatten(0, 1) if tensor.dim() == 4 else tensor


def hstu_mha(given: SimpleNamespace) -> torch.Tensor:
    if any(one is not None for one in (given.q_descale, given.k_descale, given.v_descale)):
        raise NotImplementedError("hstu_mha: gdpa has no fp8; pass bfloat16 operands without descales")
    call, offsets_q, options = _call_of(given)
    output = call.attend(offsets_q, **options)
    return output.view(*given.q.shape[:-1], output.shape[-1])


def hstu_mha_fwd(given: SimpleNamespace) -> tuple[torch.Tensor, None]:
    """The second result is for softmax heads."""
    with torch.no_grad():
        return hstu_mha(given), None


def hstu_mha_bwd(given: SimpleNamespace) -> list[torch.Tensor]:
    """Writes the gradients into dq, dk and dv, which may be views with any strides, and returns them."""
    call, offsets_q, options = _call_of(given)
    gradients = [given.dq, given.dk, given.dv]
    flat = [_flat(one) for one in gradients]
    call.write_gradients(_flat(given.dout), offsets_q, flat, **options)
    for one, written in zip(gradients, flat, strict=True):
        if one.data_ptr() != written.data_ptr():  # a copy, because the two dimensions are not one
            one.copy_(written.view(one.shape))
    return gradients


#: The schema and the function of each operator.
OPERATORS = {
    f"hstu::{kernel.__name__}": (_SCHEMAS[kernel.__name__], operator_of(_SCHEMAS[kernel.__name__], kernel))
    for kernel in (hstu_mha, hstu_mha_fwd, hstu_mha_bwd)
}
