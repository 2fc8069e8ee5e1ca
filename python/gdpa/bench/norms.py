"""Times attention between two norms: fused by gdpa, and as a sequence of PyTorch's norms and gdpa's attention."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import gdpa
from gdpa.bench.agreement import AGREEMENT, checked_difference
from gdpa.bench.cases import Case, generate_lengths
from gdpa.bench.counts import SIZES
from gdpa.bench.device import Device, Work
from gdpa.bench.measure import BatchTimer, Effort, Plan, Progress, Result, row_of
from gdpa.bench.plot import Bar, Group, Panel
from gdpa.bench.report import Figure, Report, Row, Table, grouped, heading, number
from gdpa.bench.systems.base import offsets
from gdpa.bench.systems.padded import compiled
from gdpa.nn.functional import layer_norm, normed_attention, rms_norm

HELP = "LayerNorm, attention, RMSNorm and residual, fused and with PyTorch's norms, with their goal"
FUSED, UNFUSED = "gdpa, fused", "PyTorch's norms"
COMPILED = ", compiled"  # the end of the name of a form under torch.compile
WHOLE, NORMS, ATTENTION = "norms and attention", "norms", "attention"
GOAL = 1.25


@dataclass(frozen=True, kw_only=True)
class FormRow(Row):
    """The time of forward and backward of one form. The direction is the part."""

    B: int
    H: int
    d: int
    q: int
    kv: int
    tokens: int
    ms: float
    times_fused: float | None
    passes: int | None
    tb_per_second: float | None
    difference: float | None


COLUMNS: dict[str, Callable[[FormRow], str]] = {
    "part": lambda row: row.direction,
    "form": lambda row: row.system,
    "ms": lambda row: f"{row.ms:.3f}",
    "times fused": lambda row: number(row.times_fused, ".2f"),
    "passes": lambda row: str(row.passes or ""),
    "TB/s": lambda row: number(row.tb_per_second, ".2f"),
    "difference": lambda row: number(row.difference, ".1e"),
}


class NormsReport(Report):
    row_type = FormRow
    caption = "milliseconds of forward and backward of every form"

    @property
    def figures(self) -> list[Figure]:
        """The time of the unfused sequence under torch.compile, divided by the time of the fused form."""
        what = "LayerNorm, GDPA, RMSNorm and residual, fused against unfused under torch.compile"
        times = {row.system: row.ms for row in self.rows if row.direction == WHOLE}
        ours, theirs = times.get(FUSED), times.get(UNFUSED + COMPILED)
        if ours is None or theirs is None:
            return [Figure(what, None, GOAL, "both forms must run, on a GPU")]
        return [Figure(what, theirs / ours, GOAL, "times the speed")]

    def tables(self) -> list[Table]:
        row = self.rows[0]
        what = f"Forward and backward of {row.shape}, {row.H} heads of {row.d}, {row.dtype}, {row.activation}"
        return [Table.of(what, COLUMNS, self.rows, texts=2)]

    def panels(self) -> list[Panel]:
        def group(part: str, rows: list[FormRow]) -> Group:
            return Group(part, {row.system: Bar(row.ms, COLUMNS["times fused"](row)) for row in rows})

        return [Panel("ms, forward and backward", [group(*one) for one in grouped(self.rows, COLUMNS["part"]).items()])]


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
        generator = torch.Generator(device).manual_seed(0)
        width = case.heads * case.head_dim
        rows, keys = (case.rows_q, width), (len(case.lengths_k), case.lengths_k[0], case.heads, case.head_dim)
        sizes = (rows, keys, keys, rows, rows, (width,), (width,), (width,))
        numbers = (torch.randn(size, generator=generator, device=device) for size in sizes)
        return cls(*(one.to(getattr(torch, case.dtype)).requires_grad_() for one in numbers))


Outputs = tuple[Tensor, ...]


class Computation:
    """The forms on one case. Each function returns the outputs whose gradients a training step has."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.width = (case.heads * case.head_dim,)
        self.heads = (case.heads, case.head_dim)
        self.options: dict[str, Any] = {"activation": case.activation, "out_scale": "1/len_k"}
        self.cu_seqlens = offsets(case.lengths_q, device)

    def attention(self, inputs: Inputs, add_query: bool) -> Outputs:
        rows = inputs.query.unflatten(-1, self.heads)
        output = gdpa.varlen_attention(
            rows, inputs.key, inputs.value, self.cu_seqlens, None, add_query=add_query, **self.options
        )
        return (output.flatten(1),)

    def fused(self, inputs: Inputs) -> Outputs:
        output = normed_attention(
            inputs.query, inputs.key, inputs.value, self.cu_seqlens, None, query_norm=(inputs.weight, inputs.bias),
            output_norm=inputs.output_weight, residual=inputs.residual, **self.options,
        )  # fmt: skip
        return (output,)

    def unfused(self, inputs: Inputs) -> Outputs:
        return self.around(inputs, lambda normed: self.attention(inputs._replace(query=normed), add_query=False)[0])[:1]

    def around(self, inputs: Inputs, attend: Callable[[Tensor], Tensor]) -> Outputs:
        """Returns PyTorch's norms around an attention, and the normalised query."""
        normed = F.layer_norm(inputs.query, self.width, inputs.weight, inputs.bias, 1e-5)
        return inputs.residual + F.rms_norm(attend(normed) + normed, self.width, inputs.output_weight, 1e-5), normed

    def fused_norms(self, inputs: Inputs) -> Outputs:
        output = rms_norm(inputs.attended, inputs.output_weight, residual=inputs.residual)
        return output, layer_norm(inputs.query, inputs.weight, inputs.bias)

    def unfused_norms(self, inputs: Inputs) -> Outputs:
        return self.around(inputs, lambda normed: inputs.attended)


@dataclass(frozen=True)
class Form:
    """A timed computation. `passes` is the number of tensors of T rows that its kernels read and write.

    docs/kernels/fused-norms.md counts the passes. None means that they are not counted.
    """

    part: str
    name: str
    compute: Callable[[Inputs], Outputs]
    passes: int | None

    @property
    def is_compiled(self) -> bool:
        return self.name.endswith(COMPILED)


def forms_of(case: Case, device: torch.device, compile: bool) -> list[Form]:
    """Returns the forms of all parts. With `compile`, the forms with norms run eagerly and under torch.compile."""
    computation = Computation(case, device)
    forms = [
        Form(WHOLE, FUSED, computation.fused, 16),
        Form(WHOLE, UNFUSED, computation.unfused, None),
        Form(WHOLE, FUSED + COMPILED, computation.fused, 16),
        Form(WHOLE, UNFUSED + COMPILED, computation.unfused, 19),
        Form(NORMS, FUSED, computation.fused_norms, 11),
        Form(NORMS, UNFUSED, computation.unfused_norms, None),
        Form(NORMS, UNFUSED + COMPILED, computation.unfused_norms, 14),
        Form(ATTENTION, FUSED, partial(computation.attention, add_query=True), 5),
        Form(ATTENTION, UNFUSED, partial(computation.attention, add_query=False), 5),
    ]
    return [form for form in forms if compile or not form.is_compiled]


def measure_norms(case: Case, forms: Sequence[Form], effort: Effort, device: Device, progress: Progress) -> Result:
    """Returns a row for every form, and a reason for each that failed.

    Raises Disagreement if two whole forms have different results.
    """
    timer = BatchTimer(case, device, Result())
    inputs = Inputs.random(case, device.torch_device)
    grad_outputs = [torch.randn_like(inputs.query) for _ in range(2)]
    reference: dict[str, Tensor] = {}  # the results of gdpa's whole form
    differences: dict[str, float] = {}  # of the whole forms

    def step(compute: Callable[..., Outputs], _: None = None) -> tuple[Outputs, tuple[Tensor | None, ...]]:
        """Runs forward and backward. Returns the outputs and the gradients of all inputs."""
        outputs = compute(inputs)
        return outputs, torch.autograd.grad(outputs, inputs, grad_outputs[: len(outputs)], allow_unused=True)

    for form in forms:
        progress(0.0, f"{form.name}, {form.part}, first call")
        figure = (form.name, form.part)
        compute: Callable[..., Any] = form.compute
        if form.is_compiled:
            compute = compiled(form.compute, dynamic=False, fullgraph=True)
        with timer.first_call(form.name, figure):
            outputs, gradients = step(compute)
            if form.part == WHOLE:
                named = zip(Inputs._fields, gradients, strict=True)
                results = {f"gradient of {name}": one for name, one in named if one is not None}
                results["output"] = outputs[0].detach()
                reference = reference or results
                differences[form.name] = checked_difference(
                    str(case.name), form.name, results, reference, AGREEMENT[case.dtype]
                )
            timer.work[figure] = Work(partial(step, compute))
    reference = {}
    seconds, _ = timer.rounds(effort, progress)

    def row(form: Form, taken: float) -> FormRow:
        fused = seconds.get((FUSED, form.part))
        moved = inputs.query.numel() * SIZES[case.dtype] * form.passes if form.passes else None
        is_compared = form.part == WHOLE and form.name != FUSED
        return FormRow(
            **row_of(form.name, gdpa.__version__, form.part, device.describe(), case),
            B=len(case.lengths_q),
            H=case.heads,
            d=case.head_dim,
            q=max(case.lengths_q),
            kv=max(case.lengths_k),
            tokens=case.rows_q,
            ms=taken * 1e3,
            times_fused=taken / fused if fused else None,
            passes=form.passes,
            tb_per_second=moved / taken * 1e-12 if moved else None,
            difference=differences[form.name] if is_compared else None,
        )

    timed = ((form, seconds.get((form.name, form.part))) for form in forms)
    timer.result.rows = [row(form, taken) for form, taken in timed if taken is not None]
    device.release()
    return timer.result


REPORT = NormsReport


def plan(options: argparse.Namespace, device: Device, effort: Effort) -> Plan:
    kind = device.torch_device.type
    case = case_on(kind, options.scale_batch)
    forms = forms_of(case, device.torch_device, compile=kind == "cuda")
    report = NormsReport(*heading(options.command, device.describe(), effort.seconds, effort.rounds))
    figures = len(forms) + (device.product(case.dtype) is not None)
    return Plan(report, [partial(measure_norms, case, forms, effort, device)], figures)
