"""FBGEMM's HSTU: the functions of `hstu` (wheel fbgemm_gpu_hstu) and of `fbgemm_gpu.experimental.hstu`.

The formula is O = P V / scaling_seqlen with P = silu(alpha * (Q K^T + rab)) on the kept pairs. docs/compat.md lists the
masks and the differences. The older wheels have another order of arguments: `gdpa.compat.hstu_attn` and
`gdpa.compat.hstu_attn_interface`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

import torch

from gdpa._attention import varlen_attention
from gdpa._errors import refuse_gradient
from gdpa._symbolic import is_symbolic
from gdpa.compat._order import arguments_of, in_order
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

#: The arguments after the operands up to has_drab.
_LENGTHS = "cu_seqlens_q cu_seqlens_k seqused_q seqused_k max_seqlen_q max_seqlen_k scaling_seqlen"
MASKS = "num_contexts num_targets target_group_size window_size alpha rab has_drab"

_Result = TypeVar("_Result")

# A mask compares at most eight bounds of a query. `func` has one number less than bounds.
_compared_bounds = 7


@dataclass
class Call:
    """The arguments of hstu_attn_varlen_func, which describes them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    seqused_q: torch.Tensor | None
    seqused_k: torch.Tensor | None
    max_seqlen_q: int
    max_seqlen_k: int
    scaling_seqlen: int
    num_contexts: torch.Tensor | None
    num_targets: torch.Tensor | None
    target_group_size: int | None = 1
    window_size: tuple[int, int] = (-1, -1)
    alpha: float = 1.0
    rab: torch.Tensor | None = None
    has_drab: bool | None = False
    kv_cache: torch.Tensor | None = None
    page_offsets: torch.Tensor | None = None
    page_ids: torch.Tensor | None = None
    last_page_lens: torch.Tensor | None = None
    func: torch.Tensor | None = None
    quant_mode: int | None = -1

    def attention(self) -> torch.Tensor:
        """Returns the output. FBGEMM's errors of shapes and dtypes are RuntimeErrors."""
        self._check()
        if self.kv_cache is not None:
            return self._attention_to_pages()
        return call_as_fbgemm(varlen_attention, self.q, self.k, self.v, **self.options())

    def packed_attention(self, qkv: torch.Tensor) -> torch.Tensor:
        """Returns the output of the three parts of qkv, in place of q, k and v."""
        self.q, self.k, self.v = qkv.unbind(1)
        return self.attention()

    def _check(self) -> None:
        """Refuses what FBGEMM's Python refuses, with the same words, and what has no meaning in gdpa."""
        if self.has_drab and self.rab is None:
            raise ValueError("AssertError: rab is None, but has_drab is True, is not allowed in backward")
        if self.num_contexts is not None and tuple(self.window_size) != _CAUSAL:
            raise ValueError("AssertError: context is True and causal is not True, this is undefined behavior")
        if self.num_targets is not None and tuple(self.window_size) != _CAUSAL:
            raise ValueError("AssertError: target is True and causal is not True, this is undefined behavior")
        if self.target_group_size is not None and self.target_group_size < 1:
            raise ValueError("AssertError: target_group_size should be greater than 0 when target is True")
        refuse_gradient(
            max_seqlen_q=self.max_seqlen_q, max_seqlen_k=self.max_seqlen_k, scaling_seqlen=self.scaling_seqlen,
            target_group_size=self.target_group_size, left=self.window_size[0], right=self.window_size[1],
        )  # fmt: skip
        if self.max_seqlen_q > self.max_seqlen_k:
            raise ValueError("AssertError: seq_len_q >= seq_len_k, this is undefined behavior")
        assert self.q.dim() == self.k.dim() == self.v.dim() == 3, "q, k and v shape should be (L, num_heads, head_dim)"
        refuse_fp8(self.quant_mode)

    def _formula(self) -> dict[str, Any]:
        divisor = self.max_seqlen_q if self.scaling_seqlen == -1 else self.scaling_seqlen
        if divisor == 0:
            raise ValueError("scaling_seqlen: expected a number that is not 0, or -1 for max_seqlen_q, got 0")
        return {"activation": "silu", "scale": self.alpha, "out_scale": 1.0 / divisor}

    def options(self) -> dict[str, Any]:
        """Returns the arguments of varlen_attention after query, key and value.

        Raises:
            RuntimeError: a tensor has the wrong shape.
            ValueError: scaling_seqlen is 0.
        """
        options = self._formula()
        # Query i then has row i.
        is_same = self.cu_seqlens_q is self.cu_seqlens_k and self.seqused_q is self.seqused_k
        sides = ("q", self.cu_seqlens_q, self.seqused_q), ("k", self.cu_seqlens_k, self.seqused_k)
        for side, offsets, used in sides:
            if used is None:
                options[f"cu_seq_{side}"] = offsets
            elif side == "k" and is_same:
                options["cu_seq_k"], options["seq_offsets_k"] = None, options["seq_offsets_q"]
            else:
                options[f"cu_seq_{side}"], options[f"seq_offsets_{side}"] = None, _used(offsets, used)
        left, right = self.window_size
        left, right = _bound(left, self.max_seqlen_k), _bound(right, self.max_seqlen_k)
        batch = self.cu_seqlens_q.shape[0] - 1
        if self.func is not None:
            options["mask"] = _mask_of_func(self.func, self.q.shape[0], self.max_seqlen_k, right)
        elif self.num_contexts is not None or self.num_targets is not None:
            for name, numbers in (("num_contexts", self.num_contexts), ("num_targets", self.num_targets)):
                if numbers is not None and numbers.shape != (batch,):
                    raise RuntimeError(f"{name} must have shape ({batch}), got {tuple(numbers.shape)}")
            groups = self.target_group_size or 1
            options["mask"] = hstu(contexts=self.num_contexts, targets=self.num_targets, target_group_size=groups)
        else:
            options["window_size"] = left, right
        if self.rab is not None:
            self._add_bias(options, batch, is_same)
        return options

    def _add_bias(self, options: dict[str, Any], batch: int, is_same: bool) -> None:
        rab, longest = self.rab, self.max_seqlen_k
        assert rab is not None
        heads = rab.shape[1] if rab.dim() == 4 else 1
        if tuple(rab.shape) != (batch, heads, longest, longest) or heads not in (1, self.q.shape[1]):
            raise RuntimeError(
                f"rab must have shape ({batch}, {self.q.shape[1]} or 1, {longest}, {longest}), got {tuple(rab.shape)}"
            )
        alpha: Any = self.alpha
        if is_symbolic(alpha):
            alpha = self.q.new_ones((), dtype=torch.float64) * alpha
        has_tensor = isinstance(alpha, torch.Tensor)
        options["activation"] = _biased(None if has_tensor else alpha, is_same)
        rab = rab if self.has_drab else rab.detach()
        options["params"] = {"rab": rab, "alpha": alpha} if has_tensor else {"rab": rab}

    def _attention_to_pages(self) -> torch.Tensor:
        """Adds the attention to the pages and the attention of the targets to themselves: P has no normalisation."""
        has_others = self.num_contexts is not None or self.rab is not None or self.func is not None
        if has_others or tuple(self.window_size) != _CAUSAL:
            raise ValueError(
                "kv_cache: expected window_size (-1, 0) without num_contexts, rab and func; leave them out"
            )
        options = self._formula()
        if self.page_offsets is None or self.page_ids is None or self.last_page_lens is None:
            raise ValueError("kv_cache: expected page_offsets, page_ids and last_page_lens with it; pass them")
        assert self.kv_cache is not None
        pages_k, pages_v = self.kv_cache.unbind(1)
        page_rows = self.kv_cache.shape[2]
        columns = torch.arange(-(-self.max_seqlen_k // page_rows), device=self.q.device)
        ids, last = self.page_ids, max(self.page_ids.shape[0] - 1, 0)
        table = ids[(self.page_offsets[:-1, None] + columns).clamp(max=last)]
        cached = (self.page_offsets.diff() - 1) * page_rows + self.last_page_lens
        paged = {"block_table": table, "seqused_k": cached, **options}
        if self.num_targets is None:
            paged["window_size"] = _CAUSAL
        else:
            text = "kv_idx <= q_idx + len_k + targets[batch] - len_q"
            paged["mask"] = Mask(text, {"targets": self.num_targets})
        history = call_as_fbgemm(varlen_attention, self.q, pages_k, pages_v, self.cu_seqlens_q, None, **paged)
        if self.num_targets is None:
            return history
        ends = self.cu_seqlens_q[1:]
        newest = torch.stack((ends - self.num_targets, ends), 1)
        groups = self.target_group_size or 1
        of_group = f"(kv_idx <= q_idx) & (kv_idx >= q_idx - q_idx % {groups})"
        sides = {"cu_seq_q": None, "cu_seq_k": None, "seq_offsets_q": newest, "seq_offsets_k": newest}
        mask = Mask("kv_idx == q_idx" if groups == 1 else of_group)
        return history + call_as_fbgemm(varlen_attention, self.q, self.k, self.v, mask=mask, **sides, **options)


def call_as_fbgemm(function: Callable[..., _Result], *arguments: Any, **options: Any) -> _Result:
    """Calls the function, and raises RuntimeErrors for wrong shapes, dtypes and devices."""
    try:
        return function(*arguments, **options)
    except (ValueError, TypeError) as error:
        raise RuntimeError(str(error)) from error


@arguments_of(Call)
def hstu_attn_varlen_func(call: Call) -> torch.Tensor:
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
    return call.attention()


@in_order(
    Call, f"qkv {_LENGTHS} {MASKS} func", q=None, k=None, v=None, scaling_seqlen=-1, num_contexts=None, num_targets=None
)
def hstu_attn_qkvpacked_func(call: Call, qkv: torch.Tensor) -> torch.Tensor:
    """Computes hstu_attn_varlen_func of the three parts of qkv, (T, 3, H, D), without copies.

    Example::

        >>> offsets = torch.tensor([0, 5, 12], dtype=torch.int32)
        >>> hstu_attn_qkvpacked_func(torch.randn(12, 3, 4, 64), offsets, offsets, None, None, 7, 7).shape
        torch.Size([12, 4, 64])
    """
    return call.packed_attention(qkv)


@in_order(Call, f"q k v {_LENGTHS} num_targets window_size alpha is_train", num_contexts=None)
def cuda_hstu_attn_varlen(call: Call, is_train: bool = True) -> torch.Tensor:
    """Computes hstu_attn_varlen_func without contexts and bias. With is_train=False, no gradient is recorded.

    Example::

        >>> offsets = torch.tensor([0, 5, 12], dtype=torch.int32)
        >>> q, k, v = torch.randn(3, 12, 4, 64).unbind()
        >>> cuda_hstu_attn_varlen(q, k, v, offsets, offsets, None, None, 7, 7, -1, None, (-1, 0)).shape
        torch.Size([12, 4, 64])
    """
    with torch.set_grad_enabled(is_train and torch.is_grad_enabled()):
        return call.attention()


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
