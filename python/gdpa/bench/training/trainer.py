"""A module with its inputs and its optimiser: its training step, its results, and what is measured beside the time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from gdpa.bench.device import Work, memory_beyond
from gdpa.bench.systems.padded import compiled

LEARNING_RATE = 1e-5  # small, so that the weights stay near the compared weights during thousands of steps


class Trainer:
    """Runs training steps of a module with AdamW. The gradients of the outputs are N(0, 1) numbers, always the same.

    Args:
        module: maps the inputs to a tensor or to a tuple of tensors.
        inputs: tensors. Those that require gradients get them in every step.
        compile: whether torch.compile compiles the module for these shapes.
        fullgraph: whether the compiled module has to be one graph.
    """

    def __init__(
        self, module: nn.Module, inputs: Sequence[Tensor], compile: bool = False, fullgraph: bool = True
    ) -> None:
        self.module = module
        self.inputs = inputs
        self.grad_outputs: list[Tensor] = []
        self.optimiser = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, fused=True)
        self.forward = compiled(module, dynamic=False, fullgraph=fullgraph) if compile else module
        self.work = Work(lambda _: self.step())

    def gradients(self) -> list[Tensor]:
        """Runs forward and backward, which set the gradients of weights and inputs. Returns the outputs."""
        self.forget()
        outputs = self.forward(*self.inputs)
        outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
        if not self.grad_outputs:
            generator = torch.Generator(outputs[0].device).manual_seed(1)
            normal = partial(torch.randn, generator=generator, dtype=outputs[0].dtype, device=outputs[0].device)
            self.grad_outputs = [normal(output.shape) for output in outputs]
        torch.autograd.backward(outputs, self.grad_outputs)
        return [output.detach() for output in outputs]

    def step(self) -> list[Tensor]:
        """Runs a training step, after which no gradient takes memory. It has no results."""
        self.gradients()
        self.optimiser.step()
        self.forget()
        return []

    def forget(self) -> None:
        for tensor in self.inputs:
            tensor.grad = None
        self.optimiser.zero_grad()

    def results(self) -> dict[str, Tensor]:
        """Returns the outputs, and the gradients of inputs and weights. Raises ValueError for NaN or infinities.

        The weights are one tensor: some of their gradients are small sums of large terms, which roundings dominate.
        """
        tensors = {f"output {i}": output for i, output in enumerate(self.gradients())}
        named = zip(("features", "rows"), self.inputs, strict=False)
        tensors |= {f"gradient of the {name}": one.grad for name, one in named if one.grad is not None}
        gradients = [weight.grad.flatten() for weight in self.module.parameters() if weight.grad is not None]
        tensors["gradient of the weights"] = torch.cat(gradients)
        self.forget()
        for name, tensor in tensors.items():
            if not tensor.isfinite().all():
                raise ValueError(f"{name}: expected finite numbers, got NaN or infinities")
        return tensors

    def peak_bytes(self) -> int:
        """Returns the peak bytes of a step on a GPU without weights, optimiser and batch."""
        self.step()  # the first step creates the state of the optimiser
        return memory_beyond(self.step)

    def host_waits(self) -> bool:
        """Returns whether PyTorch waits for the GPU in a step."""
        torch.cuda.set_sync_debug_mode("error")
        try:
            self.step()
            return False
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            return True
        finally:
            torch.cuda.set_sync_debug_mode("default")
