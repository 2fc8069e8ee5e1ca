"""The attention of Meta's generative-recommenders (HSTU): functions of generative_recommenders/ops.

The formula is O = P V with P = silu(alpha * Q K^T) / max_seq_len on the kept pairs, or silu(...) * attn_scale. The
causal mask, with targets, a window and contextual tokens, is in `mask_of`. docs/compat.md lists the differences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.fx.node import has_side_effect

from gdpa._attention import varlen_attention, varlen_attention_backward
from gdpa._errors import refuse_gradient
from gdpa.compat._order import arguments_of, in_order
from gdpa.mask import Mask

__all__ = [
    "delta_hstu_mha",
    "hstu_mha",
    "hstu_mha_cuda",
    "tlx_bw_hstu_mha_wrapper",
    "triton_cached_hstu_mha",
    "triton_cc_hstu_mha",
    "triton_hstu_attention_bwd",
    "triton_hstu_attention_fwd",
    "triton_hstu_mha",
]

_CAUSAL = (-1, 0)


@dataclass
class Call:
    """The arguments of hstu_mha, which describes them."""

    max_seq_len: int
    alpha: float
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    seq_offsets: torch.Tensor
    causal: bool = True
    dropout_pr: float = 0.0
    training: bool = True
    num_targets: torch.Tensor | None = None
    attn_scale: torch.Tensor | None = None
    max_attn_len: int = 0
    contextual_seq_len: int = 0
    min_full_attn_seq_len: int = 0
    sort_by_length: bool = False
    kernel: Any = None
    enable_tma: bool = False

    def attention(self) -> torch.Tensor:
        """Returns the output of hstu_mha."""
        assert self.max_seq_len > 0, "max_seq_len must be larger than 0"
        shape, shape_v = self.q.shape, self.v.shape
        assert len(shape) == 3, "q must be 3-D"
        assert self.k.shape == shape, "k must be the same shape as q"
        assert len(shape_v) == 3, "v must be 3-D"
        assert shape_v[0] == shape[0], "wrong v shape[0]"
        assert shape_v[1] == shape[1], "wrong v shape[1]"
        assert self.causal, "only support causal attention"
        assert not self.training or self.dropout_pr < 1e-6, "dropout not implemented"
        return self.attend(self.seq_offsets, **self.options())

    def attention_of_last_rows(self) -> torch.Tensor:
        """Returns the output of delta_hstu_mha. `q` has the queries of the last rows."""
        batch, shape = self.seq_offsets.shape[0] - 1, self.q.shape
        assert self.max_seq_len > 0, "max_seq_len must be larger than 0"
        assert len(shape) == 3, "delta_q must be 3-D"
        assert shape[0] % max(batch, 1) == 0, "delta_q must be padded"
        assert self.k.dim() == 3, "k must be 3-D"
        assert self.k.shape[1:] == shape[1:], "wrong k shape"
        assert self.v.dim() == 3, "v must be 3-D"
        assert self.v.shape[1] == shape[1], "wrong v shape[1]"
        q, k, v = self.operands()
        q, out_scale = q.view(batch, -1, *shape[1:]), 1.0 / self.max_seq_len
        output = varlen_attention(q, k, v, None, out_scale=out_scale, **self.options())
        return output.view(-1, *output.shape[2:])

    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns q, k and v, copied if the last stride of one is not 1, as generative-recommenders does."""
        q, k, v = self.q, self.k, self.v
        if q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:
            return q, k, v
        return q.contiguous(), k.contiguous(), v.contiguous()

    def attend(self, seq_offsets_q: torch.Tensor, **options: Any) -> torch.Tensor:
        """Calls varlen_attention with 1 / max_seq_len or attn_scale as the factor after the function."""
        scale = self.attn_scale
        if scale is not None and scale.dim() == 0 and scale.requires_grad:
            output = varlen_attention(*self.operands(), seq_offsets_q, **options)
            return (output * scale).to(output.dtype)
        return varlen_attention(*self.operands(), seq_offsets_q, out_scale=self.out_scale(seq_offsets_q), **options)

    def write_gradients(
        self, dout: torch.Tensor, seq_offsets_q: torch.Tensor, given: Sequence[torch.Tensor], **options: Any
    ) -> None:
        """Writes the gradients of q, k and v into the given tensors, which have any strides."""
        dq, dk, dv = written = [one if one.stride(-1) == 1 else one.new_empty(one.shape) for one in given]
        varlen_attention_backward(
            dout, *self.operands(), seq_offsets_q, grad_query=dq, grad_key=dk, grad_value=dv,
            out_scale=self.out_scale(seq_offsets_q), **options,
        )  # fmt: skip
        for to, gradient in zip(given, written, strict=True):
            if to is not gradient:
                to.copy_(gradient)

    def out_scale(self, seq_offsets_q: torch.Tensor) -> float | torch.Tensor:
        """Returns 1 / max_seq_len, or a tensor with the numbers of attn_scale for varlen_attention."""
        if self.attn_scale is None:
            return 1.0 / self.max_seq_len
        rows, batch = self.q.shape[0], seq_offsets_q.shape[0] - 1
        assert self.attn_scale.shape in ((), (rows,)), "attn_scale must be a number or have one number for each token"
        is_wide = self.attn_scale.dtype in (torch.float32, torch.float64)
        numbers = self.attn_scale if is_wide else self.attn_scale.float()
        return numbers.repeat(batch) if numbers.dim() == 0 else numbers.unsqueeze(-1)

    def options(self) -> dict[str, Any]:
        """Returns the arguments of varlen_attention for the keys, the function and the mask."""
        near, contexts, unbounded = self.max_attn_len, self.contextual_seq_len, self.min_full_attn_seq_len
        refuse_gradient(max_attn_len=near, contextual_seq_len=contexts, min_full_attn_seq_len=unbounded)
        options: dict[str, Any] = {"cu_seq_k": self.seq_offsets, "activation": "silu", "scale": self.alpha}
        targets, batch = self.num_targets, self.seq_offsets.shape[0] - 1
        if targets is not None and targets.shape != (batch,):
            raise ValueError(
                f"num_targets: expected shape ({batch},), one number for each sequence, got {tuple(targets.shape)}"
            )
        if targets is None and contexts <= 0 and not (near > 0 and unbounded > 0):
            options["window_size"] = (near, 0) if near > 0 else _CAUSAL
        else:
            text = mask_of(max(near, 0), max(contexts, 0), unbounded, targets is not None)
            options["mask"] = Mask(text, None if targets is None else {"targets": targets})
        return options


def refuse_softmax(num_softmax_heads: int) -> None:
    if num_softmax_heads != 0:
        raise NotImplementedError(
            f"num_softmax_heads: expected 0, because gdpa has no softmax, got {num_softmax_heads}"
        )


@lru_cache(maxsize=256)
def mask_of(max_attn_len: int, contextual_seq_len: int, min_full_attn_seq_len: int, has_targets: bool) -> str:
    """Returns the condition of the mask.

    A query attends to itself, and to the earlier tokens before the targets that are within the window. The window
    counts the contextual tokens as one token, and all targets as one token. A contextual token attends to all tokens
    before the targets. The condition compares positions with sums only, which gdpa solves for ranges of keys.
    """
    if has_targets and max_attn_len == 0 and contextual_seq_len == 0:
        return "hstu(0, targets[batch], 1, -1)"  # the same condition, which gdpa tests with fewer instructions
    row = "q_idx + len_k - len_q"
    end = "len_k - targets[batch]" if has_targets else "len_k"
    last_context = contextual_seq_len - 1
    keys = f"(kv_idx < {row})"
    if max_attn_len > 0:
        near = [f"(kv_idx >= {row} - {max_attn_len})"]
        if has_targets:
            near.append(f"(kv_idx >= {end} - {max_attn_len})")
        if contextual_seq_len > 0:
            near.append(f"({row} <= {last_context + max_attn_len})")
            near.append(f"({end} <= {last_context + max_attn_len})")
        if min_full_attn_seq_len > 0:
            near.append(f"({row} >= {end} - {min_full_attn_seq_len})")
        keys += f" & ({' | '.join(near)})"
    if contextual_seq_len > 0:
        keys = f"({end} > {last_context}) & (({row} <= {last_context}) | ({keys}))"
    if has_targets or contextual_seq_len > 0:
        keys = f"(kv_idx < {end}) & {keys}"
    return f"(kv_idx == {row}) | ({keys})"


_AFTER_OFFSETS = "num_targets max_attn_len contextual_seq_len"


@arguments_of(Call)
def hstu_mha(call: Call) -> torch.Tensor:
    """Computes silu(alpha * Q K^T) V / max_seq_len over a jagged batch with the mask of HSTU.

    Args:
        max_seq_len: the divisor of the output. Sequences may be longer.
        q, k: (T, H, D). The last stride is 1, or the operand is copied.
        v: (T, H, D_v).
        seq_offsets: (B + 1), the cumulative lengths, int32 or int64.
        num_targets: (B,), the targets at the end of each sequence. A target attends to the tokens before the targets
            and to itself.
        attn_scale: one number, or (T,) with one number for each token, in place of 1 / max_seq_len. It may require a
            gradient.
        max_attn_len: the most tokens between a query and a key. 0 means any number.
        contextual_seq_len: the contextual tokens at the begin of each sequence. They attend to all tokens but the
            targets. For the window they are one token.
        min_full_attn_seq_len: with max_attn_len, so many tokens before the targets, and the targets, have no window.
        causal: True. generative-recommenders accepts no other value.
        dropout_pr: 0 in training.
        sort_by_length, kernel, enable_tma: without effect.

    Returns:
        (T, H, D_v), in the dtype of q.

    Raises:
        AssertionError: a shape is wrong, max_seq_len is not positive, causal is False, or dropout_pr is above 0 in
            training, as in generative-recommenders.
        ValueError: another argument is wrong.
        TypeError: a dtype or a device is wrong.

    Example::

        >>> offsets = torch.tensor([0, 5, 12])
        >>> q, k, v = torch.randn(3, 12, 4, 64).unbind()
        >>> hstu_mha(7, 0.125, q, k, v, offsets, num_targets=torch.tensor([1, 3])).shape
        torch.Size([12, 4, 64])
    """
    return call.attention()


@in_order(Call, f"max_seq_len alpha delta_q:q k v seq_offsets {_AFTER_OFFSETS} kernel enable_tma")
def delta_hstu_mha(call: Call) -> torch.Tensor:
    """Computes hstu_mha for the last rows of each sequence only.

    Args:
        delta_q: (B * L, H, D), the queries of the last L tokens of each sequence, which has at least L tokens.
        k, v: (T, H, D) and (T, H, D_v), of all tokens.

    Returns:
        (B * L, H, D_v). It has a gradient, unlike the result of generative-recommenders.

    Raises:
        AssertionError: a shape is wrong, as in generative-recommenders.

    Example::

        >>> offsets = torch.tensor([0, 5, 12])
        >>> k, v = torch.randn(2, 12, 4, 64).unbind()
        >>> delta_hstu_mha(7, 0.125, torch.randn(2 * 3, 4, 64), k, v, offsets).shape
        torch.Size([6, 4, 64])
    """
    return call.attention_of_last_rows()


@in_order(Call, f"N:max_seq_len alpha q k v seq_offsets {_AFTER_OFFSETS} sort_by_length enable_tma")
def triton_hstu_mha(call: Call) -> torch.Tensor:
    """Computes hstu_mha with max_seq_len = N."""
    return call.attention()


@in_order(Call, f"N:max_seq_len alpha delta_q:q k v seq_offsets {_AFTER_OFFSETS} enable_tma")
def triton_cached_hstu_mha(call: Call) -> torch.Tensor:
    """Computes delta_hstu_mha with max_seq_len = N."""
    return call.attention_of_last_rows()


@in_order(Call, f"N:max_seq_len alpha q k v seq_offsets {_AFTER_OFFSETS} is_delta_q delta_size")
def triton_cc_hstu_mha(call: Call, is_delta_q: bool = False, delta_size: int = 0) -> torch.Tensor:
    """Computes hstu_mha, or with is_delta_q delta_hstu_mha, with max_seq_len = N."""
    return call.attention_of_last_rows() if is_delta_q else call.attention()


@in_order(Call, f"max_seq_len alpha q k v seq_offsets attn_scale {_AFTER_OFFSETS} sort_by_length")
def tlx_bw_hstu_mha_wrapper(call: Call) -> torch.Tensor:
    """Computes hstu_mha, with attn_scale in the place in which generative-recommenders passes it."""
    return call.attention()


@in_order(Call, f"max_seq_len alpha q k v seq_offsets {_AFTER_OFFSETS}")
@torch.no_grad()
def hstu_mha_cuda(call: Call) -> torch.Tensor:
    """Computes hstu_mha for inference: no gradient is recorded."""
    return call.attention()


_OF_OPERATORS = "sort_by_length_indices enable_tma num_softmax_heads"


@in_order(Call, f"N:max_seq_len alpha q k v seq_offsets {_AFTER_OFFSETS} {_OF_OPERATORS}")
@torch.no_grad()
def triton_hstu_attention_fwd(
    call: Call, num_softmax_heads: int, sort_by_length_indices: torch.Tensor | None = None
) -> torch.Tensor:
    """The forward operator of generative-recommenders: triton_hstu_mha without a gradient."""
    refuse_softmax(num_softmax_heads)
    return call.attention()


@has_side_effect
@in_order(
    Call,
    f"dout q k v dq dk dv seq_offsets num_targets N:max_seq_len alpha max_attn_len contextual_seq_len {_OF_OPERATORS}",
)
def triton_hstu_attention_bwd(
    call: Call,
    dout: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    num_softmax_heads: int,
    sort_by_length_indices: torch.Tensor | None = None,
) -> None:
    """The backward operator of generative-recommenders: writes the gradients into dq, dk and dv.

    The three may be views of one buffer, as in the fused backward of STULayer.
    """
    refuse_softmax(num_softmax_heads)
    call.write_gradients(dout, call.seq_offsets, (dq, dk, dv), **call.options())
