"""DTensor sharding strategies of gdpa::forward and gdpa::backward.

On each dimension of the device mesh a call is in one of three modes. The operator then runs on local tensors only.

    mode       operands                                 output       gradient of a replicated operand or tensor
    heads      Shard on the axis of heads               heads        partial sums, for tensors without an axis of heads
    batch      Shard(0), together with their offsets    Shard(0)     partial sums
    replicate  Replicate                                Replicate    the whole gradient

docs/distributed.md explains the choice of the mode.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch

from gdpa._library import PROBLEM, Wanted, backward, forward, wanted_gradients
from gdpa._text import describe
from gdpa._when_imported import assume_constant_result

_is_registered = False


@assume_constant_result
def register_strategies() -> bool:
    """Registers the strategies once, and returns whether a DTensor can exist.

    It imports no module of torch.distributed, because that import takes a second.
    """
    global _is_registered
    if "torch.distributed.tensor" not in sys.modules:
        return False
    if not _is_registered:
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

        # A strategy depends on the text of the function and on the missing offsets, so all arguments are in its key.
        info = RuntimeSchemaInfo(static_argnum=0, needs_pytree=True)
        propagator: Any = DTensor._op_dispatcher.sharding_propagator
        propagator.register_op_strategy(forward, _forward_strategy, info)
        propagator.register_op_strategy(backward, _backward_strategy, info)
        _is_registered = True
    return True


def with_replicated(
    query: Any, key: Any, value: Any, parameters: tuple[Any, ...], rest: tuple[Any, ...]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns parameters and rest with DTensors instead of plain tensors, if the operands are DTensors.

    A plain tensor is the same on every rank. With rows that are sharded at the ends of sequences, plain offsets could
    be global or local, so they are refused.
    """
    from torch.distributed.tensor import DTensor, Replicate

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


class _Call:
    """The specs of a call, by argument, and the placements that are chosen for them."""

    def __init__(self, schema: Any, has_gradient: bool) -> None:
        from torch.distributed.tensor._op_schema import OpStrategy, TupleStrategy

        def spec_of(argument: Any) -> Any:
            if isinstance(argument, OpStrategy):
                return argument.strategies[0].output_spec
            if isinstance(argument, TupleStrategy):
                return [spec_of(one) for one in argument.children]
            return argument

        values = [spec_of(argument) for argument in schema.args_schema]
        self.strategies = schema.args_strategy
        self.grad_output = values.pop(0) if has_gradient else None
        self.further = values[len(PROBLEM) :]
        self.arguments = dict(zip(PROBLEM, values, strict=False))
        self.query, self.key, self.value = (self.arguments[name] for name in ("query", "key", "value"))
        self.parameters: list[Any] = list(self.arguments["parameters"])
        self.offsets = {name: self.arguments.get(name) for name in ("cu_seqlens_q", "cu_seqlens_k")}
        self.numbers = self.arguments.get("out_scale_numbers")
        self.reads = _Reads(self.arguments["activation"], self.arguments["parameter_names"])
        self.mesh = self.query.mesh

    @property
    def operands(self) -> list[tuple[Any, Any]]:
        """Query, key and value, each with its offsets."""
        of_query, of_key = self.offsets.values()
        return [(self.query, of_query), (self.key, of_key), (self.value, of_key)]

    def head_axis(self, spec: Any) -> int:
        return len(spec.shape) - 2

    def modes(self, wants_parameters: int) -> list[str]:
        """Returns the mode on each dimension of the mesh, or raises an error if the placements have no meaning."""
        modes: list[str] = []
        ranks = 1  # that divide the heads
        for dim in range(self.mesh.ndim):
            mode = self._mode(dim, ranks * self.mesh.size(dim), wants_parameters)
            ranks *= self.mesh.size(dim) if mode == "heads" else 1
            modes.append(mode)
        return modes

    def _mode(self, dim: int, ranks: int, wants_parameters: int) -> str:
        given = [name for name, spec in self.offsets.items() if spec is not None and spec.placements[dim].is_shard(0)]
        if given:
            self._check_jagged_batch(dim, given[0])
            return "batch"
        if self._has_dense_batch(dim):
            return "batch"
        operands = [spec for spec, _ in self.operands] + ([self.grad_output] if self.grad_output else [])
        is_sharded = any(spec.placements[dim].is_shard() for spec in operands)
        return "heads" if is_sharded and self._can_shard_heads(ranks, wants_parameters) else "replicate"

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
        axes = [(n, self._axis(n, "batch")) for n in range(len(self.parameters))]
        has_all = all(axis is None or batch in (None, self.parameters[n].shape[axis]) for n, axis in axes)
        is_only_index = all(self.reads.allows(position) for position in ("batch", *_rows))
        return has_all and is_only_index and all(len(self._row_axes(n)) <= 1 for n, _ in axes)

    def _check_jagged_batch(self, dim: int, name: str) -> None:
        """The ranks have their own sequences, so nothing can be redistributed."""
        for spec, offsets in self.operands:
            is_packed = offsets is not None
            if is_packed and not (offsets.placements[dim].is_shard(0) and spec.placements[dim].is_shard(0)):
                raise _refused(
                    f"{name}: expected Shard(0) for the rows of all jagged operands and for their offsets, got "
                    "Shard(0) for some of them; a rank needs the rows of its own sequences"
                )
        if len(self.query.shape) == 3 and self.offsets["cu_seqlens_q"] is None:
            raise _refused(
                f"{name}: expected a query with offsets or of rank 4 with sharded offsets, got a shared query, whose "
                "output has no known shape; expand the query to (B, L, H, d)"
            )
        if not self._can_shard_batch(None):
            raise _refused(
                f"{name}: expected a function that uses batch, q_row and kv_row only as an index of tensors, got "
                "another use; replicate the rows and the offsets"
            )
        sharded = [(f"parameter {self.reads.names[n]}", one, n) for n, one in enumerate(self.parameters)]
        for which, spec, number in [*sharded, ("out_scale", self.numbers, -1)]:
            wanted = self.of_parameter(number, "batch") if number >= 0 else self.of_numbers("batch")
            if spec is not None and wanted.is_shard() and spec.placements[dim] != wanted:
                raise _refused(
                    f"{which}: expected {wanted}, the numbers of each rank's own sequences, as the offsets are "
                    f"sharded, got {spec.placements[dim]}; make a DTensor of the rank's numbers"
                )

    def _can_shard_heads(self, ranks: int, wants_parameters: int) -> bool:
        heads, of_key = (spec.shape[self.head_axis(spec)] for spec in (self.query, self.key))
        # Without GQA an uneven division is the same for all operands.
        is_divisible = heads % ranks == 0 and of_key % ranks == 0
        if not (is_divisible or (heads == of_key and heads >= ranks)) or not self.reads.allows("head"):
            return False
        axes = [self._axis(n, "head") for n in range(len(self.parameters))]
        if any(axis is not None and self.parameters[n].shape[axis] != heads for n, axis in enumerate(axes)):
            return False  # a rank would read elements of other heads
        # The operator returns all gradients of tensors in one vector. A shard of the vector is a shard of the tensor
        # only if the vector has one tensor, which is divided evenly on its first axis.
        wanted = [axis for n, axis in enumerate(axes) if wants_parameters >> n & 1]
        return all(axis is None for axis in wanted) or (wanted == [0] and is_divisible)

    def _axis(self, number: int, position: str) -> int | None:
        return self.reads.axis(self.reads.names[number], position, self.parameters[number].shape)

    def _row_axes(self, number: int) -> set[int | None]:
        """Returns the axis of packed rows in each read of a tensor. An axis of one element is broadcast."""
        shape = self.parameters[number].shape
        axes: set[int | None] = set()
        for read in self.reads.axes[self.reads.names[number]]:
            axes.add(next((n for n, index in enumerate(read) if index in _rows and shape[n] > 1), None))
        return axes

    def placement(self, spec: Any, offsets: Any, mode: str) -> Any:
        """Returns the placement of an operand."""
        from torch.distributed.tensor import Replicate, Shard

        if mode == "heads":
            return Shard(self.head_axis(spec))
        if mode == "batch" and (offsets is not None or len(spec.shape) == 4):
            return Shard(0)
        return Replicate()

    def of_batch(self, mode: str) -> Any:
        """Returns the placement of the offsets, and of one number for each sequence."""
        from torch.distributed.tensor import Replicate, Shard

        return Shard(0) if mode == "batch" else Replicate()

    def of_numbers(self, mode: str) -> Any:
        """Returns the placement of the numbers of out_scale: one for each sequence, or one for each query."""
        if self.arguments["out_scale_kind"] != "row":
            return self.of_batch(mode)
        return self.placement(self.query, self.offsets["cu_seqlens_q"], mode if mode == "batch" else "replicate")

    def of_parameter(self, number: int, mode: str) -> Any:
        """Returns the placement of a tensor of the call."""
        from torch.distributed.tensor import Replicate, Shard

        axis: int | None = None
        if mode == "heads":
            axis = self._axis(number, "head")
        elif mode == "batch":
            axis = self._axis(number, "batch")
            axis = next(iter(self._row_axes(number)), None) if axis is None else axis
        return Replicate() if axis is None else Shard(axis)

    def strategy(self, modes: list[str], wants: Wanted | None) -> Any:
        """Returns the strategy with one choice: the placements of the arguments and of the results."""
        from torch.distributed.tensor import Partial, Replicate, Shard
        from torch.distributed.tensor._dtensor_spec import DTensorSpec
        from torch.distributed.tensor._op_schema import OpSpec, OpStrategy
        from torch.distributed.tensor._ops.utils import generate_redistribute_costs

        def spec(placements: list[Any], like: Any = None) -> Any:
            return DTensorSpec(self.mesh, tuple(placements), tensor_meta=like.tensor_meta if like else None)

        of_operands = [[self.placement(one, offsets, mode) for mode in modes] for one, offsets in self.operands]
        of_parameters = [[self.of_parameter(n, mode) for mode in modes] for n in range(len(self.parameters))]
        of_output = [
            Shard(self.head_axis(self.query)) if mode == "heads" else Shard(0) if mode == "batch" else Replicate()
            for mode in modes
        ]
        of_batch = [self.of_batch(mode) for mode in modes]
        inputs = [] if self.grad_output is None else [spec(of_output, self.grad_output)]
        inputs += [spec(places, one) for places, (one, _) in zip(of_operands, self.operands, strict=True)]
        inputs += [spec(places, one) for places, one in zip(of_parameters, self.parameters, strict=True)]
        inputs += [spec(of_batch, one) for one in self.offsets.values() if one is not None]
        of_numbers = [self.of_numbers(mode) for mode in modes]
        if self.numbers is not None:
            inputs.append(spec(of_numbers, self.numbers))
        outputs: Any = spec(of_output)
        if wants is not None:
            outputs = [
                spec(self._gradient(places, modes) if wanted else [Replicate()] * len(modes))
                for places, wanted in zip(of_operands, wants[:3], strict=True)
            ]
            wanted = [places for n, places in enumerate(of_parameters) if wants[3] >> n & 1]
            sums: list[Any] = [Replicate()] * len(modes)
            for dim, mode in enumerate(modes):
                if wanted and mode != "replicate":
                    sums[dim] = Shard(0) if any(places[dim].is_shard() for places in wanted) else Partial()
            # Each rank has the terms of its heads, or of its sequences for a query that the batch shares.
            of_rows = [
                Partial() if mode != "replicate" and place.is_replicate() else place
                for place, mode in zip(of_numbers, modes, strict=True)
            ]
            outputs = (*outputs, spec(sums), spec(of_rows if wants[4] else [Replicate()] * len(modes)))
        costs = [generate_redistribute_costs(a, b) for a, b in zip(self.strategies, inputs, strict=True)]
        return OpStrategy([OpSpec(output_specs=outputs, input_specs=inputs, redistribute_cost=costs)])

    def _gradient(self, placements: list[Any], modes: list[str]) -> list[Any]:
        """Returns the placements of the gradient of an operand: each rank has a part of the sum over the batch."""
        from torch.distributed.tensor import Partial

        both = zip(placements, modes, strict=True)
        return [Partial() if mode == "batch" and place.is_replicate() else place for place, mode in both]


def _forward_strategy(schema: Any) -> Any:
    call = _Call(schema, has_gradient=False)
    return call.strategy(call.modes(0), None)


def _backward_strategy(schema: Any) -> Any:
    call = _Call(schema, has_gradient=True)
    wants = wanted_gradients(tuple(call.further))
    modes = call.modes(wants[3])
    for number, name in enumerate(call.reads.names):
        is_sharded = any(mode == "batch" and call.of_parameter(number, mode).is_shard() for mode in modes)
        if is_sharded and wants[3] >> number & 1:
            raise _refused(
                f"parameter {name}: expected a tensor without gradient or without an axis of the batch, as the batch "
                "is sharded, got one with both; replicate the rows and the offsets"
            )
    return call.strategy(modes, wants)


def _refused(message: str) -> ValueError:
    # PyTorch wraps the error in a RuntimeError. The mark lets gdpa._errors raise a ValueError instead.
    return ValueError(f"[ValueError] {message}")
