"""Norms before and after attention, each as one kernel in each direction on a GPU, and attention between two norms.

docs/kernels/fused-norms.md describes the fused steps and the bytes that the fusion saves.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gdpa._attention import varlen_attention
from gdpa._errors import refuse_gradient
from gdpa._symbolic import leaf
from gdpa.nn import _norms

__all__ = ["layer_norm", "normed_attention", "rms_norm"]


@leaf
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    gate: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Computes LayerNorm(x) * gate + residual over the last dimension.

    On a GPU, the norm is one kernel, and its gradients are one kernel, with a second one for the sums of weight and
    bias. These sums have the same bits every time. The mean and the variance are in float32.

    Args:
        x: (..., C). float32, bfloat16 or float16 with up to 4096 columns, a multiple of 8. Operations of PyTorch
            compute other dtypes and widths, and DTensors.
        weight, bias: (C), with the dtype of x, or float32.
        eps: added to the variance.
        gate: the shape of x, or (..., H, C / H), which may be a view of a fused projection.
        residual: the shape of x.

    Returns:
        A tensor with the shape and dtype of x.

    Example::

        >>> x, gate = torch.randn(2, 12, 64)
        >>> gdpa.nn.functional.layer_norm(x, torch.ones(64), torch.zeros(64), gate=gate).shape
        torch.Size([12, 64])
    """
    return _norm(x, weight, bias, gate, residual, True, eps)


@leaf
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
    *,
    gate: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Computes RMSNorm(x) * gate + residual over the last dimension: x / sqrt(mean(x^2) + eps) * weight.

    The arguments are as in layer_norm.

    Example::

        >>> x, residual = torch.randn(2, 12, 64)
        >>> gdpa.nn.functional.rms_norm(x, torch.ones(64), residual=residual).shape
        torch.Size([12, 64])
    """
    return _norm(x, weight, None, gate, residual, False, eps)


@leaf
def normed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor | None,
    cu_seq_k: Tensor | None,
    *,
    query_norm: tuple[Tensor | None, Tensor | None] | None = None,
    output_norm: Tensor | None = None,
    residual: Tensor | None = None,
    eps: float = 1e-5,
    **options: Any,
) -> Tensor:
    """Computes attention between two norms over all heads, with two residual connections.

        Q' = LayerNorm(Q)                                   over the H * d columns of a row
        T  = out_scale * f(scale * Q' K^T) V + Q'           in each head
        Y  = RMSNorm(T) + residual                          over the H * d columns of a row

    On a GPU, one kernel after attention adds Q' to the output, and in backward the gradient of T to the gradient of Q'.
    Each norm is one kernel.

    Args:
        query: (T_q, H * d), or (T_q, H, d).
        key, value: (T_k, H, d), or a form without offsets, as in varlen_attention.
        cu_seq_q, cu_seq_k: as in varlen_attention. The batch does not share the query.
        query_norm: weight and bias (H * d) of LayerNorm. None leaves the query as it is.
        output_norm: weight (H * d) of RMSNorm. None leaves T as it is.
        residual: the shape of query, or None.
        eps: of both norms.
        options: further arguments of varlen_attention: activation, out_scale and so on.

    Returns:
        Y, with the shape of query.

    Example::

        >>> rows, key, value = torch.randn(12, 64), *torch.randn(2, 8, 4, 16)
        >>> cu = torch.tensor([0, 5, 12])
        >>> gdpa.nn.functional.normed_attention(
        ...     rows, key, value, cu, None, query_norm=(torch.ones(64), torch.zeros(64)), output_norm=torch.ones(64),
        ...     residual=rows, activation="silu",
        ... ).shape
        torch.Size([12, 64])
    """
    shape, width = query.shape, key.shape[-1]
    rows = query.flatten(1)
    if query_norm is not None:
        rows = layer_norm(rows, *query_norm, eps)
    heads = rows.unflatten(-1, (-1, width))
    output = varlen_attention(heads, key, value, cu_seq_q, cu_seq_k, add_query=True, **options).flatten(1)
    added = None if residual is None else residual.flatten(1)
    if output_norm is not None:
        output = rms_norm(output, output_norm, eps, residual=added)
    elif added is not None:
        output = output + added
    return output.view(shape)


def _norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, gate: Tensor | None, residual: Tensor | None,
    is_layer: bool, eps: float,
) -> Tensor:  # fmt: skip
    refuse_gradient(eps=eps)
    columns = x.shape[-1]
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is not None and vector.shape != (columns,):
            raise ValueError(
                f"{name}: expected shape ({columns},), a number for each column of x, got {tuple(vector.shape)}; "
                "reshape it"
            )
    for name, rows in (("gate", gate), ("residual", residual)):
        if rows is not None and (rows.numel() != x.numel() or rows.shape[: x.dim() - 1] != x.shape[:-1]):
            raise ValueError(
                f"{name}: expected shape {tuple(x.shape)}, the shape of x, got {tuple(rows.shape)}; reshape it"
            )
    if not _has_kernels(x, weight, bias, gate):
        y = F.layer_norm(x, (columns,), weight, bias, eps) if is_layer else F.rms_norm(x, (columns,), weight, eps)
        y = y if gate is None else y * gate.reshape(x.shape)
        y = y if residual is None else y + residual
        return y.to(x.dtype)
    rows = x.reshape(-1, columns)
    if gate is not None:
        heads = gate.shape[x.dim() - 1 :]
        gate = gate.to(x.dtype).reshape(rows.shape[0], *heads)
    if residual is not None:
        residual = residual.to(x.dtype).reshape(rows.shape)
    y, _ = _norms.norm(rows, weight, bias, gate, residual, is_layer, eps)
    return y.view(x.shape)


_PLAIN = (Tensor, torch.nn.Parameter)


def _has_kernels(x: Tensor, weight: Tensor | None, bias: Tensor | None, gate: Tensor | None) -> bool:
    """Returns whether the operator computes these operands. On the CPU it computes every dtype and width."""
    if any(type(one) not in _PLAIN for one in (x, weight, bias, gate) if one is not None):
        return False
    if not x.is_cuda:
        return x.device.type == "cpu"
    vectors = [one for one in (weight, bias) if one is not None]
    widths = (x.shape[-1], gate.shape[-1] if gate is not None else 8)
    has_dtypes = (
        x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and all(one.dtype in (x.dtype, torch.float32) for one in vectors)
        and len({one.dtype for one in vectors}) <= 1
    )
    return has_dtypes and x.shape[-1] <= _norms.MOST_COLUMNS and all(width % 8 == 0 for width in widths)
