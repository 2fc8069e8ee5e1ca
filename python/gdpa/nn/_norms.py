"""The operators gdpa::norm and gdpa::norm_backward: on the CPU, fake tensors, and gradients.

torch/operators.cpp registers the kernels for GPUs. include/gdpa/norm.h has the definition.
"""

from typing import Any

import torch
from torch import Tensor

from gdpa._errors import translating

norm = translating(torch.ops.gdpa.norm.default)
norm_backward = translating(torch.ops.gdpa.norm_backward.default)
_library = torch.library.Library("gdpa", "FRAGMENT")

MOST_COLUMNS = 4096  # Norm::most_columns of include/gdpa/norm.h


def statistics_of(x: Tensor, is_layer: bool, eps: float) -> tuple[Tensor, Tensor]:
    """Returns x - mean, or x for rms, and 1 / sqrt(its mean square + eps), in float32 or float64."""
    rows = x if x.dtype == torch.float64 else x.float()
    if is_layer:
        rows = rows - rows.mean(-1, keepdim=True)
    return rows, (rows.square().mean(-1, keepdim=True) + eps).rsqrt()


def _on_cpu(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, gate: Tensor | None, residual: Tensor | None,
    is_layer: bool, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    centred, rstd = statistics_of(x, is_layer, eps)
    y = centred * rstd
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    y = y if gate is None else y * gate.reshape(x.shape)
    y = y if residual is None else y + residual
    mean = x.mean(-1, keepdim=True) if is_layer else torch.zeros_like(rstd)
    return y.to(x.dtype), torch.cat([mean.float(), rstd.float()], dim=-1)


def _backward_on_cpu(
    grad_y: Tensor, statistics: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, gate: Tensor | None,
    residual: Tensor | None, is_layer: bool, eps: float, *wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    centred, rstd = statistics_of(x, is_layer, eps)
    normed = centred * rstd
    grad = grad_y.to(normed.dtype)
    n = normed if weight is None else normed * weight
    grad_gate = grad * (n if bias is None else n + bias)
    grad = grad if gate is None else grad * gate.reshape(x.shape)
    of_weight, of_bias = (grad * normed).sum(0), grad.sum(0)
    grad = grad if weight is None else grad * weight
    of_x = grad - normed * (grad * normed).mean(-1, keepdim=True)
    of_x = rstd * (of_x - grad.mean(-1, keepdim=True) if is_layer else of_x)

    def result(gradient: Tensor, like: Tensor | None, is_wanted: bool) -> Tensor:
        if like is None or not is_wanted:
            return x.new_empty(0)
        return gradient.reshape(like.shape).to(like.dtype)

    inputs = (of_x, x), (of_weight, weight), (of_bias, bias), (grad_gate, gate)
    of_x, of_weight, of_bias, of_gate = (result(*one, flag) for one, flag in zip(inputs, wanted, strict=True))
    return of_x, of_weight, of_bias, of_gate


_library.impl("norm", _on_cpu, "CPU")
_library.impl("norm_backward", _backward_on_cpu, "CPU")


@torch.library.register_fake("gdpa::norm")
def _(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty((x.shape[0], 2), dtype=torch.float32)


@torch.library.register_fake("gdpa::norm_backward")
def _(grad_y: Tensor, statistics: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return tuple(
        one.new_empty(one.shape) if one is not None and is_wanted else grad_y.new_empty(0)
        for one, is_wanted in zip(arguments[:4], arguments[-4:], strict=True)
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, gate, _, *ctx.options = inputs
    ctx.save_for_backward(output[1], x, weight, bias, gate)


def _gradients(ctx: Any, grad_y: Tensor, grad_statistics: Tensor | None) -> tuple[Tensor | None, ...]:
    statistics, x, *rest = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:4]
    gradients: list[Tensor | None] = [None] * 4
    if any(wanted):
        computed = norm_backward(grad_y, statistics, x, *rest, None, *ctx.options, *wanted)
        gradients = [one if is_wanted else None for one, is_wanted in zip(computed, wanted, strict=True)]
    return *gradients, grad_y if ctx.needs_input_grad[4] else None, None, None


torch.library.register_autograd("gdpa::norm", _gradients, setup_context=_save, lib=_library)
