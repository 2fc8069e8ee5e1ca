"""The measurements of the demonstration: errors of gdpa and PyTorch against fp64, and times of both."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

from gdpa.bench.counts import flops_of
from gdpa.bench.systems import Operands, Prepared
from gdpa.demo.histories import Embedding, Histories
from gdpa.demo.uses import Reference, Use, WithGdpa, WithoutPadding, WithPadding, without_padding

RESULTS = ("O", "dQ", "dK", "dV")


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
class Measurement:
    """The results of one use with one function. gdpa computes all batches, and PyTorch computes the samples."""

    use: Use
    activation: str
    forward_flops: float = 0.0  # of all batches, like the next two fields
    backward_flops: float = 0.0
    times: Times = field(default_factory=Times)
    sampled: dict[str, Times] = field(default_factory=lambda: defaultdict(Times))  # of each system on the samples
    #: The sums of squared 2-norms over the samples: of the reference, and of the differences of gdpa and of PyTorch.
    squares: dict[str, Tensor] = field(default_factory=lambda: {name: torch.zeros(3).double() for name in RESULTS})

    @property
    def label(self) -> str:
        """The short name of the function in a table: its name, or "own" for an expression."""
        return self.activation if self.activation.isidentifier() else "own"

    def rates(self) -> tuple[float, float]:
        """The GFLOP/s of gdpa, forward and backward, over the scores that the mask selects."""
        return self.forward_flops / self.times.forward / 1e9, self.backward_flops / self.times.backward / 1e9

    def speed_up(self, system: str) -> float | None:
        """The speed-up of forward and backward together over PyTorch, "padded" or "packed", on the same batches.

        None: PyTorch cannot compute the use without padding.
        """
        return self.sampled[system].both / self.sampled["gdpa"].both if system in self.sampled else None

    def errors(self, name: str) -> tuple[float, float]:
        """Returns the relative 2-norms of the errors of gdpa and of PyTorch, in O, dQ, dK or dV."""
        reference, ours, theirs = self.squares[name].tolist()
        return (ours / reference) ** 0.5, (theirs / reference) ** 0.5


def now(device: torch.device) -> float:
    """Waits for the device and returns the wall-clock time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def run(prepared: Prepared) -> tuple[Times, tuple[Tensor, ...]]:
    """The attention part of a training step: its times, and O, dQ, dK, dV."""
    device = prepared.inputs[0].device
    begin = now(device)
    outputs = prepared.forward()
    middle = now(device)
    gradients = prepared.backward(outputs)
    end = now(device)
    return Times(middle - begin, end - middle), (outputs[0].detach(), *gradients)


def sampled(batches: int, wanted: int) -> set[int]:
    """Returns the indices of `wanted` batches, spread evenly."""
    wanted = min(wanted, batches)
    return {(2 * i + 1) * batches // (2 * wanted) for i in range(wanted)}


def compare(operands: Operands, rounds: int, into: Measurement) -> None:
    """Adds the times and errors of gdpa and PyTorch for one batch to the measurement."""
    case = operands.case
    systems = [one for one in (WithGdpa(), WithPadding(), WithoutPadding()) if one.refusal(case) is None]
    prepared = [system.prepare(case, operands) for system in systems]
    # The systems alternate, so that a temporary load of the machine affects all of them.
    taken = [[run(one) for one in prepared] for _ in range(rounds)]
    for system, runs in zip(systems, zip(*taken, strict=True), strict=True):
        times = Times(median(one.forward for one, _ in runs), median(one.backward for one, _ in runs))
        into.sampled[system.name].add(times)
    (_, from_gdpa), (_, from_pytorch) = taken[-1][:2]
    _, exact = run(Reference().prepare(case, operands.changed(Tensor.double)))
    lengths = case.lengths_q, case.lengths_q, case.lengths_k, case.lengths_k
    for name, want, got, padded, of_rows in zip(RESULTS, exact, from_gdpa, from_pytorch, lengths, strict=True):
        differences = (got.double() - want, without_padding(padded, of_rows).double() - want)
        into.squares[name] += torch.stack([one.square().sum() for one in (want, *differences)]).cpu()


def measure(
    into: Measurement, batches: list[Histories], embedding: Embedding, samples: int, rounds: int
) -> Iterator[None]:
    """Runs every batch and adds it to the measurement. Yields after each batch, for the progress display."""
    chosen = sampled(len(batches), samples)
    for index, batch in enumerate(batches):
        operands = into.use.operands(batch, embedding, into.activation)
        prepared = WithGdpa().prepare(operands.case, operands)
        if index == 0:  # the first call parses the function and generates the products for this head_dim
            run(prepared)
        into.times.add(run(prepared)[0])
        into.forward_flops += flops_of(operands.case, "fwd")
        into.backward_flops += flops_of(operands.case, "bwd")
        if index in chosen:
            compare(operands, rounds, into)
        yield
