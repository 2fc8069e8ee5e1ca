"""FBGEMM's operators fbgemm::hstu_varlen_{fwd,bwd}_{80,90}, which some models call directly."""

from collections.abc import Callable
from typing import Any

import torch

from gdpa._attention import varlen_attention_backward
from gdpa.compat.hstu import HstuAttnVarlenFunc, arguments_of, refuse_fp8

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


#: The schemas of the operators, as in FBGEMM, with SymInt lengths: one compiled graph serves all of them.
SCHEMAS = {
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


# PyTorch passes the arguments in the order of the schema, without those at the end that have their default.


def _forward(arguments: tuple[Any, ...], pages: tuple[Any, ...] = (None,) * 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the output and rab, from the arguments up to `func`. FBGEMM returns a padded rab for its backward."""
    given: tuple[Any, ...] = (*arguments, *_DEFAULTS[len(arguments) :])
    q, rab, func = given[0], *given[16:]
    group_size, left, right, alpha = given[12:16]
    with torch.no_grad():
        output = HstuAttnVarlenFunc.apply(*given[:12], group_size, (left, right), alpha, rab, False, func, *pages)
    return output, q.new_empty(0) if rab is None else rab


_REQUIRED = 9
_DEFAULTS = (*[None] * _REQUIRED, -1, None, None, 1, -1, -1, 1.0, None, None)


def forward_90(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    quant_mode, *_ = (*arguments[len(_DEFAULTS) :], -1)
    refuse_fp8(quant_mode)
    return _forward(arguments[: len(_DEFAULTS)])


def forward_80(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    pages = arguments[len(_DEFAULTS) :]
    return _forward(arguments[: len(_DEFAULTS)], (*pages, *[None] * (4 - len(pages))))


def backward_80(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    seqused_q: Any,
    seqused_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scaling_seqlen: int = -1,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    num_contexts: Any = None,
    num_targets: Any = None,
    target_group_size: int = 1,
    window_size_left: int = -1,
    window_size_right: int = -1,
    alpha: float = 1.0,
    rab: Any = None,
    has_drab: bool = False,
    func: Any = None,
    deterministic: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Returns dq, dk, dv and drab. The first three may be given, as views with any strides but the last."""
    dq, dk, dv = (torch.empty_like(of) if one is None else one for one, of in ((dq, q), (dk, k), (dv, v)))
    window = (window_size_left, window_size_right)
    options = arguments_of(
        q, k, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, scaling_seqlen,
        num_contexts, num_targets, target_group_size, window, alpha, rab, func,
    )  # fmt: skip
    try:
        gradients = varlen_attention_backward(
            dout, q, k, v, grad_query=dq, grad_key=dk, grad_value=dv, grad_params=("rab",) if has_drab else (),
            deterministic=deterministic, **options,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise RuntimeError(str(error)) from error
    return dq, dk, dv, gradients.get("rab", q.new_empty(0))


def backward_90(dout: Any, dout_t: Any, q: Any, q_t: Any, k: Any, k_t: Any, v: Any, *rest: Any) -> tuple[Any, ...]:
    """Has quant_mode after alpha, and the tensors of fp8 and output_dtype before `deterministic`."""
    refuse_fp8(*rest[16:17] or (-1,))
    return backward_80(dout, q, k, v, *rest[:16], *rest[17:20], *rest[32:])


OPERATORS: dict[str, Callable[..., Any]] = {
    "hstu_varlen_fwd_90": forward_90,
    "hstu_varlen_bwd_90": backward_90,
    "hstu_varlen_fwd_80": forward_80,
    "hstu_varlen_bwd_80": backward_80,
}
