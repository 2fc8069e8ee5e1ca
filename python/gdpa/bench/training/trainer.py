"""A module with its inputs and its optimiser: its training step, the work that is timed, and its peak memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gdpa.bench import memory
from gdpa.bench.device import Work
from gdpa.bench.systems.padded import compiled

LEARNING_RATE = 1e-5  # small, so that the weights stay near the compared weights during thousands of steps


class Trainer:
    """Runs training steps of a module with AdamW. The gradients of the outputs are given.

    Args:
        module: maps the inputs to a tensor or to a tuple of tensors.
        inputs: tensors. Those that require gradients get them in every step.
        grad_outputs: the gradients of the outputs.
        compile: whether torch.compile compiles the module for these shapes.
        fullgraph: whether the compiled module has to be one graph.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Sequence[Tensor],
        grad_outputs: Sequence[Tensor],
        compile: bool,
        fullgraph: bool = True,
    ) -> None:
        self.module = module
        self.inputs = inputs
        self.grad_outputs = grad_outputs
        self.optimiser = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, fused=True)
        self.forward = compiled(module, dynamic=False, fullgraph=fullgraph) if compile else module
        self.is_compiled = compile
        self.peak_bytes: int | None = None

    def gradients(self) -> list[Tensor]:
        """Runs forward and backward, which set the gradients of weights and inputs. Returns the outputs."""
        self.forget()
        outputs = self.forward(*self.inputs)
        outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
        torch.autograd.backward(outputs, list(self.grad_outputs))
        return [output.detach() for output in outputs]

    def step(self) -> None:
        self.gradients()
        self.optimiser.step()

    @property
    def work(self) -> Work:
        return Work(lambda _: self.step())

    def measure_peak(self) -> None:
        """Measures the peak bytes of a step on a GPU without weights, optimiser and batch."""

        def step() -> list[Tensor]:
            self.step()
            self.forget()
            return []

        step()  # the first step creates the state of the optimiser
        self.peak_bytes = memory.memory_beyond(step)

    def forget(self) -> None:
        for tensor in self.inputs:
            tensor.grad = None
        self.optimiser.zero_grad()


def check_finite(tensors: dict[str, Tensor]) -> None:
    """Raises ValueError for NaN or infinities."""
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{name}: expected finite numbers, got NaN or infinities")
