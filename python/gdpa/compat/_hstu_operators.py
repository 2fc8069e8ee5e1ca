"""FBGEMM's operators fbgemm::hstu_varlen_{fwd,bwd}_{80,90}, which some models call directly."""

from types import SimpleNamespace

import torch

from gdpa._attention import varlen_attention_backward
from gdpa.compat._order import operator_of
from gdpa.compat.hstu import Call, call_as_fbgemm, refuse_fp8

_COMMON = (
    "Tensor cu_seqlens_q, Tensor cu_seqlens_k, Tensor? seqused_q, Tensor? seqused_k, SymInt max_seqlen_q, "
    "SymInt max_seqlen_k, SymInt scaling_seqlen=-1, "
)
_MASKS = (
    "Tensor? num_contexts=None, Tensor? num_targets=None, int target_group_size=1, int window_size_left=-1, "
    "int window_size_right=-1, float alpha=1.0, "
)


def _optional(names: str) -> str:
    return ", ".join(f"Tensor? {name}=None" for name in names.split())


# As in FBGEMM, with SymInt lengths: one compiled graph serves all of them.
_SCHEMAS = {
    "hstu_varlen_fwd_90": f"(Tensor q, Tensor k, Tensor v, {_COMMON}{_MASKS}Tensor? rab=None, Tensor? func=None, "
    "int quant_mode=-1, int output_dtype=-1, "
    + _optional(
        "vt cu_seqlens_vt_descale q_descale k_descale v_descale vt_descale cu_seqlens_q_block_descale "
        "cu_seqlens_kv_block_descale"
    )
    + ") -> (Tensor, Tensor)",
    "hstu_varlen_bwd_90": "(Tensor dout, Tensor? dout_t, Tensor q, Tensor? q_t, Tensor k, Tensor? k_t, Tensor v, "
    f"{_COMMON}Tensor? dq_=None, Tensor? dk_=None, Tensor? dv_=None, {_MASKS}int quant_mode=-1, "
    "Tensor? rab=None, bool has_drab=False, Tensor? func=None, "
    + _optional(
        "q_descale qt_descale k_descale kt_descale v_descale do_descale dot_descale cu_seqlens_qt_descale "
        "cu_seqlens_kt_descale cu_seqlens_q_block_descale cu_seqlens_kv_block_descale"
    )
    + ", int output_dtype=-1, bool deterministic=False) -> (Tensor, Tensor, Tensor, Tensor)",
    "hstu_varlen_fwd_80": f"(Tensor q, Tensor k, Tensor v, {_COMMON}{_MASKS}Tensor? rab=None, "
    + _optional("func kv_cache page_offsets page_ids last_page_lens")
    + ") -> (Tensor, Tensor)",
    "hstu_varlen_bwd_80": f"(Tensor dout, Tensor q, Tensor k, Tensor v, {_COMMON}Tensor? dq=None, "
    f"Tensor? dk=None, Tensor? dv=None, {_MASKS}Tensor? rab=None, bool has_drab=False, Tensor? func=None, "
    "bool deterministic=False) -> (Tensor, Tensor, Tensor, Tensor)",
}


def _call_of(given: SimpleNamespace) -> Call:
    named = {name: value for name, value in vars(given).items() if name in Call.__dataclass_fields__}
    return Call(**named, window_size=(given.window_size_left, given.window_size_right))


def forward(given: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the output and rab. FBGEMM returns a padded rab for its backward."""
    with torch.no_grad():
        output = _call_of(given).attention()
    return output, given.q.new_empty(0) if given.rab is None else given.rab


def backward(given: SimpleNamespace) -> tuple[torch.Tensor, ...]:
    """Returns dq, dk, dv and drab. The first three may be given, as views with any strides but the last."""
    call = _call_of(given)
    refuse_fp8(call.quant_mode)
    buffers = [getattr(given, name, getattr(given, f"{name}_", None)) for name in ("dq", "dk", "dv")]
    operands = (call.q, call.k, call.v)
    dq, dk, dv = (torch.empty_like(of) if one is None else one for one, of in zip(buffers, operands, strict=True))
    gradients = call_as_fbgemm(
        varlen_attention_backward, given.dout, *operands, grad_query=dq, grad_key=dk, grad_value=dv,
        grad_params=("rab",) if call.has_drab else (), deterministic=given.deterministic, **call.options(),
    )  # fmt: skip
    return dq, dk, dv, gradients.get("rab", call.q.new_empty(0))


#: The schema and the function of each operator.
OPERATORS = {
    f"fbgemm::{name}": (schema, operator_of(schema, forward if "_fwd_" in name else backward))
    for name, schema in _SCHEMAS.items()
}
