"""The registrations of the operators in addition to their kernels: fake tensors, gradients, autocast and FLOPs."""

from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

from gdpa._compilation import Warmup, is_slope
from gdpa._library import PART_SEPARATOR, backward, flops, forward

# Kept until the process ends, because the registrations end with this object.
_library = torch.library.Library("gdpa", "FRAGMENT")

_problem = tuple(argument.name for argument in forward._schema.arguments)
_operands = 4  # query, key, value, parameters: the arguments that may require a gradient
_tensors_first = 6  # and cu_seqlens_q, cu_seqlens_k
_activation = _problem.index("activation")
_per_batch = _problem.index("out_scale_per_batch")


def _wanted(flags: tuple[bool, ...]) -> tuple[bool, bool, bool]:
    """Returns the wanted gradients of a call. PyTorch drops trailing arguments that are equal to their defaults."""
    query, key, value = (*flags, *(True,) * (3 - len(flags)))
    return query, key, value


# Shapes ---------------------------------------------------------------------------------------------------------------


@torch.library.register_fake("gdpa::forward")
def empty_output(query, key, value, parameters, cu_seqlens_q, cu_seqlens_k, *rest):  # type: ignore[no-untyped-def]
    for name, tensor in (("key", key), ("value", value)):
        if tensor.device != query.device:
            raise TypeError(
                f"{name}: expected device {query.device}, as the query's, got {tensor.device}; move all tensors to one "
                "device"
            )
    sizes = [*query.shape[:-1], value.shape[-1]]
    if query.dim() == 3 and cu_seqlens_q is None:
        sizes[0] = sizes[0] * _batch(query, key, cu_seqlens_q, cu_seqlens_k)
    return query.new_empty(sizes)


@torch.library.register_fake("gdpa::backward")
def _(grad_output, *arguments):  # type: ignore[no-untyped-def]
    wanted = _wanted(arguments[len(_problem) :])
    return tuple(
        tensor.new_empty(tensor.shape if is_wanted else (0,))
        for tensor, is_wanted in zip(arguments[:3], wanted, strict=True)
    )


@torch.library.register_fake("gdpa::flops")
def _(query, key, value, parameters, cu_seqlens_q, cu_seqlens_k, *rest):  # type: ignore[no-untyped-def]
    """Lengths are unknown without data, so the count assumes equal lengths and no masked scores."""
    batch = _batch(query, key, cu_seqlens_q, cu_seqlens_k)
    scores = batch * _mean_length(query, cu_seqlens_q, batch) * _mean_length(key, cu_seqlens_k, batch)
    head_dim, head_dim_v = query.shape[-1], value.shape[-1]
    is_backward, *flags = rest[len(_problem) - _tensors_first :]
    if is_backward:
        wants_query, wants_key, wants_value = _wanted(tuple(flags))
        products = (1 + wants_query + wants_key) * head_dim
        products += ((wants_query or wants_key) + wants_value) * head_dim_v
    else:
        products = head_dim + head_dim_v
    return float(2 * query.shape[-2] * scores * products)


def _batch(query: Any, key: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Any:
    for operand, offsets in ((query, cu_seqlens_q), (key, cu_seqlens_k)):
        if offsets is not None:
            return offsets.shape[0] - 1
        if operand.dim() == 4:
            return operand.shape[0]
    return 1


def _mean_length(operand: Any, offsets: Any, batch: Any) -> Any:
    if offsets is not None:
        return operand.shape[0] / max(batch, 1)
    return operand.shape[-3]


# Gradients ------------------------------------------------------------------------------------------------------------

# The texts of functions, with the dtypes, devices and wanted gradients, for which a compilation of the backward kernels
# has started.
_prefetched: set[tuple[str, torch.dtype, torch.device, tuple[bool, ...]]] = set()


def _prefetch_backward(problem: tuple[Any, ...], wanted: tuple[bool, ...]) -> None:
    """Compiles the backward kernels of the wanted gradients in a thread, while forward compiles and runs.

    The thread ignores errors. Backward compiles missing kernels and reports the errors.
    """
    query = problem[0]
    if type(query) not in (torch.Tensor, torch.nn.Parameter):  # a fake tensor has no memory to plan for
        return
    if query.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    _prefetched.add((problem[_activation], query.dtype, query.device, wanted))
    if query.is_cuda:
        Warmup([problem], ("backward", "", "these"), [wanted])


_NO_SECOND_DERIVATIVE = (
    "gdpa: expected a first derivative, got a derivative of a gradient; gdpa has no second derivative: call "
    "backward() or torch.autograd.grad() without create_graph=True, or detach the gradient"
)


# Autograd looks at each argument of a Function. Only operands can require a gradient; the rest is one argument.
class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Any, key: Any, value: Any, parameters: Any, keyset: Any, rest: tuple[Any, ...]
    ) -> torch.Tensor:
        problem = (query, key, value, parameters, *rest)
        if isinstance(query, torch.Tensor):
            wanted = ctx.needs_input_grad[:3]
            # In forward mode no input needs a gradient.
            if any(wanted) and (problem[_activation], query.dtype, query.device, wanted) not in _prefetched:
                _prefetch_backward(problem, wanted)
        output = _below_autograd(forward, keyset, problem)  # first, because it refuses arguments that cannot be saved
        ctx.save_for_backward(*problem[:_tensors_first], problem[_per_batch])
        ctx.options = problem[_tensors_first:_per_batch], problem[_per_batch + 1 :]
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *tensors, per_batch = ctx.saved_tensors
        before, after = ctx.options
        problem = (*tensors, *before, per_batch, *after)
        if is_slope(problem):
            raise NotImplementedError(_NO_SECOND_DERIVATIVE)
        wanted = ctx.needs_input_grad[:3]
        gradients: list[torch.Tensor | None] = [None, None, None]
        if any(wanted):
            computed = backward(grad_output, *problem, *wanted)
            gradients = [gradient if is_wanted else None for gradient, is_wanted in zip(computed, wanted, strict=True)]
        of_parameters = _grad_parameters(grad_output, problem) if ctx.needs_input_grad[3] else None
        return (*gradients, of_parameters, None, None)


def _slopes(problem: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Returns the calls of forward with the derivative of f with respect to each parameter."""
    before, activation, after = problem[:_activation], problem[_activation], problem[_activation + 1 :]
    names = activation.split(PART_SEPARATOR)[1].split(",")
    return [(*before, PART_SEPARATOR.join((activation, name)), *after) for name in names]


def slopes_of(problem: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Returns the calls of forward that the gradients of the parameters need."""
    parameters = problem[_operands - 1]
    return _slopes(problem) if parameters is not None and parameters.requires_grad else []


def _grad_parameters(grad_output: torch.Tensor, problem: tuple[Any, ...]) -> torch.Tensor:
    """Returns the gradient of each number of `parameters`.

    O is linear in P = f(S), so the derivative of O with respect to a parameter is the output of forward with the
    derivative of f. The gradient is the sum of its product with dO.
    """
    parameters = problem[_operands - 1]
    rows = []
    for slope_problem in _slopes(problem):
        products = grad_output.to(parameters.dtype) * forward(*slope_problem)
        heads = products.flatten(0, -3).sum((0, -1))
        rows.append(heads if parameters.shape[1] > 1 else heads.sum(0, keepdim=True))
    return torch.stack(rows)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, grad_output: Any, query: Any, key: Any, value: Any, parameters: Any, keyset: Any,
        rest: tuple[Any, ...],
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        return _below_autograd(backward, keyset, (grad_output, query, key, value, parameters, *rest))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError(_NO_SECOND_DERIVATIVE)


def _below_autograd(operator: Any, keyset: Any, arguments: tuple[Any, ...]) -> Any:
    """Calls the operator without its autograd kernel; `keyset` is that kernel's, or None for a call from attend()."""
    with torch._C._AutoDispatchBelowAutograd():
        if keyset is None:
            return operator(*arguments)
        return operator.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)


# torch.library.register_autograd does the same in 46 us a recorded call; this takes 7 (2.15, one row, two cores).
def _autograd(operator: Any, function: type[torch.autograd.Function], operands: int) -> Any:
    def kernel(keyset: Any, *arguments: Any) -> Any:
        needs_gradient = torch.is_grad_enabled() and any(
            tensor is not None and tensor.requires_grad for tensor in arguments[:operands]
        )
        # In forward mode, PyTorch then refuses a function without jvp. Otherwise it would silently drop the tangents.
        if needs_gradient or forward_ad._current_level >= 0:
            return function.apply(*arguments[:operands], keyset, arguments[operands:])
        return _below_autograd(operator, keyset, arguments)

    return kernel


_library.impl("forward", _autograd(forward, _Forward, _operands), "Autograd", with_keyset=True)
_library.impl("backward", _autograd(backward, _Backward, _operands + 1), "Autograd", with_keyset=True)


def attend(*problem: Any) -> torch.Tensor:
    """Calls gdpa::forward without the dispatch to its autograd kernel, and records a call that needs a gradient.

    The autograd kernel is in Python, and its dispatch takes as long as the rest of a call with one row.
    """
    # Under a transform of torch.func, an operand does not show whether a gradient is needed.
    is_transformed = forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()
    if torch.compiler.is_compiling() or is_transformed:
        return forward(*problem)
    if not _require_gradient(*problem[:_operands]):
        with torch._C._AutoDispatchBelowAutograd():
            return forward(*problem)
    # The dispatcher casts the operands before the call is recorded.
    if torch._C._is_any_autocast_enabled():
        return forward(*problem)
    return _Forward.apply(*problem[:_operands], None, problem[_operands:])


def _require_gradient(query: Any, key: Any, value: Any, parameters: Any) -> bool:
    """Returns whether a gradient is needed. Accepts any object, because the operator refuses other types."""
    if not torch.is_grad_enabled():
        return False
    try:
        if query.requires_grad or key.requires_grad or value.requires_grad:
            return True
        return parameters is not None and bool(parameters.requires_grad)
    except AttributeError:
        return True


# Autocast -------------------------------------------------------------------------------------------------------------


def _autocast(device_type: str, key: torch._C.DispatchKey) -> Any:
    keyset = torch._C.DispatchKeySet(key)

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        is_eligible = tensor.is_floating_point() and tensor.dtype != torch.float64
        return tensor.to(torch.get_autocast_dtype(device_type)) if is_eligible else tensor

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> torch.Tensor:
        with torch._C._ExcludeDispatchKeyGuard(keyset):
            return forward(cast(query), cast(key), cast(value), *rest)

    return kernel


_library.impl("forward", _autocast("cpu", torch._C.DispatchKey.AutocastCPU), "AutocastCPU")
_library.impl("forward", _autocast("cuda", torch._C.DispatchKey.AutocastCUDA), "AutocastCUDA")


# FLOPs ----------------------------------------------------------------------------------------------------------------


@register_flop_formula(torch.ops.gdpa.forward, get_raw=True)
def _(*problem: Any, out_val: Any = None, **kwargs: Any) -> int:
    return int(flops(*problem, False))


@register_flop_formula(torch.ops.gdpa.backward, get_raw=True)
def _(grad_output: Any, *arguments: Any, out_val: Any = None, **kwargs: Any) -> int:
    return int(flops(*arguments[: len(_problem)], True, *arguments[len(_problem) :]))
