"""Times training steps. Blocks with the same weights alternate, after their results have been compared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor

from gdpa.bench import command
from gdpa.bench.agreement import checked_difference
from gdpa.bench.device import Device, Work
from gdpa.bench.measure import BatchTimer, Effort, Progress, Result, Times
from gdpa.bench.rows import Refused
from gdpa.bench.systems.padded import compiled
from gdpa.bench.training.batch import Batch, Shape
from gdpa.bench.training.block import Block
from gdpa.bench.training.contenders import Contender, OnPadded, WithGdpa
from gdpa.bench.training.report import OURS, STEP, Step

LEARNING_RATE = 1e-5  # small, so that the weights stay near the compared weights during thousands of steps


class Trainer:
    """A block with its batch and its optimiser, AdamW."""

    def __init__(self, contender: Contender, batch: Batch, compile: bool) -> None:
        self.contender = contender
        self.batch = batch
        self.block = Block(batch.shape, batch.rows.device, contender.attention(batch), contender.feed_forward(batch))
        self.rows = contender.arrange(batch, batch.rows).detach().requires_grad_()
        self.grad_output = contender.arrange(batch, batch.grad_output)
        self.optimiser = torch.optim.AdamW(self.block.parameters(), lr=LEARNING_RATE, fused=True)
        # All blocks are compiled in the same way: one graph for fixed shapes, or an error with the reason.
        self.forward = compiled(self.block, dynamic=False, fullgraph=True) if compile else self.block
        self.is_compiled = compile
        self.peak_bytes: int | None = None

    def gradients(self) -> Tensor:
        """Runs forward and backward, which set the gradients of the weights and of the rows. Returns the output."""
        self.forget()
        output: Tensor = self.forward(self.rows)
        output.backward(self.grad_output)
        return output.detach()

    def step(self) -> None:
        self.gradients()
        self.optimiser.step()

    @property
    def work(self) -> Work:
        return Work(lambda _: self.step())

    def measure_peak(self) -> None:
        """Returns the peak bytes of a step on a GPU without weights, optimiser and batch."""
        from gdpa.bench.figures_gpu import memory_beyond

        def step() -> list[Tensor]:
            self.step()
            self.forget()
            return []

        step()  # the first step creates the state of the optimiser
        self.peak_bytes = memory_beyond(step)

    def forget(self) -> None:
        self.rows.grad = None
        self.optimiser.zero_grad()

    def results(self) -> dict[str, Tensor]:
        """Returns the output and the gradients by name, without padding. Raises ValueError for NaN or infinities."""
        output = self.gradients()
        assert self.rows.grad is not None
        tensors = {"output": output, "gradient of the rows": self.rows.grad}
        tensors = {name: self.contender.packed(self.batch, rows) for name, rows in tensors.items()}
        for name, weight in self.block.named_parameters():
            assert weight.grad is not None
            tensors[f"gradient of {name}"] = weight.grad
        for name, tensor in tensors.items():
            if not tensor.isfinite().all():
                raise ValueError(f"{name}: expected finite numbers, got NaN or infinities")
        return tensors


class Training(BatchTimer):
    """The prepared blocks of one shape."""

    def __init__(self, shape: Shape, compile: bool, device: Device, result: Result) -> None:
        super().__init__(shape.attention, device, result)
        self.shape = shape
        self.compile = compile
        self.batch = Batch.random(shape, device.torch_device)
        self.trainers: dict[str, Trainer] = {}
        self.ours: dict[str, Tensor] | None = None  # gdpa's results
        self.difference: float | None = None  # the largest relative difference of the padded computation from them

    def enter(self, contender: Contender) -> None:
        """Runs a block once. If torch.compile fails, the compiled block is refused and the block runs eagerly.

        Raises Disagreement if the padded block has other results than gdpa.
        """
        reason = contender.system.refusal(self.case)
        if reason is not None:
            self.result.refusals.append(Refused(contender.name, STEP, reason, self.shape.name))
            return
        begin = time.perf_counter()
        for compile in (True, False) if self.compile else (False,):
            try:
                trainer = Trainer(contender, self.batch, compile)
                results = trainer.results()
                if self.device.torch_device.type == "cuda":
                    trainer.measure_peak()
            except Exception as error:
                self.refuse((f"{contender.name}, compiled" if compile else contender.name, STEP), error)
            else:
                self.compare(contender, results)
                self.trainers[contender.name] = trainer
                self.work[contender.name, STEP] = trainer.work
                self.result.add_first_call(contender.name, time.perf_counter() - begin)
                return
            self.device.release()  # releases the memory of the failed block

    def compare(self, contender: Contender, results: dict[str, Tensor]) -> None:
        """Stores gdpa's results and compares the padded computation with them. Softmax computes another function."""
        if isinstance(contender, WithGdpa):
            self.ours = results
        elif isinstance(contender, OnPadded) and self.ours is not None:
            shape = self.shape
            self.difference = checked_difference(shape.name, contender.name, results, self.ours, shape.dtype)

    def steps(self, times: Times) -> list[Step]:
        product = self.device.product(self.shape.dtype)
        cublas_tflops = product.flops / median(times.product) * 1e-12 if product else None
        ours = times.figures.get((OURS, STEP))
        return [self.row(name, seconds, ours, cublas_tflops) for (name, _), seconds in times.figures.items()]

    def row(self, name: str, seconds: float, ours: float | None, cublas_tflops: float | None) -> Step:
        shape, trainer = self.shape, self.trainers[name]
        system = trainer.contender.system
        tokens = sum(shape.lengths)
        return Step(
            system=name,
            version=system.version(),
            commit=command.commit(),
            device=self.device.describe(),
            shape=shape.name,
            dtype=shape.dtype,
            activation=system.function or shape.activation,
            compiled=trainer.is_compiled,
            B=shape.batch,
            H=shape.heads,
            d=shape.head_dim,
            ffn_rows=shape.ffn_rows,
            max_length=shape.max_length,
            tokens=tokens,
            ms=seconds * 1e3,
            times_gdpa=seconds / ours if ours else None,
            tokens_per_second=tokens / seconds,
            tflops=shape.flops / seconds * 1e-12,
            cublas_tflops=cublas_tflops,
            peak_bytes=trainer.peak_bytes,
            difference=self.difference if isinstance(trainer.contender, OnPadded) else None,
        )


def measure_steps(
    shape: Shape, contenders: Sequence[Contender], compile: bool, effort: Effort, device: Device, progress: Progress
) -> tuple[list[Step], Result]:
    """Returns a row for every system that can train this shape, and a reason for each that cannot.

    Raises Disagreement if the padded block has other results than gdpa.
    """
    result = Result()
    training = Training(shape, compile, device, result)
    for contender in contenders:
        progress(0.0, f"{contender.name}, first call")
        training.enter(contender)
    steps = training.steps(training.rounds(effort, progress))
    device.release()
    return steps, result
