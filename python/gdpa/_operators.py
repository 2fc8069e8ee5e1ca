"""The registrations of the operators in addition to their kernels: fake tensors, gradients, autocast and FLOPs."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from gdpa._compilation import Warmup
from gdpa._errors import translated
from gdpa._library import Problem, Wanted, backward, backward_out, divided, flops, forward
from gdpa._when_imported import assume_constant_result, when_imported

# Kept until the process ends, because the registrations end with this object.
_library = torch.library.Library("gdpa", "FRAGMENT")

# Where arguments are, for the code of every call: a record of the names takes longer than a tuple.
_parameters, _offsets, _activation, _names, _numbers = (
    Problem._fields.index(name)
    for name in ("parameters", "cu_seqlens_q", "activation", "parameter_names", "out_scale_numbers")
)
_layout = _activation - _offsets  # cu_seqlens_q up to output_offsets
_numbers_in_rest = _numbers - _offsets  # of the arguments after the tensors of the call


def _bits(flags: Iterable[bool]) -> int:
    return sum(1 << n for n, flag in enumerate(flags) if flag)


def required_gradients(problem: Any) -> Wanted:
    """Returns the gradients of the tensors that require one, or of query, key and value if no tensor does."""
    query, key, value = (tensor.requires_grad for tensor in problem[:_parameters])
    parameters = _bits(tensor.requires_grad for tensor in problem.parameters)
    wanted = Wanted(query, key, value, parameters, _any_requires_gradient(problem.out_scale_numbers))
    return wanted if any(wanted) else Wanted()


# Shapes ---------------------------------------------------------------------------------------------------------------


@torch.library.register_fake("gdpa::forward")
def empty_output(*arguments):  # type: ignore[no-untyped-def]
    problem = Problem(*arguments)
    query = problem.query
    _check_devices(problem)
    sizes = [*query.shape[:-1], problem.value.shape[-1]]
    if problem.output_offsets is not None and problem.output_rows >= 0:
        sizes[0] = problem.output_rows
    elif query.dim() == 3 and problem.cu_seqlens_q is None:
        sizes[0] = sizes[0] * batch_of(*_sides(problem))
    return query.new_empty(sizes)


def _check_devices(problem: Any, **others: Any) -> None:
    """Refuses tensors on different devices. PyTorch calls a fake kernel if any tensor is on the device meta."""
    query, parameters = problem.query, problem.parameters
    names_of_parameters = [f"parameter {name}" for name in problem.parameter_names or ()] + ["mask"] * len(parameters)
    arguments, tensors = zip(problem._fields, problem, strict=True), zip(names_of_parameters, parameters, strict=False)
    for name, tensor in (*arguments, *tensors, *others.items()):
        if isinstance(tensor, torch.Tensor) and tensor.device != query.device:
            raise TypeError(
                f"{name.removesuffix('_numbers')}: expected device {query.device}, as the query's, got "
                f"{tensor.device}; move all tensors to one device"
            )


@torch.library.register_fake("gdpa::backward")
def _(grad_output, *arguments):  # type: ignore[no-untyped-def]
    problem, flags = divided(arguments)
    wanted = Wanted(*flags)
    _check_devices(problem, grad_output=grad_output)
    both = zip(problem[:_parameters], wanted, strict=False)
    of_operands = [tensor.new_empty(tensor.shape if is_wanted else (0,)) for tensor, is_wanted in both]
    return (*of_operands, *_empty_further(problem, wanted.parameters, wanted.out_scale))


@torch.library.register_fake("gdpa::backward_out")
def _(grad_output, *arguments):  # type: ignore[no-untyped-def]
    problem, (grad_query, grad_key, grad_value, *further) = divided(arguments)
    buffers = {"grad_query": grad_query, "grad_key": grad_key, "grad_value": grad_value}
    _check_devices(problem, grad_output=grad_output, **buffers)
    return _empty_further(problem, *further)


def _empty_further(problem: Any, bits: int = 0, wants_out_scale: bool = False) -> tuple[Any, Any]:
    """Returns empty tensors for the gradients of the tensors of the call, and of the rows of out_scale."""
    query, parameters, numbers = problem.query, problem.parameters, problem.out_scale_numbers
    of_rows = query.new_empty((0,)) if numbers is None or not wants_out_scale else numbers.new_empty(numbers.shape)
    # dtype_of_sums() in torch/operators.cpp has the same rule.
    wanted = [tensor for n, tensor in enumerate(parameters) if bits >> n & 1]
    dtypes = {tensor.dtype for tensor in wanted}
    dtype = dtypes.pop() if query.is_cuda and len(dtypes) == 1 else torch.float32
    if not query.is_cuda and any(tensor.dtype == torch.float64 for tensor in (query, *parameters)):
        dtype = torch.float64
    return query.new_empty((sum(tensor.numel() for tensor in wanted),), dtype=dtype), of_rows


@torch.library.register_fake("gdpa::flops")
def _(*arguments):  # type: ignore[no-untyped-def]
    """Lengths are unknown without data, so the count assumes equal lengths and no masked scores."""
    problem, (is_backward, *flags) = divided(arguments)
    query, key, table = problem.query, problem.key, problem.block_table
    batch = batch_of(*_sides(problem))
    keys = batch if problem.kv_of is None else batch_of(key, key, problem.cu_seqlens_k, None, None)
    length_k = _mean_length(key, problem.cu_seqlens_k, keys) if table is None else table.shape[1] * key.shape[1]
    scores = batch * _mean_length(query, problem.cu_seqlens_q, batch) * length_k
    head_dim, head_dim_v = query.shape[-1], problem.value.shape[-1]
    products = head_dim + head_dim_v
    if is_backward:
        wanted = Wanted(*flags)
        products = (1 + wanted.query + wanted.key) * head_dim
        products += (any((wanted.query, wanted.key, *wanted[3:])) + wanted.value) * head_dim_v
    return float(2 * query.shape[-2] * scores * products)


def _sides(problem: Any) -> tuple[Any, ...]:
    """Returns the arguments of batch_of."""
    entries = problem.kv_of if problem.block_table is None else problem.block_table
    return problem.query, problem.key, problem.cu_seqlens_q, problem.cu_seqlens_k, entries


def batch_of(query: Any, key: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, of_entries: Any) -> Any:
    """Returns the number of batch entries; `of_entries` has a row for each of them, or is None."""
    if of_entries is not None:
        return of_entries.shape[0]
    for operand, offsets in ((query, cu_seqlens_q), (key, cu_seqlens_k)):
        if offsets is not None:
            return offsets.shape[0] - 1 if offsets.dim() == 1 else offsets.shape[0]
        if operand.dim() == 4:
            return operand.shape[0]
    return 1


def _mean_length(operand: Any, offsets: Any, batch: Any) -> Any:
    if offsets is not None:
        return operand.shape[0] / max(batch, 1)
    return operand.shape[-3]


# Gradients ------------------------------------------------------------------------------------------------------------

# The texts of functions, with the dtypes, devices and wanted gradients, for which a compilation of the backward kernels
# has started. A program may make functions without end, so the set is emptied when it is full: an unneeded compilation
# finds the loaded kernels.
_prefetched: set[tuple[Any, ...]] = set()
_MOST_PREFETCHED = 10_000


def _kind(problem: tuple[Any, ...], wanted: Wanted) -> tuple[Any, ...]:
    query, parameters = problem[0], problem[_parameters]
    dtypes = [tensor.dtype for tensor in parameters]
    return problem[_activation], *(problem[_names] or ()), query.dtype, query.device, wanted, *dtypes


def _prefetch_backward(problem: tuple[Any, ...], wanted: Wanted) -> None:
    """Compiles the backward kernels of the wanted gradients in a thread, while forward compiles and runs.

    The thread ignores errors. Backward compiles missing kernels and reports the errors.
    """
    query = problem[0]
    if type(query) not in _PLAIN:  # a fake tensor has no memory to plan for
        return
    if query.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    if len(_prefetched) >= _MOST_PREFETCHED:
        _prefetched.clear()
    _prefetched.add(_kind(problem, wanted))
    if query.is_cuda:
        Warmup([problem], ("backward", "", "these"), [wanted])


_NO_SECOND_DERIVATIVE = (
    "gdpa: expected a first derivative, got a derivative of a gradient; gdpa has no second derivative: call "
    "backward() or torch.autograd.grad() without create_graph=True, or detach the gradient"
)


def _needed(ctx: Any) -> Wanted:
    """Returns the gradients that an autograd.Function must compute, from the order of its arguments (_Forward)."""
    query, key, value, numbers, _, _, *parameters = ctx.needs_input_grad
    return Wanted(query, key, value, _bits(parameters), numbers)


# Autograd looks at each argument of a Function. The tensors of the call are the last arguments, because their number
# varies. No other argument can require a gradient, so the rest is one argument. It has out_scale's numbers as well.
class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Any, key: Any, value: Any, numbers: Any, keyset: Any, rest: tuple[Any, ...], *parameters: Any
    ) -> torch.Tensor:
        problem = (query, key, value, parameters, *rest)
        if isinstance(query, torch.Tensor):
            wanted = _needed(ctx)
            # In forward mode no input needs a gradient.
            if any(wanted) and _kind(problem, wanted) not in _prefetched:
                _prefetch_backward(problem, wanted)
        output = _below_autograd(forward, keyset, problem)  # first, because it refuses arguments that cannot be saved
        layout = problem[_offsets : _offsets + _layout]
        ctx.save_for_backward(query, key, value, *layout, numbers, *parameters)
        ctx.options = problem[_offsets + _layout : _numbers], problem[_numbers + 1 :]
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch._C._functorch.is_legacy_batchedtensor(grad_output):
            raise NotImplementedError(
                "gdpa: expected one gradient of the output, got a batch of them (is_grads_batched=True); call "
                "torch.autograd.grad() for each of them"
            )
        query, key, value, *saved = ctx.saved_tensors
        layout, numbers, parameters = saved[:_layout], saved[_layout], saved[_layout + 1 :]
        before, after = ctx.options
        wanted = _needed(ctx)
        if not any(wanted):
            return (None,) * len(ctx.needs_input_grad)
        problem = (query, key, value, parameters, *layout, *before, numbers, *after)
        if torch.is_grad_enabled():  # create_graph=True records backward, which then refuses a second derivative
            *gradients, sums, of_rows = backward(grad_output, *problem, *wanted)
        else:
            *gradients, sums, of_rows = _below_autograd(backward, None, (grad_output, *problem, *wanted))
        *wants_operands, bits, wants_out_scale = wanted
        both = zip((*gradients, of_rows), (*wants_operands, wants_out_scale), strict=True)
        of_parameters = split_gradients(sums, parameters, bits) if parameters else ()
        return (*(gradient if is_wanted else None for gradient, is_wanted in both), None, None, *of_parameters)


def split_gradients(sums: torch.Tensor, parameters: Sequence[torch.Tensor], wanted: int) -> list[torch.Tensor | None]:
    """Returns the gradient of each tensor of the call in its shape and dtype, from the numbers of all wanted ones."""
    gradients: list[torch.Tensor | None] = []
    end = 0
    for n, tensor in enumerate(parameters):
        if not wanted >> n & 1:
            gradients.append(None)
            continue
        begin, end = end, end + tensor.numel()
        gradients.append(sums[begin:end].view(tensor.shape).to(tensor.dtype))
    return gradients


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, grad_output: Any, query: Any, key: Any, value: Any, numbers: Any, keyset: Any,
        rest: tuple[Any, ...], *parameters: Any,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        return _below_autograd(backward, keyset, (grad_output, query, key, value, parameters, *rest))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError(_NO_SECOND_DERIVATIVE)


def _below_autograd(operator: Any, keyset: Any, arguments: tuple[Any, ...]) -> Any:
    """Calls the operator without its autograd kernel; `keyset` is that kernel's, or None for a call from attend().

    Compiled code and backward call only this function of the package, so it converts the errors.
    """
    try:
        with torch._C._AutoDispatchBelowAutograd():
            if keyset is None:
                return operator(*arguments)
            return operator.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)
    except RuntimeError as error:
        raise translated(error) from None


# torch.library.register_autograd does the same in 46 us a recorded call; this takes 7 (2.15, one row, two cores).
def _autograd(operator: Any, function: type[torch.autograd.Function], operands: int) -> Any:
    def kernel(keyset: Any, *arguments: Any) -> Any:
        first, parameters, rest = arguments[:operands], arguments[operands], arguments[operands + 1 :]
        numbers = rest[_numbers_in_rest]
        needs_gradient = torch.is_grad_enabled() and _any_requires_gradient(*first, numbers, *parameters)
        # In forward mode, PyTorch then refuses a function without jvp. Otherwise it would silently drop the tangents.
        if needs_gradient or forward_ad._current_level >= 0:
            return function.apply(*first, numbers, keyset, rest, *parameters)
        return _below_autograd(operator, keyset, arguments)

    return kernel


_library.impl("forward", _autograd(forward, _Forward, _parameters), "Autograd", with_keyset=True)
_library.impl("backward", _autograd(backward, _Backward, _parameters + 1), "Autograd", with_keyset=True)
_library.impl(
    "backward_out", lambda keyset, *rest: _below_autograd(backward_out, keyset, rest), "Autograd", with_keyset=True
)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


@assume_constant_result
def _has_dtensors() -> bool:
    """Returns whether a DTensor can exist. The import of its module takes a second, and registers the strategies."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    import gdpa._sharding  # noqa: F401

    return True


def attend(query: Any, key: Any, value: Any, parameters: tuple[torch.Tensor, ...], *rest: Any) -> torch.Tensor:
    """Calls gdpa::forward without the dispatch to its autograd kernel, and records a call that needs a gradient.

    The autograd kernel is in Python, and its dispatch takes as long as the rest of a call with one row.
    """
    if type(query) not in _PLAIN and _has_dtensors():
        from gdpa._sharding import with_replicated

        parameters, rest = with_replicated(query, key, value, parameters, rest)
    # Under a transform of torch.func, an operand does not show whether a gradient is needed.
    has_transforms = torch._C._are_functorch_transforms_active()
    if has_transforms:
        _refuse_derivatives_of_torch_func()
    is_transformed = forward_ad._current_level >= 0 or has_transforms
    if torch.compiler.is_compiling() or is_transformed:
        return forward(query, key, value, parameters, *rest)
    numbers = rest[_numbers_in_rest]
    if not _require_gradient(query, key, value, numbers, parameters):
        with torch._C._AutoDispatchBelowAutograd():
            return forward(query, key, value, parameters, *rest)
    # The dispatcher casts the operands before the call is recorded.
    if torch._C._is_any_autocast_enabled():
        return forward(query, key, value, parameters, *rest)
    if torch._C._is_tracing():
        raise NotImplementedError(
            "gdpa: expected operands without gradients in torch.jit.trace, got one that requires a gradient; trace "
            "under torch.no_grad(), or use torch.export or torch.compile"
        )
    return _Forward.apply(query, key, value, numbers, None, rest, *parameters)


def _refuse_derivatives_of_torch_func() -> None:
    """Raises NotImplementedError in grad, vjp, jvp and jacobians of torch.func, for which gdpa has no rules."""
    transforms = torch._C._functorch
    for level in transforms.get_interpreter_stack() or ():
        if level.key() in (transforms.TransformType.Grad, transforms.TransformType.Jvp):
            raise NotImplementedError(
                "gdpa: expected a gradient of torch.autograd, got a transform of torch.func (grad, vjp, jvp or a "
                "jacobian), which gdpa does not support; call backward() or torch.autograd.grad()"
            )


def _any_requires_gradient(*tensors: torch.Tensor | None) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _require_gradient(query: Any, key: Any, value: Any, numbers: Any, parameters: tuple[torch.Tensor, ...]) -> bool:
    """Returns whether a gradient is needed. Accepts any operand, because the operator refuses other types."""
    if not torch.is_grad_enabled():
        return False
    try:
        if query.requires_grad or key.requires_grad or value.requires_grad:
            return True
    except AttributeError:
        return True
    return _any_requires_gradient(numbers, *parameters)


# Vmap -----------------------------------------------------------------------------------------------------------------


def _one_by_one(operator: Any) -> Any:
    """Returns the rule of vmap that calls the operator for each slice. PyTorch's own has no lists of tensors."""

    def rule(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        def slice_of(argument: Any, dim: Any, n: int) -> Any:
            if isinstance(argument, (list, tuple)):
                return [slice_of(*one, n) for one in zip(argument, dim, strict=True)]
            if dim is None:
                return argument
            # The sum over an empty dimension is zeros, with a gradient. A call with them has the shapes of the results.
            is_empty = argument.shape[dim] == 0
            return argument.sum(dim, dtype=argument.dtype) if is_empty else argument.select(dim, n)

        calls = [
            operator(*[slice_of(*one, n) for one in zip(arguments, in_dims, strict=True)])
            for n in range(max(1, info.batch_size))
        ]
        if isinstance(calls[0], torch.Tensor):
            return torch.stack(calls)[: info.batch_size], 0
        stacked = tuple(torch.stack(results)[: info.batch_size] for results in zip(*calls, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


torch.library.register_vmap("gdpa::forward", _one_by_one(forward), lib=_library)
torch.library.register_vmap("gdpa::backward", _one_by_one(backward), lib=_library)


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


def _flops_of_forward(*problem: Any, out_val: Any = None, **kwargs: Any) -> int:
    return int(flops(*problem, False))


def _flops_of_backward(grad_output: Any, *arguments: Any, out_val: Any = None, **kwargs: Any) -> int:
    problem, flags = divided(arguments)
    return int(flops(*problem, True, *flags))


def _register_flop_formulas() -> None:
    from torch.utils.flop_counter import register_flop_formula

    register_flop_formula(torch.ops.gdpa.forward, get_raw=True)(_flops_of_forward)
    register_flop_formula(torch.ops.gdpa.backward, get_raw=True)(_flops_of_backward)


when_imported("torch.utils.flop_counter", _register_flop_formulas)  # it imports Triton
