"""Times attention between two norms: fused by gdpa, and as a sequence of PyTorch's norms and gdpa's attention."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import gdpa
from gdpa.bench import command
from gdpa.bench.agreement import checked_difference
from gdpa.bench.cases import SIZES, Case, generate_lengths
from gdpa.bench.device import Device, Work
from gdpa.bench.measure import BatchTimer, Effort, Progress, Result, Times
from gdpa.bench.norms_report import COMPILED, FUSED, UNFUSED, WHOLE, FormRow
from gdpa.bench.systems.base import Operands, offsets
from gdpa.bench.systems.padded import compiled
from gdpa.nn.functional import layer_norm, normed_attention, rms_norm

NORMS_PART, ATTENTION = "norms", "attention"  # the parts of the whole


def case_on(kind: str, batch_factor: float = 1.0) -> Case:
    """Returns the case of this kind of device. The CPU case is very small. It only shows that the command works."""
    batch, length, keys, heads, head_dim, dtype = (
        (768, 2048, 128, 4, 128, "bfloat16") if kind == "cuda" else (6, 32, 8, 2, 16, "float32")
    )
    batch = max(1, round(batch * batch_factor))
    lengths = tuple(max(1, one) for one in generate_lengths(batch, length, fill=0.5, seed=0))
    name = f"{batch} of 1-{length}, {keys} keys"
    return Case(lengths, (keys,) * batch, heads, head_dim, dtype, "gelu_tanh", name=name)


class Inputs(NamedTuple):
    """The operands of all forms. A form reads only some of them. T is the number of rows, D = heads * head_dim."""

    query: Tensor  # (T, D)
    key: Tensor  # (B, keys, heads, head_dim)
    value: Tensor  # the shape of key
    residual: Tensor  # (T, D)
    attended: Tensor  # (T, D): stands for the output of attention in the form that has only the norms
    weight: Tensor  # (D) of LayerNorm
    bias: Tensor  # (D)
    output_weight: Tensor  # (D) of RMSNorm

    @classmethod
    def random(cls, case: Case, device: torch.device) -> Inputs:
        operands, other = (Operands.random(case, device, seed) for seed in (0, 1))
        rows = operands.query, other.query, other.grad_output
        query, residual, attended = (one.flatten(1) for one in rows)
        key, value = (one.unflatten(0, (len(case.lengths_q), -1)) for one in (operands.key, operands.value))
        generator = torch.Generator(device).manual_seed(2)
        size = (3, case.heads * case.head_dim)
        weight, bias, output_weight = torch.randn(size, generator=generator, device=device).to(query.dtype).unbind()
        inputs = (query, key, value, residual, attended, weight, bias, output_weight)
        return cls(*(one.clone().requires_grad_() for one in inputs))


Outputs = tuple[Tensor, ...]


class Computation:
    """The forms on one case. Each function returns the outputs whose gradients a training step has."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.width = (case.heads * case.head_dim,)
        self.heads = (case.heads, case.head_dim)
        self.options: dict[str, Any] = {"activation": case.activation, "out_scale": "1/len_k"}
        self.cu_seqlens = offsets(case.lengths_q, device)

    def attend(self, rows: Tensor, key: Tensor, value: Tensor, add_query: bool) -> Tensor:
        rows = rows.unflatten(-1, self.heads)
        output = gdpa.varlen_attention(
            rows, key, value, self.cu_seqlens, None, add_query=add_query, **self.options
        )  # fmt: skip
        return output.flatten(1)

    def fused(self, query: Tensor, key: Tensor, value: Tensor, residual: Tensor, *rest: Tensor) -> Outputs:
        _, weight, bias, output_weight = rest
        output = normed_attention(
            query, key, value, self.cu_seqlens, None, query_norm=(weight, bias), output_norm=output_weight,
            residual=residual, **self.options,
        )  # fmt: skip
        return (output,)

    def unfused(self, query: Tensor, key: Tensor, value: Tensor, residual: Tensor, *rest: Tensor) -> Outputs:
        _, weight, bias, output_weight = rest
        normed = F.layer_norm(query, self.width, weight, bias, 1e-5)
        output = normed + self.attend(normed, key, value, add_query=False)
        return (residual + F.rms_norm(output, self.width, output_weight, 1e-5),)

    def fused_norms(self, query: Tensor, _key: Tensor, _value: Tensor, residual: Tensor, *rest: Tensor) -> Outputs:
        attended, weight, bias, output_weight = rest
        return rms_norm(attended, output_weight, residual=residual), layer_norm(query, weight, bias)

    def unfused_norms(self, query: Tensor, _key: Tensor, _value: Tensor, residual: Tensor, *rest: Tensor) -> Outputs:
        attended, weight, bias, output_weight = rest
        normed = F.layer_norm(query, self.width, weight, bias, 1e-5)
        return residual + F.rms_norm(attended + normed, self.width, output_weight, 1e-5), normed

    def fused_attention(self, query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> Outputs:
        return (self.attend(query, key, value, add_query=True),)

    def unfused_attention(self, query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> Outputs:
        return (self.attend(query, key, value, add_query=False),)


@dataclass(frozen=True)
class Form:
    """A timed computation. `passes` is the number of tensors of T rows that its kernels read and write.

    docs/kernels/fused-norms.md counts the passes. None means that they are not counted.
    """

    part: str
    name: str
    compute: Callable[..., Outputs]
    is_compiled: bool
    passes: int | None


def forms_of(case: Case, device: torch.device, compile: bool) -> list[Form]:
    """Returns the forms of all parts. With `compile`, the forms with norms run eagerly and under torch.compile."""
    computation = Computation(case, device)
    forms = [
        Form(WHOLE, FUSED, computation.fused, False, 16),
        Form(WHOLE, UNFUSED, computation.unfused, False, None),
        Form(NORMS_PART, FUSED, computation.fused_norms, False, 11),
        Form(NORMS_PART, UNFUSED, computation.unfused_norms, False, None),
        Form(ATTENTION, FUSED, computation.fused_attention, False, 5),
        Form(ATTENTION, UNFUSED, computation.unfused_attention, False, 5),
    ]
    counts = {(WHOLE, FUSED): 16, (WHOLE, UNFUSED): 19, (NORMS_PART, UNFUSED): 14}
    again = [
        replace(form, name=form.name + COMPILED, is_compiled=True, passes=counts[form.part, form.name])
        for form in forms
        if compile and (form.part, form.name) in counts
    ]
    return sorted([*forms, *again], key=lambda form: [WHOLE, NORMS_PART, ATTENTION].index(form.part))


class NormsTimer(BatchTimer):
    """The prepared forms of one case."""

    def __init__(self, case: Case, device: Device, result: Result) -> None:
        super().__init__(case, device, result)
        self.inputs = Inputs.random(case, device.torch_device)
        other = Operands.random(case, device.torch_device, seed=3)
        self.grad_outputs = (other.grad_output.flatten(1), other.query.flatten(1))
        self.forms: dict[tuple[str, str], Form] = {}
        self.fused: dict[str, Tensor] = {}  # the results of gdpa's whole form
        self.differences: dict[tuple[str, str], float] = {}

    def step(self, compute: Callable[..., Outputs], _: None = None) -> tuple[Outputs, tuple[Tensor | None, ...]]:
        """Runs forward and backward. Returns the outputs and the gradients of all inputs."""
        outputs = compute(*self.inputs)
        gradients = torch.autograd.grad(
            outputs, self.inputs, self.grad_outputs[: len(outputs)], allow_unused=True
        )  # fmt: skip
        return outputs, gradients

    def enter(self, form: Form) -> None:
        """Runs a form once. Raises Disagreement if the whole differs from gdpa's fused form."""
        begin = time.perf_counter()
        figure = (form.name, form.part)
        compute: Callable[..., Any] = form.compute
        if form.is_compiled:
            compute = compiled(form.compute, dynamic=False, fullgraph=True)
        try:
            outputs, gradients = self.step(compute)
        except Exception as error:
            self.refuse(figure, error)
            self.device.release()
            return
        if form.part == WHOLE:
            names = [f"gradient of {name}" for name in Inputs._fields]
            of_inputs = {name: one for name, one in zip(names, gradients, strict=True) if one is not None}
            results = {"output": outputs[0].detach(), **of_inputs}
            self.fused = self.fused or results
            self.differences[figure] = checked_difference(
                str(self.case.name), form.name, results, self.fused, self.case.dtype
            )
        self.forms[figure] = form
        self.work[figure] = Work(partial(self.step, compute))
        self.result.add_first_call(form.name, time.perf_counter() - begin)

    def rows(self, times: Times) -> list[FormRow]:
        ours = {part: seconds for (name, part), seconds in times.figures.items() if name == FUSED}
        return [self.row(self.forms[figure], seconds, ours) for figure, seconds in times.figures.items()]

    def row(self, form: Form, seconds: float, ours: dict[str, float]) -> FormRow:
        case = self.case
        moved = self.inputs.query.numel() * SIZES[case.dtype] * form.passes if form.passes else None
        return FormRow(
            system=form.name,
            version=gdpa.__version__,
            commit=command.commit(),
            direction=form.part,
            device=self.device.describe(),
            shape=str(case.name),
            dtype=case.dtype,
            activation=case.activation,
            B=len(case.lengths_q),
            H=case.heads,
            d=case.head_dim,
            q=max(case.lengths_q),
            kv=max(case.lengths_k),
            tokens=case.rows_q,
            ms=seconds * 1e3,
            times_fused=seconds / ours[form.part] if form.part in ours else None,
            passes=form.passes,
            tb_per_second=moved / seconds * 1e-12 if moved else None,
            difference=self.differences.get((form.name, form.part)) if form.name != FUSED else None,
        )


def measure_norms(
    case: Case, forms: Sequence[Form], effort: Effort, device: Device, progress: Progress
) -> tuple[list[FormRow], Result]:
    """Returns a row for every form, and a reason for each that failed.

    Raises Disagreement if two whole forms have different results.
    """
    result = Result()
    timer = NormsTimer(case, device, result)
    for form in forms:
        progress(0.0, f"{form.name}, {form.part}, first call")
        timer.enter(form)
    timer.fused = {}
    rows = timer.rows(timer.rounds(effort, progress))
    device.release()
    return rows, result
