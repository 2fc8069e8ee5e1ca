"""The base class of a system, and its operands in several layouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from gdpa.bench.cases import Case
from gdpa.bench.tensors import params_of, random_tensors

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # query, key and value to output


@dataclass(frozen=True)
class Operands:
    """The packed operands of one call, (rows, heads, head_dim). A shared operand exists once for all sequences.

    `tensors` are the tensors that functions read.
    """

    case: Case
    query: Tensor
    key: Tensor
    value: Tensor
    grad_output: Tensor
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def random(cls, case: Case, device: torch.device, seed: int = 0) -> Operands:
        generator = torch.Generator(device).manual_seed(seed)

        def normal(lengths: tuple[int, ...], shared: bool) -> Tensor:
            rows = lengths[0] if shared else sum(lengths)
            numbers = torch.randn(rows, case.heads, case.head_dim, generator=generator, device=device)
            return numbers.to(getattr(torch, case.dtype))

        return cls(
            case,
            normal(case.lengths_q, case.shared_q),
            normal(case.lengths_of_keys, case.shared_kv),
            normal(case.lengths_of_keys, case.shared_kv),
            normal(case.lengths_q, False),
            random_tensors(case, generator, device),
        )

    def to(self, dtype: torch.dtype) -> Operands:
        query, key, value, grad_output = (
            operand.to(dtype) for operand in (self.query, self.key, self.value, self.grad_output)
        )
        return Operands(self.case, query, key, value, grad_output, self.tensors)

    @cached_property
    def dense(self) -> Operands:
        """The operands as (batch, longest, heads, head_dim), with batch 1 if shared; views if nothing is padded."""
        case = self.case
        return Operands(
            case,
            dense(self.query, case.lengths_q, case.shared_q),
            dense(self.key, case.lengths_of_keys, case.shared_kv),
            dense(self.value, case.lengths_of_keys, case.shared_kv),
            dense(self.grad_output, case.lengths_q, False),
            self.tensors,
        )

    def leaves(self) -> list[Tensor]:
        """Returns query, key and value as leaves that require gradients."""
        return [operand.detach().requires_grad_() for operand in (self.query, self.key, self.value)]

    def params(self, case: Case) -> dict[str, Tensor]:
        """Returns the tensors that the function of the case reads, as leaves if their gradient is wanted."""
        return params_of(case, self.tensors)


@dataclass(frozen=True)
class Prepared:
    """A prepared system. `forward` reads `inputs`, and `grad_outputs` are the gradients of its outputs."""

    forward: Callable[[], list[Tensor]]
    inputs: list[Tensor]
    grad_outputs: list[Tensor]

    def backward(self, outputs: list[Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(outputs, self.inputs, self.grad_outputs)


class System(ABC):
    """A system that computes attention. `name` is unique in a run, and `row_name` is the name in the rows."""

    name: str
    devices: tuple[str, ...] = ("cpu", "cuda")  # the devices on which the system is timed
    function: str | None = None  # the fixed function that the system computes instead of f, if any
    dtype: str | None = None  # the type in which the system computes, if it differs from the case
    is_usual = True  # whether the system runs if neither the options nor the suite name it
    first_call = 0.1  # estimated seconds of the first call on a new shape on a GPU
    first_case = 0.0  # estimated seconds that the first case takes in addition on a GPU, if the system compiles once

    @property
    def row_name(self) -> str:
        return self.name

    def version(self) -> str:
        return torch.__version__

    def refusal(self, case: Case) -> str | None:
        """Returns the reason why the system cannot run this case, or None."""
        return None

    def variants(self, functions: Sequence[str]) -> list[System]:
        """Returns the systems that alternate on a case with several functions: this system, with the first function."""
        return [self]

    @abstractmethod
    def prepare(self, case: Case, operands: Operands) -> Prepared: ...


def learned(params: dict[str, Tensor]) -> list[Tensor]:
    """Returns the tensors whose gradient is wanted."""
    return [tensor for tensor in params.values() if tensor.requires_grad]


class Packed(System):
    """A system that reads the packed operands."""

    @abstractmethod
    def packed(self, case: Case, device: torch.device) -> Attend:
        """Computes the attention of query, key and value (rows, heads, head_dim). The result has the shape of query."""

    def prepare(self, case: Case, operands: Operands) -> Prepared:
        inputs = operands.leaves()
        attend = self.packed(case, operands.query.device)
        return Prepared(lambda: [attend(*inputs)], inputs, [operands.grad_output])


def refuse_windows(case: Case) -> str | None:
    return refuse_conditions(case) or ("does not support windows" if case.mask.startswith("window") else None)


def refuse_conditions(case: Case) -> str | None:
    """Refuses a case that only gdpa and FlexAttention compute."""
    if case.layout != "packed":
        return "does not support this layout"
    return None if case.has_window else "does not support this mask"


def refuse_causal_cross(case: Case) -> str | None:
    """PyTorch's causal mask starts at the upper left. It equals gdpa's mask only if both lengths are equal."""
    if case.mask == "causal" and case.lengths_q != case.lengths_k:
        return "its causal mask counts from the upper left, and the lengths of queries and keys differ"
    return None


def refuse_shared(case: Case) -> str | None:
    return "does not support an operand that the batch shares" if case.shared_q or case.shared_kv else None


def offsets(lengths: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=dtype, device=device)


def dense(rows: Tensor, lengths: Sequence[int], shared: bool) -> Tensor:
    """Returns (batch, longest, heads, head_dim) with zeros after each sequence. The batch of shared rows is 1."""
    if shared:
        return rows.unsqueeze(0)
    if len(set(lengths)) == 1:
        return rows.unflatten(0, (len(lengths), lengths[0]))
    return torch.nn.utils.rnn.pad_sequence(list(rows.split(list(lengths))), batch_first=True)
