"""The base class of a system, and its operands in several layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from gdpa.bench.cases import Case
from gdpa.bench.tensors import params_of, random_tensors

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # query, key and value to output


def sides_of(case: Case) -> list[tuple[tuple[int, ...], bool]]:
    """Returns the lengths of query, key, value and the gradient of the output, and whether the batch shares them."""
    query, keys = (case.lengths_q, case.shared_q), (case.lengths_of_keys, case.shared_kv)
    return [query, keys, keys, (case.lengths_q, False)]


@dataclass(frozen=True)
class Operands:
    """The operands of one call. `tensors` are the tensors that functions read.

    The packed layout is (rows, heads, head_dim), and a shared operand exists once for all sequences.
    """

    case: Case
    query: Tensor
    key: Tensor
    value: Tensor
    grad_output: Tensor
    tensors: dict[str, Tensor] = field(default_factory=dict, kw_only=True)

    @classmethod
    def random(cls, case: Case, device: torch.device, seed: int = 0) -> Operands:
        generator = torch.Generator(device).manual_seed(seed)

        def normal(lengths: tuple[int, ...], shared: bool) -> Tensor:
            rows = lengths[0] if shared else sum(lengths)
            numbers = torch.randn(rows, case.heads, case.head_dim, generator=generator, device=device)
            return numbers.to(getattr(torch, case.dtype))

        rows = [normal(*side) for side in sides_of(case)]
        return cls(case, *rows, tensors=random_tensors(case, generator, device))

    @property
    def rows(self) -> tuple[Tensor, ...]:
        return self.query, self.key, self.value, self.grad_output

    def changed(self, change: Callable[[Tensor], Tensor]) -> Operands:
        return Operands(self.case, *map(change, self.rows), tensors=self.tensors)

    @property
    def packed(self) -> Operands:
        return self

    @cached_property
    def dense(self) -> Operands:
        """The operands as (batch, longest, heads, head_dim), with batch 1 if shared; views if nothing is padded."""
        sides = zip(self.rows, sides_of(self.case), strict=True)
        return Operands(self.case, *(dense(rows, *side) for rows, side in sides), tensors=self.tensors)

    @cached_property
    def heads_first(self) -> Operands:
        """The dense operands as contiguous (batch, heads, longest, head_dim)."""
        return self.dense.changed(lambda operand: operand.transpose(1, 2).contiguous())


@dataclass(frozen=True)
class Prepared:
    """A prepared system. `forward` reads `inputs`, and `grad_outputs` are the gradients of its outputs."""

    forward: Callable[[], list[Tensor]]
    inputs: list[Tensor]
    grad_outputs: list[Tensor]

    def backward(self, outputs: list[Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(outputs, self.inputs, self.grad_outputs)

    def results(self) -> list[Tensor]:
        """Returns the outputs and the gradients."""
        outputs = self.forward()
        return [*(output.detach() for output in outputs), *self.backward(outputs)]


# What a system may lack: the cases that need it, and the reason for their refusal.
LIMITS: dict[str, tuple[Callable[[Case], bool], str]] = {
    "layouts": (lambda case: case.layout != "packed", "does not support this layout"),
    "conditions": (lambda case: not case.has_window, "does not support this mask"),
    "windows": (lambda case: case.mask.startswith("window"), "does not support windows"),
    "shared": (lambda case: case.shared_q or case.shared_kv, "does not support an operand that the batch shares"),
    # PyTorch's causal mask starts at the upper left. It equals gdpa's mask only if both lengths are equal.
    "causal cross": (
        lambda case: case.mask == "causal" and case.lengths_q != case.lengths_k,
        "its causal mask counts from the upper left, and the lengths of queries and keys differ",
    ),
}


class System:
    """A system that computes attention. `name` is unique in a run, and `row_name` is the name in the rows."""

    name: str
    reported_as: str | None = None  # the name in the rows, if it differs
    devices: tuple[str, ...] = ("cpu", "cuda")  # the devices on which the system is timed
    function: str | None = None  # the fixed function that the system computes instead of f, if any
    activation: str | None = None  # the function of a variant, in place of that of the case
    dtype: str | None = None  # the type of a variant, in place of that of the case
    is_usual = True  # whether the system runs if neither the options nor the suite name it
    can_train = False  # whether the system may compute the attention of a model in the suite training
    reads_tensors = False  # whether the system reads the tensors of the function
    lacks: tuple[str, ...] = ()  # names of LIMITS

    @property
    def row_name(self) -> str:
        return self.reported_as or self.name

    def variant(self, activation: str | None = None, dtype: str | None = None) -> System:
        """Returns the system with another function or another type than the case, which alternates with this one.

        A system with a fixed function keeps it. Its variant only gets another bias.
        """
        other = copy(self)
        other.name, other.reported_as = f"{self.name}, {activation or dtype}", self.row_name
        other.activation, other.dtype = activation, dtype
        return other

    def timed(self, case: Case) -> Case:
        """Returns the case with the function and the type of a variant."""
        return replace(case, activation=self.activation or case.activation, dtype=self.dtype or case.dtype)

    def version(self) -> str:
        return torch.__version__

    def refusal(self, case: Case) -> str | None:
        """Returns the reason why the system cannot run this case, or None."""
        limits = (LIMITS[name] for name in self.lacks)
        return next((reason for applies, reason in limits if applies(case)), None)

    def variants(self, functions: Sequence[str]) -> Sequence[System]:
        """Returns the systems that alternate on a case with several functions: this system, with the first function."""
        return [self]

    def layout(self, case: Case) -> str:
        """Returns the layout of the operands of `attend`: packed, dense or heads_first."""
        return "packed"

    def attend(self, case: Case, device: torch.device, params: dict[str, Tensor]) -> Attend:
        """Returns the function that is timed. Its operands and its output have the layout of the system.

        `params` are the tensors that f reads.
        """
        raise NotImplementedError

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        dtype = getattr(torch, case.dtype)
        if operands.query.dtype != dtype:
            operands = operands.changed(lambda operand: operand.to(dtype))
        laid: Operands = getattr(operands, self.layout(case))
        inputs = [operand.detach().requires_grad_() for operand in (laid.query, laid.key, laid.value)]
        params = params_of(case, operands.tensors) if self.reads_tensors else {}
        attend = self.attend(case, operands.query.device, params)
        learned = [tensor for tensor in params.values() if tensor.requires_grad]
        return Prepared(lambda: [attend(*inputs)], [*inputs, *learned], [laid.grad_output])


def offsets(lengths: Sequence[int], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=dtype, device=device)


def offsets_of(case: Case, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the cumulative lengths of queries and keys in int32, as most packages read them."""
    return offsets(case.lengths_q, device, torch.int32), offsets(case.lengths_k, device, torch.int32)


def dense(rows: Tensor, lengths: Sequence[int], shared: bool) -> Tensor:
    """Returns (batch, longest, heads, head_dim) with zeros after each sequence. The batch of shared rows is 1."""
    if shared:
        return rows.unsqueeze(0)
    if len(set(lengths)) == 1:
        return rows.unflatten(0, (len(lengths), lengths[0]))
    return torch.nn.utils.rnn.pad_sequence(list(rows.split(list(lengths))), batch_first=True)
