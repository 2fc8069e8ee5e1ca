"""FBGEMM's HSTU: the functions of `hstu` (wheel fbgemm_gpu_hstu) and of `fbgemm_gpu.experimental.hstu`.

The formula is O = P V / scaling_seqlen with P = silu(alpha * (Q K^T + rab)) on the kept pairs. docs/compat.md lists the
masks and the differences. The older wheels have another order of arguments: `gdpa.compat.hstu_attn` and
`gdpa.compat.hstu_attn_interface`.
"""

from functools import lru_cache
from typing import Any, NoReturn

import torch

from gdpa._attention import varlen_attention
from gdpa._errors import refuse_gradient
from gdpa._leaf import leaf
from gdpa._symbolic import is_symbolic
from gdpa.mask import Mask, hstu, intervals

__all__ = [
    "HstuAttnVarlenFunc",
    "cuda_hstu_attn_varlen",
    "get_bm_and_bn_block_size_bwd",
    "get_bm_and_bn_block_size_fwd",
    "hstu_attn_qkvpacked_func",
    "hstu_attn_varlen_func",
    "quantize_for_block_scale",
    "quantize_for_head_batch_tensor",
    "quantize_for_two_directions",
]

_CAUSAL = (-1, 0)

# A mask compares at most eight bounds of a query. `func` has one number less than bounds.
_compared_bounds = 7


@leaf
def hstu_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    seqused_q: torch.Tensor | None,
    seqused_k: torch.Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scaling_seqlen: int,
    num_contexts: torch.Tensor | None,
    num_targets: torch.Tensor | None,
    target_group_size: int | None = 1,
    window_size: tuple[int, int] = (-1, -1),
    alpha: float = 1.0,
    rab: torch.Tensor | None = None,
    has_drab: bool | None = False,
    kv_cache: torch.Tensor | None = None,
    page_offsets: torch.Tensor | None = None,
    page_ids: torch.Tensor | None = None,
    last_page_lens: torch.Tensor | None = None,
    func: torch.Tensor | None = None,
    quant_mode: int | None = -1,
) -> torch.Tensor:
    """Computes silu(alpha * (Q K^T + rab)) V / scaling_seqlen over a jagged batch.

    For sequence b, L_q and L_k are seqused_q[b] and seqused_k[b], or the differences of the cumulative lengths. Query i
    has the row r = i + L_k - L_q of the keys, and h = L_k - num_targets[b] is the first target.

    Args:
        q: (T_q, H, D). The last stride is 1.
        k, v: (T_k, H, D).
        cu_seqlens_q, cu_seqlens_k: (B + 1), the cumulative lengths.
        seqused_q, seqused_k: (B,), the rows of each sequence that exist. The output and the gradients of the other rows
            are 0. None means all.
        max_seqlen_q, max_seqlen_k: the longest lengths.
        scaling_seqlen: the divisor of the output. -1 means max_seqlen_q.
        num_contexts: (B,), contextual tokens at the begin: rows r < num_contexts[b] attend to every key j < h.
        num_targets: (B,), targets at the end: rows r >= h attend to no target of an earlier group.
        target_group_size: the targets of a group.
        window_size: (-1, 0) is causal, (-1, -1) keeps all pairs, and (left, right) keeps r - left <= j <= r + right.
        rab: (B, H or 1, max_seqlen_k, max_seqlen_k), a bias for row r and key j.
        has_drab: whether rab has a gradient.
        kv_cache: (pages, 2, rows of a page, H, D), the keys and values before the targets. Only forward.
        page_offsets, page_ids, last_page_lens: (B + 1), (page_offsets[-1]) and (B,): sequence b has the pages
            page_ids[page_offsets[b] : page_offsets[b + 1]], and last_page_lens[b] rows of the last one.
        func: (1 or H, n, T_q or more) with odd n: query t keeps the keys j < func[0, 0, t] and
            func[0, 2 m + 1, t] <= j < func[0, 2 m + 2, t]. It replaces contexts, targets and `left`. n has any value.
        quant_mode: -1 or None. gdpa has no fp8.

    Returns:
        (T_q, H, D), in the dtype of q.

    Raises:
        ValueError: contexts or targets come without a causal window, has_drab without rab, or max_seqlen_q is above
            max_seqlen_k, as in FBGEMM; or pages come with an argument for which they have no meaning.
        AssertionError: an operand has another rank than 3, as in FBGEMM.
        RuntimeError: a shape, a dtype, a device or a stride is wrong, as in FBGEMM.
        NotImplementedError: quant_mode asks for fp8.

    Example::

        >>> offsets, targets = torch.tensor([0, 5, 12], dtype=torch.int32), torch.tensor([1, 3], dtype=torch.int32)
        >>> q, k, v = torch.randn(3, 12, 4, 64).unbind()
        >>> hstu_attn_varlen_func(
        ...     q, k, v, offsets, offsets, None, None, 7, 7, -1, None, targets, window_size=(-1, 0), alpha=0.125
        ... ).shape
        torch.Size([12, 4, 64])
    """
    _check_masks(num_contexts, num_targets, target_group_size, window_size, rab, has_drab)
    refuse_gradient(
        max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, scaling_seqlen=scaling_seqlen,
        target_group_size=target_group_size, left=window_size[0], right=window_size[1],
    )  # fmt: skip
    if max_seqlen_q > max_seqlen_k:
        raise ValueError("AssertError: seq_len_q >= seq_len_k, this is undefined behavior")
    assert q.dim() == k.dim() == v.dim() == 3, "q, k and v shape should be (L, num_heads, head_dim)"
    refuse_fp8(quant_mode)
    if rab is not None and not has_drab:
        rab = rab.detach()
    if kv_cache is not None:
        if num_contexts is not None or rab is not None or func is not None or tuple(window_size) != _CAUSAL:
            raise ValueError(
                "kv_cache: expected window_size (-1, 0) without num_contexts, rab and func; leave them out"
            )
        options: dict[str, Any] = {"activation": "silu", "scale": alpha}
        options["out_scale"] = _out_scale(scaling_seqlen, max_seqlen_q)
        pages = kv_cache, page_offsets, page_ids, last_page_lens
        return _with_pages(q, k, v, cu_seqlens_q, max_seqlen_k, num_targets, target_group_size or 1, pages, options)
    options = arguments_of(
        q, k, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, scaling_seqlen,
        num_contexts, num_targets, target_group_size or 1, window_size, alpha, rab, func,
    )  # fmt: skip
    try:
        return varlen_attention(q, k, v, **options)
    except (ValueError, TypeError) as error:
        raise RuntimeError(str(error)) from error


@leaf
def hstu_attn_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    seqused_q: torch.Tensor | None,
    seqused_k: torch.Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scaling_seqlen: int = -1,
    num_contexts: torch.Tensor | None = None,
    num_targets: torch.Tensor | None = None,
    target_group_size: int | None = 1,
    window_size: tuple[int, int] = (-1, -1),
    alpha: float = 1.0,
    rab: torch.Tensor | None = None,
    has_drab: bool | None = False,
    func: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes hstu_attn_varlen_func of the three parts of qkv, (T, 3, H, D), without copies.

    Example::

        >>> offsets = torch.tensor([0, 5, 12], dtype=torch.int32)
        >>> hstu_attn_qkvpacked_func(torch.randn(12, 3, 4, 64), offsets, offsets, None, None, 7, 7).shape
        torch.Size([12, 4, 64])
    """
    q, k, v = qkv.unbind(1)
    return hstu_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, scaling_seqlen,
        num_contexts, num_targets, target_group_size, window_size, alpha, rab, has_drab, func=func,
    )  # fmt: skip


@leaf
def cuda_hstu_attn_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    seqused_q: torch.Tensor | None,
    seqused_k: torch.Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scaling_seqlen: int,
    num_targets: torch.Tensor | None,
    window_size: tuple[int, int] = (-1, -1),
    alpha: float = 1.0,
    is_train: bool = True,
) -> torch.Tensor:
    """Computes hstu_attn_varlen_func without contexts and bias. With is_train=False, no gradient is recorded.

    Example::

        >>> offsets = torch.tensor([0, 5, 12], dtype=torch.int32)
        >>> q, k, v = torch.randn(3, 12, 4, 64).unbind()
        >>> cuda_hstu_attn_varlen(q, k, v, offsets, offsets, None, None, 7, 7, -1, None, (-1, 0)).shape
        torch.Size([12, 4, 64])
    """
    with torch.set_grad_enabled(is_train and torch.is_grad_enabled()):
        return hstu_attn_varlen_func(
            q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, scaling_seqlen, None,
            num_targets, 1, window_size, alpha,
        )  # fmt: skip


class HstuAttnVarlenFunc:
    """Stands for FBGEMM's autograd function of this name: `apply` is hstu_attn_varlen_func with FBGEMM's order."""

    @staticmethod
    def apply(*arguments: Any) -> torch.Tensor:
        """Calls hstu_attn_varlen_func. `func` comes before the pages in FBGEMM's order."""
        before, func, pages, rest = arguments[:17], arguments[17:18], arguments[18:22], arguments[22:]
        pages += (None,) * (4 - len(pages))
        return hstu_attn_varlen_func(*before, *pages, *func, *rest)


def _no_fp8(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError("gdpa has no fp8: expected bfloat16 or float16 operands and quant_mode -1")


get_bm_and_bn_block_size_fwd = _no_fp8
get_bm_and_bn_block_size_bwd = _no_fp8
quantize_for_block_scale = _no_fp8
quantize_for_head_batch_tensor = _no_fp8
quantize_for_two_directions = _no_fp8


def refuse_fp8(quant_mode: int | None) -> None:
    if quant_mode is not None and quant_mode != -1:
        raise NotImplementedError(
            f"quant_mode: expected -1, because gdpa has no fp8, got {quant_mode}; pass bfloat16 operands with -1"
        )


def _check_masks(
    num_contexts: torch.Tensor | None,
    num_targets: torch.Tensor | None,
    target_group_size: int | None,
    window_size: tuple[int, int],
    rab: torch.Tensor | None,
    has_drab: bool | None,
) -> None:
    """Refuses what FBGEMM's Python refuses, with the same words."""
    if has_drab and rab is None:
        raise ValueError("AssertError: rab is None, but has_drab is True, is not allowed in backward")
    if num_contexts is not None and tuple(window_size) != _CAUSAL:
        raise ValueError("AssertError: context is True and causal is not True, this is undefined behavior")
    if num_targets is not None and tuple(window_size) != _CAUSAL:
        raise ValueError("AssertError: target is True and causal is not True, this is undefined behavior")
    if target_group_size is not None and target_group_size < 1:
        raise ValueError("AssertError: target_group_size should be greater than 0 when target is True")


def arguments_of(
    q: torch.Tensor,
    k: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    seqused_q: torch.Tensor | None,
    seqused_k: torch.Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scaling_seqlen: int,
    num_contexts: torch.Tensor | None,
    num_targets: torch.Tensor | None,
    target_group_size: int,
    window_size: tuple[int, int],
    alpha: float | torch.Tensor,
    rab: torch.Tensor | None,
    func: torch.Tensor | None,
) -> dict[str, Any]:
    """Returns the arguments of varlen_attention after query, key and value.

    Raises:
        RuntimeError: a tensor has the wrong shape.
        ValueError: scaling_seqlen is 0.
    """
    options: dict[str, Any] = {"activation": "silu", "scale": alpha}
    options["out_scale"] = _out_scale(scaling_seqlen, max_seqlen_q)
    is_same = cu_seqlens_q is cu_seqlens_k and seqused_q is seqused_k  # so that query i has row i
    for side, offsets, used in (("q", cu_seqlens_q, seqused_q), ("k", cu_seqlens_k, seqused_k)):
        if used is None:
            options[f"cu_seq_{side}"] = offsets
        elif side == "k" and is_same:
            options["cu_seq_k"], options["seq_offsets_k"] = None, options["seq_offsets_q"]
        else:
            options[f"cu_seq_{side}"], options[f"seq_offsets_{side}"] = None, _used(offsets, used)
    if func is not None:
        options["mask"] = _mask_of_func(func, q.shape[0], max_seqlen_k, window_size[1])
    elif num_contexts is not None or num_targets is not None:
        batch = cu_seqlens_q.shape[0] - 1
        for name, numbers in (("num_contexts", num_contexts), ("num_targets", num_targets)):
            if numbers is not None and numbers.shape != (batch,):
                raise RuntimeError(f"{name} must have shape ({batch}), got {tuple(numbers.shape)}")
        options["mask"] = hstu(contexts=num_contexts, targets=num_targets, target_group_size=target_group_size)
    else:
        options["window_size"] = _bound(window_size[0], max_seqlen_k), _bound(window_size[1], max_seqlen_k)
    if rab is not None:
        expected = (cu_seqlens_q.shape[0] - 1, rab.shape[1] if rab.dim() == 4 else 1, max_seqlen_k, max_seqlen_k)
        if tuple(rab.shape) != expected or rab.shape[1] not in (1, q.shape[1]):
            raise RuntimeError(
                f"rab must have shape ({expected[0]}, {q.shape[1]} or 1, {max_seqlen_k}, {max_seqlen_k}), got "
                f"{tuple(rab.shape)}"
            )
        if is_symbolic(alpha):
            alpha = q.new_ones((), dtype=torch.float64) * alpha
        has_tensor = isinstance(alpha, torch.Tensor)
        options["activation"] = _biased(None if isinstance(alpha, torch.Tensor) else alpha, is_same)
        options["params"] = {"rab": rab, "alpha": alpha} if has_tensor else {"rab": rab}
    return options


def _out_scale(scaling_seqlen: int, max_seqlen_q: int) -> float:
    divisor = max_seqlen_q if scaling_seqlen == -1 else scaling_seqlen
    if divisor == 0:
        raise ValueError("scaling_seqlen: expected a number that is not 0, or -1 for max_seqlen_q, got 0")
    return 1.0 / divisor


def _bound(side: int, longest: int) -> int:
    """Returns a side of a window. A side beyond the keys has no bound, as in FBGEMM."""
    return -1 if side < 0 or side >= longest else side


@lru_cache(maxsize=256)
def _biased(alpha: float | None, is_same: bool) -> str:
    """Returns silu of the score plus alpha * rab, at the row of the query. None is a tensor of the call."""
    row = "q_idx" if is_same else "q_idx + len_k - len_q"
    return f"silu(s + {'alpha' if alpha is None else repr(alpha)} * rab[batch, head, {row}, kv_idx])"


def _used(offsets: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    """Returns the begin and the end of the rows that exist, (B, 2)."""
    begins = offsets[:-1]
    if used.shape != begins.shape:
        raise RuntimeError(f"seqused must have shape ({begins.shape[0]}), got {tuple(used.shape)}")
    return torch.stack((begins, begins + used), 1)


def _mask_of_func(func: torch.Tensor, rows: int, longest: int, right: int) -> Mask:
    """Returns the mask of the intervals of `func`, which FBGEMM intersects with the right side of the window."""
    if func.dim() != 3 or func.shape[1] % 2 == 0 or func.shape[2] < rows:
        raise RuntimeError(f"func must have shape (1 or heads, an odd number, {rows} or more), got {tuple(func.shape)}")
    if rows == 0:
        return Mask("kv_idx >= 0")  # a tensor that a mask reads has elements
    right = _bound(right, longest)
    bounds = func[0, :, :rows]
    count = bounds.shape[0]
    if count <= _compared_bounds:
        return Mask(_text_of_func(count, right), {"func": bounds})
    begins = torch.cat((torch.zeros_like(bounds[:1]), bounds[1::2]))
    mask = intervals(torch.stack((begins, bounds[::2]), -1).transpose(0, 1), longest)
    return mask if right < 0 else mask & Mask(_diagonal(right))


@lru_cache(maxsize=64)
def _text_of_func(count: int, right: int) -> str:
    parts = ["(kv_idx < func[0, q_row])"]
    parts += [f"((kv_idx >= func[{n}, q_row]) & (kv_idx < func[{n + 1}, q_row]))" for n in range(1, count, 2)]
    text = " | ".join(parts)
    return text if right < 0 else f"({_diagonal(right)}) & ({text})"


def _diagonal(right: int) -> str:
    return f"kv_idx <= q_idx + len_k - len_q + {right}"


def _with_pages(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_k: int,
    num_targets: torch.Tensor | None,
    target_group_size: int,
    pages: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
    options: dict[str, Any],
) -> torch.Tensor:
    """Adds the attention to the pages and the attention of the targets to themselves: P has no normalisation."""
    kv_cache, page_offsets, page_ids, last_page_lens = pages
    if page_offsets is None or page_ids is None or last_page_lens is None:
        raise ValueError("kv_cache: expected page_offsets, page_ids and last_page_lens with it; pass them")
    pages_k, pages_v = kv_cache.unbind(1)
    page_rows = kv_cache.shape[2]
    columns = torch.arange(-(-max_seqlen_k // page_rows), device=q.device)
    table = page_ids[(page_offsets[:-1, None] + columns).clamp(max=max(page_ids.shape[0] - 1, 0))]
    cached = (page_offsets.diff() - 1) * page_rows + last_page_lens
    try:
        if num_targets is None:
            return varlen_attention(
                q, pages_k, pages_v, cu_seqlens_q, None, block_table=table, seqused_k=cached, window_size=_CAUSAL,
                **options,
            )  # fmt: skip
        targets = {"targets": num_targets}
        history = varlen_attention(
            q, pages_k, pages_v, cu_seqlens_q, None, block_table=table, seqused_k=cached,
            mask=Mask("kv_idx <= q_idx + len_k + targets[batch] - len_q", targets), **options,
        )  # fmt: skip
        ends = cu_seqlens_q[1:]
        newest = torch.stack((ends - num_targets, ends), 1)
        of_group = f"(kv_idx <= q_idx) & (kv_idx >= q_idx - q_idx % {target_group_size})"
        group = "kv_idx == q_idx" if target_group_size == 1 else of_group
        own = varlen_attention(
            q, k, v, None, None, seq_offsets_q=newest, seq_offsets_k=newest, mask=Mask(group), **options
        )
        return history + own
    except (ValueError, TypeError) as error:
        raise RuntimeError(str(error)) from error
