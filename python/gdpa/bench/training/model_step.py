"""Times training steps of models: the same modules with the attention of several systems, which alternate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from gdpa.bench.agreement import AGREEMENT, Disagreement, checked_difference
from gdpa.bench.device import Device
from gdpa.bench.goals import OURS
from gdpa.bench.measure import BatchTimer, Effort, Progress, Result, row_of
from gdpa.bench.report import Refused, Row, reason_of
from gdpa.bench.systems import Gdpa, Padded, System
from gdpa.bench.systems.packages import Package
from gdpa.bench.training.attentions import Call, attends, refusal_of_model, use
from gdpa.bench.training.breakdown import breakdown
from gdpa.bench.training.models import ModelShape, build, inputs_of
from gdpa.bench.training.trainer import Trainer

# The padded computation keeps and computes so many tensors of scores for each attention of a sequence to itself.
SCORES_OF_A_CALL, SCORES_AT_ONCE = 2, 3
PART_OF_MEMORY = 0.6  # for scores


@dataclass(frozen=True, kw_only=True)
class TrainingRow(Row):
    """A training step of a model on one system. The direction is the step of the model."""

    model: str
    layers: int
    compiled: bool
    B: int
    H: int
    d: int
    max_length: int
    tokens: int
    ms: float
    tokens_per_second: float
    gdpa_speedup: float | None
    tflops: float | None
    cublas_tflops: float | None
    peak_bytes: int | None
    difference: float | None
    host_waits: bool | None
    parts: dict[str, float] | None

    @property
    def bytes_of_a_token(self) -> float | None:
        return None if self.peak_bytes is None else self.peak_bytes / self.tokens


@dataclass
class Entrant:
    """A prepared model with the attention of a system."""

    system: System
    shape: ModelShape
    trainer: Trainer
    measured: dict[str, Any]  # fields of its row that are known before the timing


def trainer_of(system: System, shape: ModelShape, device: torch.device, compile: bool = False) -> Trainer:
    """Returns the model with the attention of the system, and its inputs. Kernels of other packages end a graph."""
    model = use(system, build(shape, device), shape, device)
    return Trainer(model, inputs_of(shape, shape.lengths, device), compile, not isinstance(system, Package))


@cache
def flops_of_step(shape: ModelShape, device: torch.device) -> int:
    """Returns the FLOP of forward and backward without padding, which count for every system."""
    with FlopCounterMode(display=False) as counter:
        trainer_of(Gdpa(), shape, device).gradients()
    return int(counter.get_total_flops())


def shape_that_fits(shape: ModelShape, attentions: int, memory: float) -> ModelShape:
    """Returns the shape with the batch halved until the scores of the padded computation fit into the memory.

    Args:
        attentions: the number of attentions of sequences to themselves.
        memory: bytes.
    """
    longest, size = max(shape.lengths_of_attention), getattr(torch, shape.dtype).itemsize
    tensors = SCORES_OF_A_CALL * attentions + SCORES_AT_ONCE
    while shape.batch > 1 and tensors * shape.batch * shape.heads * longest**2 * size > PART_OF_MEMORY * memory:
        shape = replace(shape, batch=shape.batch // 2)
    return shape


class ModelTraining(BatchTimer):
    """The prepared models of one shape."""

    def __init__(self, shape: ModelShape, compile: bool, limit: float, device: Device, result: Result) -> None:
        self.shape = shape
        self.model = build(replace(shape, batch=1), torch.device("cpu"))  # read for the calls of attention only
        super().__init__(Call.of(attends(self.model)[0], shape).case, device, result)
        self.direction = f"step of {shape.model}"
        self.compile = compile
        self.end = time.monotonic() + limit if limit else float("inf")
        self.entrants: dict[str, Entrant] = {}

    def enter(self, system: System) -> None:
        """Runs a model once. If torch.compile fails, the compiled model is refused and the model runs eagerly."""
        reason = refusal_of_model(system, self.model, self.shape)
        if time.monotonic() > self.end and not isinstance(system, Gdpa):
            reason = reason or "no time left for this shape; --limit changes the limit, --systems selects systems"
        if reason is not None:
            self.result.refusals.append(Refused(system.name, self.direction, reason, self.shape.name))
            return
        begin = time.perf_counter()
        for compile in (True, False) if self.compile else (False,):
            try:
                self.entrants[system.name] = entrant = self.prepared(system, compile)
            except Exception as error:
                # The variables of the failed call hold its memory until the traceback is gone.
                name = f"{system.name}, compiled" if compile else system.name
                self.result.refusals.append(Refused(name, self.direction, reason_of(error), self.shape.name))
                is_final = isinstance(error, Disagreement | torch.OutOfMemoryError)
            else:
                self.work[system.name, self.direction] = entrant.trainer.work
                self.result.first_calls[system.name] += time.perf_counter() - begin
                return
            self.device.release()
            if is_final:
                return

    def prepared(self, system: System, compile: bool) -> Entrant:
        """Returns the model after its results, its memory and its waiting have been checked."""
        device, shape = self.device.torch_device, self.shape
        if type(system) is Padded and device.type == "cuda":
            attentions = sum(Call.of(module, shape).is_self for module in attends(self.model))
            shape = shape_that_fits(shape, attentions, torch.cuda.get_device_properties(device).total_memory)
        trainer = trainer_of(system, shape, device, compile)
        measured: dict[str, Any] = dict.fromkeys(("peak_bytes", "difference", "host_waits", "parts"))
        measured["compiled"] = compile
        results = trainer.results()
        if system.function != "softmax" and (compile or not isinstance(system, Gdpa)):
            reference = trainer_of(Gdpa(), shape, device).results()
            # Each layer adds its roundings.
            bound = AGREEMENT[shape.dtype] * shape.layers
            measured["difference"] = checked_difference(shape.name, system.name, results, reference, bound)
            del reference
        del results
        if device.type == "cuda":
            measured |= {"peak_bytes": trainer.peak_bytes(), "host_waits": trainer.host_waits()}
        return Entrant(system, shape, trainer, measured)

    def measure_parts(self) -> None:
        """Profiles gdpa's step on a GPU."""
        if OURS in self.entrants and self.device.torch_device.type == "cuda":
            try:
                self.entrants[OURS].measured["parts"] = breakdown(self.entrants[OURS].trainer.step)
            except Exception as error:
                self.refuse((OURS, f"parts of the {self.direction}"), error)

    def rows(self, figures: dict[tuple[str, str], float], product_times: list[float]) -> list[TrainingRow]:
        device, product = self.device, self.device.product(self.shape.dtype)
        cublas_tflops = product.flops / median(product_times) * 1e-12 if product else None
        seconds = {name: taken for (name, _), taken in figures.items()}
        rates = {name: sum(self.entrants[name].shape.lengths) / taken for name, taken in seconds.items()}

        def row(name: str, rate: float) -> TrainingRow:
            system, shape = self.entrants[name].system, self.entrants[name].shape
            timed = replace(self.case, name=self.shape.name, activation=system.function or shape.activation)
            return TrainingRow(
                **row_of(name, system.version(), self.direction, device.describe(), timed),
                **self.entrants[name].measured,
                model=shape.model,
                layers=shape.layers,
                B=shape.batch,
                H=shape.heads,
                d=shape.head_dim,
                max_length=shape.max_length,
                tokens=sum(shape.lengths),
                ms=seconds[name] * 1e3,
                tokens_per_second=rate,
                gdpa_speedup=rates[OURS] / rate if OURS in rates else None,
                tflops=flops_of_step(shape, device.torch_device) / seconds[name] * 1e-12,
                cublas_tflops=cublas_tflops,
            )

        return [row(name, rate) for name, rate in rates.items()]


def measure_model(
    shape: ModelShape, systems: Sequence[System], compile: bool, limit: float, effort: Effort, device: Device,
    progress: Progress,
) -> Result:  # fmt: skip
    """Returns a row for every system that can train this model, and a reason for each that cannot.

    Args:
        limit: seconds after which no further system begins; 0 has no limit.
    """
    result = Result()
    training = ModelTraining(shape, compile, limit, device, result)
    for system in systems:
        progress(0.0, f"{system.name}, first step")
        training.enter(system)
    times = training.rounds(effort, progress)
    training.measure_parts()
    result.rows = training.rows(*times)
    device.release()
    return result
