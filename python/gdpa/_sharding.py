"""DTensor sharding strategies of gdpa::forward and gdpa::backward.

On each dimension of the device mesh a call is in one of three modes. The operator then runs on local tensors only.

    mode       operands                                 output       gradient of a replicated operand or tensor
    heads      Shard on the axis of heads               heads        partial sums, for tensors without an axis of heads
    batch      Shard(0), together with their offsets    Shard(0)     partial sums
    replicate  Replicate                                Replicate    the whole gradient

docs/distributed.md explains the choice of the mode.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSpec, OpStrategy, RuntimeSchemaInfo, TupleStrategy
from torch.distributed.tensor._ops.utils import generate_redistribute_costs

from gdpa._library import Wanted, backward, divided, forward
from gdpa._text import describe


def with_replicated(
    query: Any, key: Any, value: Any, parameters: tuple[Any, ...], rest: tuple[Any, ...]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns parameters and rest with DTensors instead of plain tensors, if the operands are DTensors.

    A plain tensor is the same on every rank. With rows that are sharded at the ends of sequences, plain offsets could
    be global or local, so they are refused.
    """
    if not isinstance(query, DTensor):
        return parameters, rest
    mesh = query.device_mesh

    def replicated(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or isinstance(tensor, DTensor):
            return tensor
        return DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)

    advice = "repeat or gather keys and values"
    for name, tensor in zip(("kv_of", "block_table", "seqused_k", "output_offsets"), rest[2:6], strict=True):
        if tensor is not None:
            advice = "index the output" if name == "output_offsets" else advice
            raise ValueError(f"{name}: expected None with DTensors, got a tensor; {advice}")
    for name, offsets, operand in (("cu_seqlens_q", rest[0], query), ("cu_seqlens_k", rest[1], key)):
        is_plain = isinstance(offsets, torch.Tensor) and not isinstance(offsets, DTensor)
        if is_plain and any(one.is_shard(0) for one in getattr(operand, "placements", ())):
            raise ValueError(
                f"{name}: expected a DTensor, as the rows are sharded, got a plain tensor; pass Shard(0) for the "
                "offsets of each rank's own sequences, or Replicate() for the offsets of all rows"
            )
    return tuple(replicated(one) for one in parameters), tuple(replicated(one) for one in rest)


_rows = ("q_row", "kv_row")


class _Reads:
    """The axes of the tensors that the function indexes with a bare position, such as head in table[head, q_idx]."""

    def __init__(self, text: str, names: Sequence[str] | None) -> None:
        said = describe(text)
        self.names = names or ()
        self.is_list = said.functions > 1
        self.axes = {name: [read.indices for read in said.reads if read.tensor == name] for name in self.names}
        self.numbers = {one.name for one in said.names if not one.is_whole_index}

    def axis(self, name: str, position: str, shape: Sequence[int]) -> int | None:
        """Returns the axis of the tensor that the position indexes in every read, or None."""
        if not self.axes[name]:
            return 0 if position == "head" and len(shape) == 1 else None
        axes = {read.index(position) if position in read else None for read in self.axes[name]}
        axis = axes.pop()
        return axis if not axes and axis is not None and shape[axis] > 1 else None

    def allows(self, position: str) -> bool:
        """Returns whether the position is only an index of a tensor, so that a shard of the tensor has its elements."""
        is_read_as_number = position not in self.names and position in self.numbers
        is_mixed = any(len({position in read for read in reads}) > 1 for reads in self.axes.values())
        return not is_read_as_number and not is_mixed and not (position == "head" and self.is_list)


class _Axes(NamedTuple):
    """The axis of a tensor that is divided in each mode. None: every rank has the whole tensor."""

    heads: int | None
    batch: int | None

    def placement(self, mode: str) -> Any:
        axis = {"heads": self.heads, "batch": self.batch}.get(mode)
        return Replicate() if axis is None else Shard(axis)


class _Call:
    """The specs of a call, by argument, and the placements that are chosen for them."""

    def __init__(self, schema: Any, is_backward: bool) -> None:
        def spec_of(argument: Any) -> Any:
            if isinstance(argument, OpStrategy):
                return argument.strategies[0].output_spec
            if isinstance(argument, TupleStrategy):
                return [spec_of(one) for one in argument.children]
            return argument

        values = tuple(spec_of(argument) for argument in schema.args_schema)
        self.strategies = schema.args_strategy
        self.grad_output = values[0] if is_backward else None
        self.problem, flags = divided(values[int(is_backward) :])
        self.wanted = Wanted(*flags)
        problem = self.problem
        self.mesh = problem.query.mesh
        self.reads = _Reads(problem.activation, problem.parameter_names)
        self.offsets = {"cu_seqlens_q": problem.cu_seqlens_q, "cu_seqlens_k": problem.cu_seqlens_k}
        sides = (problem.cu_seqlens_q, problem.cu_seqlens_k, problem.cu_seqlens_k)
        #: Query, key and value, each with its offsets.
        self.operands = list(zip((problem.query, problem.key, problem.value), sides, strict=True))
        self.of_operands = [
            _Axes(len(spec.shape) - 2, 0 if offsets is not None or len(spec.shape) == 4 else None)
            for spec, offsets in self.operands
        ]
        self.of_parameters = [self._axes_of_parameter(n) for n in range(len(problem.parameters))]
        # One number for each sequence, or for each query.
        self.of_numbers = _Axes(None, self.of_operands[0].batch if problem.out_scale_kind == "row" else 0)

    def _axes_of_parameter(self, number: int) -> _Axes:
        batch = self._axis(number, "batch")
        return _Axes(self._axis(number, "head"), next(iter(self._row_axes(number)), None) if batch is None else batch)

    def _axis(self, number: int, position: str) -> int | None:
        return self.reads.axis(self.reads.names[number], position, self.problem.parameters[number].shape)

    def _row_axes(self, number: int) -> set[int | None]:
        """Returns the axis of packed rows in each read of a tensor. An axis of one element is broadcast."""
        shape = self.problem.parameters[number].shape
        axes: set[int | None] = set()
        for read in self.reads.axes[self.reads.names[number]]:
            axes.add(next((n for n, index in enumerate(read) if index in _rows and shape[n] > 1), None))
        return axes

    def modes(self) -> list[str]:
        """Returns the mode on each dimension of the mesh, or raises an error if the placements have no meaning."""
        modes: list[str] = []
        ranks = 1  # that divide the heads
        for dim in range(self.mesh.ndim):
            mode = self._mode(dim, ranks * self.mesh.size(dim))
            ranks *= self.mesh.size(dim) if mode == "heads" else 1
            modes.append(mode)
        return modes

    def _mode(self, dim: int, ranks: int) -> str:
        given = [name for name, spec in self.offsets.items() if spec is not None and spec.placements[dim].is_shard(0)]
        if given:
            self._check_jagged_batch(dim, given[0])
            return "batch"
        if self._has_dense_batch(dim):
            return "batch"
        operands = [spec for spec, _ in self.operands] + ([self.grad_output] if self.grad_output else [])
        is_sharded = any(spec.placements[dim].is_shard() for spec in operands)
        return "heads" if is_sharded and self._can_shard_heads(ranks) else "replicate"

    def _has_dense_batch(self, dim: int) -> bool:
        dense = [spec for spec, _ in self.operands if len(spec.shape) == 4]
        if not dense or any(spec is not None for spec in self.offsets.values()):
            return False
        is_sharded = all(spec.placements[dim].is_shard(0) for spec in dense)
        # An uneven division of the batch is not the division of B * L rows, which tensors and outputs may have.
        is_even = all(spec.shape[0] % self.mesh.size(dim) == 0 for spec in dense)
        return is_sharded and is_even and self._can_shard_batch(dense[0].shape[0])

    def _can_shard_batch(self, batch: int | None) -> bool:
        """Returns whether each rank can compute its sequences. `batch` is unknown with sharded offsets."""
        for n, spec in enumerate(self.problem.parameters):
            axis = self._axis(n, "batch")
            if (axis is not None and batch not in (None, spec.shape[axis])) or len(self._row_axes(n)) > 1:
                return False
        return all(self.reads.allows(position) for position in ("batch", *_rows))

    def _check_jagged_batch(self, dim: int, name: str) -> None:
        """The ranks have their own sequences, so nothing can be redistributed."""
        for spec, offsets in self.operands:
            is_packed = offsets is not None
            if is_packed and not (offsets.placements[dim].is_shard(0) and spec.placements[dim].is_shard(0)):
                raise _refused(
                    f"{name}: expected Shard(0) for the rows of all jagged operands and for their offsets, got "
                    "Shard(0) for some of them; a rank needs the rows of its own sequences"
                )
        if self.of_operands[0].batch is None:
            raise _refused(
                f"{name}: expected a query with offsets or of rank 4 with sharded offsets, got a shared query, whose "
                "output has no known shape; expand the query to (B, L, H, d)"
            )
        if not self._can_shard_batch(None):
            raise _refused(
                f"{name}: expected a function that uses batch, q_row and kv_row only as an index of tensors, got "
                "another use; replicate the rows and the offsets"
            )
        names = [f"parameter {name}" for name in self.reads.names]
        divisions = *zip(names, self.problem.parameters, self.of_parameters, strict=False), (
            "out_scale", self.problem.out_scale_numbers, self.of_numbers,
        )  # fmt: skip
        for which, spec, axes in divisions:
            wanted = axes.placement("batch")
            if spec is not None and wanted.is_shard() and spec.placements[dim] != wanted:
                raise _refused(
                    f"{which}: expected {wanted}, the numbers of each rank's own sequences, as the offsets are "
                    f"sharded, got {spec.placements[dim]}; make a DTensor of the rank's numbers"
                )

    def _can_shard_heads(self, ranks: int) -> bool:
        heads, of_key = (spec.shape[-2] for spec in (self.problem.query, self.problem.key))
        # Without GQA an uneven division is the same for all operands.
        is_divisible = heads % ranks == 0 and of_key % ranks == 0
        if not (is_divisible or (heads == of_key and heads >= ranks)) or not self.reads.allows("head"):
            return False
        axes = [one.heads for one in self.of_parameters]
        if any(axis is not None and self.problem.parameters[n].shape[axis] != heads for n, axis in enumerate(axes)):
            return False  # a rank would read elements of other heads
        # The operator returns all gradients of tensors in one vector. A shard of the vector is a shard of the tensor
        # only if the vector has one tensor, which is divided evenly on its first axis.
        wanted = [axis for n, axis in enumerate(axes) if self._wants(n)]
        return all(axis is None for axis in wanted) or (wanted == [0] and is_divisible)

    def _wants(self, number: int) -> bool:
        """Returns whether backward computes the gradient of a tensor of the call."""
        return bool(self.wanted.parameters >> number & 1)

    def strategy(self, modes: list[str]) -> Any:
        """Returns the strategy with one choice: the placements of the arguments and of the results."""

        def placed(axes: _Axes) -> list[Any]:
            return [axes.placement(mode) for mode in modes]

        def spec(placements: list[Any], like: Any = None) -> Any:
            return DTensorSpec(self.mesh, tuple(placements), tensor_meta=like.tensor_meta if like else None)

        def gradient(placements: list[Any], is_wanted: bool) -> Any:
            """Each rank has the terms of its heads or of its sequences in the gradient of what all ranks have."""
            if not is_wanted:
                return spec([Replicate()] * len(modes))
            both = zip(placements, modes, strict=True)
            return spec([Partial() if mode != "replicate" and one.is_replicate() else one for one, mode in both])

        problem, of_output = self.problem, placed(_Axes(self.of_operands[0].heads, 0))
        arguments = [(self.grad_output, of_output)]
        arguments += [(one, placed(axes)) for (one, _), axes in zip(self.operands, self.of_operands, strict=True)]
        arguments += [(one, placed(axes)) for one, axes in zip(problem.parameters, self.of_parameters, strict=True)]
        arguments += [(one, placed(_Axes(None, 0))) for one in self.offsets.values()]
        arguments += [(problem.out_scale_numbers, placed(self.of_numbers))]
        inputs = [spec(places, one) for one, places in arguments if one is not None]
        outputs: Any = spec(of_output)
        if self.grad_output is not None:
            wanted = [placed(axes) for n, axes in enumerate(self.of_parameters) if self._wants(n)]
            of_dims = zip(*wanted, strict=True)
            sums = [Shard(0) if any(one.is_shard() for one in of_dim) else Replicate() for of_dim in of_dims]
            results = [*(placed(axes) for axes in self.of_operands), sums, placed(self.of_numbers)]
            flags = (*self.wanted[:3], bool(wanted), self.wanted.out_scale)
            outputs = tuple(gradient(*one) for one in zip(results, flags, strict=True))
        costs = [generate_redistribute_costs(a, b) for a, b in zip(self.strategies, inputs, strict=True)]
        return OpStrategy([OpSpec(output_specs=outputs, input_specs=inputs, redistribute_cost=costs)])


def _forward_strategy(schema: Any) -> Any:
    call = _Call(schema, is_backward=False)
    return call.strategy(call.modes())


def _backward_strategy(schema: Any) -> Any:
    call = _Call(schema, is_backward=True)
    modes = call.modes()
    for number, name in enumerate(call.reads.names):
        if "batch" in modes and call.of_parameters[number].batch is not None and call._wants(number):
            raise _refused(
                f"parameter {name}: expected a tensor without gradient or without an axis of the batch, as the batch "
                "is sharded, got one with both; replicate the rows and the offsets"
            )
    return call.strategy(modes)


def _refused(message: str) -> ValueError:
    # PyTorch wraps the error in a RuntimeError. The mark lets gdpa._errors raise a ValueError instead.
    return ValueError(f"[ValueError] {message}")


# A strategy depends on the text of the function and on the missing offsets, so all arguments are in its key.
_info = RuntimeSchemaInfo(static_argnum=0, needs_pytree=True)
_propagator: Any = DTensor._op_dispatcher.sharding_propagator
_propagator.register_op_strategy(forward, _forward_strategy, _info)
_propagator.register_op_strategy(backward, _backward_strategy, _info)
