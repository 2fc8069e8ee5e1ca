"""The measurements of the demonstration: errors of gdpa and PyTorch against fp64, and times of both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

from gdpa.demo.expression import Elementwise
from gdpa.demo.histories import Embedding, Histories
from gdpa.demo.uses import Case, Forward, Padded, Use, packed, reference, with_gdpa

RESULTS = ("O", "dQ", "dK", "dV")
BACKWARD_FLOPS = 2.5  # backward has five products, forward has two


@dataclass
class Times:
    """Seconds."""

    forward: float = 0.0
    backward: float = 0.0

    def add(self, other: Times) -> None:
        self.forward += other.forward
        self.backward += other.backward

    @property
    def both(self) -> float:
        return self.forward + self.backward


@dataclass
class Squares:
    """Sums of squared 2-norms over batches, of the reference and of the difference from it."""

    reference: float = 0.0
    gdpa: float = 0.0
    pytorch: float = 0.0


@dataclass
class Measurement:
    """The results of one use with one function. gdpa computes all batches, and PyTorch computes the samples."""

    use: Use
    activation: str
    flops: float = 0.0  # all batches, forward
    times: Times = field(default_factory=Times)  # of all batches
    sampled_times: Times = field(default_factory=Times)  # the sampled batches, also for the next two fields
    padded_times: Times = field(default_factory=Times)
    packed_times: Times = field(default_factory=Times)  # zeros if PyTorch needs padding
    squares: dict[str, Squares] = field(default_factory=lambda: {name: Squares() for name in RESULTS})

    @property
    def label(self) -> str:
        """The short name of the function in a table: its name, or "own" for an expression."""
        return self.activation if self.activation.isidentifier() else "own"

    def rates(self) -> tuple[float, float]:
        """The GFLOP/s of gdpa, forward and backward, over the scores that the mask selects."""
        return (
            self.flops / self.times.forward / 1e9,
            self.flops * BACKWARD_FLOPS / self.times.backward / 1e9,
        )

    def speed_up(self) -> float:
        """The speed-up of forward and backward together over the padded computation of the same batches."""
        return self.padded_times.both / self.sampled_times.both

    def speed_up_over_packed(self) -> float | None:
        """The speed-up over PyTorch without padding, for the use that PyTorch can compute in this way."""
        return self.packed_times.both / self.sampled_times.both if self.packed_times.both else None

    def errors(self, name: str) -> tuple[float, float]:
        """Returns the relative 2-norms of the errors of gdpa and of PyTorch, in O, dQ, dK or dV."""
        sums = self.squares[name]
        return (sums.gdpa / sums.reference) ** 0.5, (sums.pytorch / sums.reference) ** 0.5


def now(device: torch.device) -> float:
    """Waits for the device and returns the wall-clock time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def run(forward: Forward, inputs: tuple[Tensor, ...], grad_output: Tensor) -> tuple[Times, tuple[Tensor, ...]]:
    """The attention part of a training step: its times, and O, dQ, dK, dV."""
    query, key, value = (tensor.detach().requires_grad_() for tensor in inputs)
    begin = now(query.device)
    output = forward(query, key, value)
    middle = now(query.device)
    gradients = torch.autograd.grad(output, (query, key, value), grad_output)
    end = now(query.device)
    return Times(middle - begin, end - middle), (output.detach(), *gradients)


def sampled(batches: int, wanted: int) -> set[int]:
    """Returns the indices of `wanted` batches, spread evenly."""
    wanted = min(wanted, batches)
    return {(2 * i + 1) * batches // (2 * wanted) for i in range(wanted)}


def compare(case: Case, activation: str, function: Elementwise, rounds: int, into: Measurement) -> None:
    """Adds the times and errors of gdpa and PyTorch for one batch to the measurement."""
    forward = with_gdpa(case, activation)
    padded = Padded(case, function)
    without_padding = packed(case, function)
    steps = [
        (into.sampled_times, forward, case.inputs, case.grad_output),
        (into.padded_times, padded.forward, padded.inputs, padded.grad_output),
    ]
    if without_padding:
        steps.append((into.packed_times, without_padding, case.inputs, case.grad_output))
    # The systems alternate, so that a temporary load of the machine affects all of them.
    taken = []
    for _ in range(rounds):
        latest = [run(compute, inputs, gradient) for _, compute, inputs, gradient in steps]
        taken.append([times for times, _ in latest])
    for (total, *_), column in zip(steps, zip(*taken, strict=True), strict=True):
        total.add(Times(median(t.forward for t in column), median(t.backward for t in column)))

    exact = run(reference(case, function), tuple(t.double() for t in case.inputs), case.grad_output.double())[1]
    from_gdpa, from_pytorch = latest[0][1], latest[1][1]
    for name, want, got, padded_result in zip(RESULTS, exact, from_gdpa, from_pytorch, strict=True):
        sums = into.squares[name]
        sums.reference += float(want.square().sum())
        sums.gdpa += float((got.double() - want).square().sum())
        sums.pytorch += float((padded.packed(padded_result).double() - want).square().sum())


def measure(
    into: Measurement,
    function: Elementwise,
    batches: list[Histories],
    embedding: Embedding,
    samples: int,
    rounds: int,
) -> Iterator[None]:
    """Runs every batch and adds it to the measurement. Yields after each batch, for the progress display."""
    use, activation = into.use, into.activation
    chosen = sampled(len(batches), samples)
    for index, batch in enumerate(batches):
        case = Case.make(use, batch, embedding)
        if index == 0:  # the first call parses the function and generates the products for this head_dim
            run(with_gdpa(case, activation), case.inputs, case.grad_output)
        taken, _ = run(with_gdpa(case, activation), case.inputs, case.grad_output)
        into.times.add(taken)
        into.flops += case.flops()
        if index in chosen:
            compare(case, activation, function, rounds, into)
        yield
