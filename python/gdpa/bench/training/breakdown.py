"""The parts of a training step on a GPU, from a profile: attention, projections, norms, optimiser, rest, and gaps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

STEPS = 3  # profiled steps
ATTENTION, NORMS, PROJECTIONS, OPTIMISER, REST, GAPS = (
    "attention", "norms", "projections", "optimiser", "elementwise and copies", "launch gaps",
)  # fmt: skip
PARTS = (ATTENTION, PROJECTIONS, NORMS, OPTIMISER, REST, GAPS)
# The part of a kernel is the first whose pattern is in its name. A kernel of torch.compile names its operations.
PATTERNS = (
    (ATTENTION, re.compile(r"^gdpa_kernel|flash|flex_attention|hstu|softmax")),
    (OPTIMISER, re.compile(r"multi_tensor_apply|adam", re.IGNORECASE)),
    (NORMS, re.compile(r"layer_?norm|rms_?norm|GammaBeta", re.IGNORECASE)),
    (PROJECTIONS, re.compile(r"gemm|gemv|nvjet|cutlass|cublas|splitk|triton_tem|_mm_", re.IGNORECASE)),
)
OPERATORS_OF_NORMS = "gdpa::norm"  # gdpa's kernels have one name, so that the operator tells norms from attention


def part_of(kernel: str) -> str:
    return next((part for part, pattern in PATTERNS if pattern.search(kernel)), REST)


def breakdown(step: Callable[[], object]) -> dict[str, float]:
    """Returns the milliseconds of each part of a step. Their sum is the time from its first kernel to its last.

    Raises RuntimeError if the profiler saw no kernel.
    """
    from torch.profiler import ProfilerActivity, profile

    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    return summed(profiler.events(), STEPS)


def summed(events: Iterable[Any], steps: int) -> dict[str, float]:
    """Returns the milliseconds of each part in a step, from the events of a profile of so many steps."""
    milliseconds = dict.fromkeys(PARTS, 0.0)
    kernels: list[tuple[float, float]] = []
    norms = 0.0
    for event in events:
        if event.device_type.name == "CUDA":
            if not event.is_user_annotation:
                kernels.append((event.time_range.start, event.time_range.end))
                milliseconds[part_of(event.name)] += event.time_range.elapsed_us() * 1e-3
        elif event.name.startswith(OPERATORS_OF_NORMS):
            norms += sum(kernel.duration for kernel in event.kernels) * 1e-3
    if not kernels:
        raise RuntimeError("the profiler of PyTorch saw no kernel on this device")
    milliseconds[ATTENTION] -= norms
    milliseconds[NORMS] += norms
    milliseconds[GAPS] = idle(kernels) * 1e-3
    return {part: total / steps for part, total in milliseconds.items()}


def idle(kernels: list[tuple[float, float]]) -> float:
    """Returns the time between the first begin and the last end in which no kernel runs."""
    kernels = sorted(kernels)
    total, end = 0.0, kernels[0][1]
    for begin, until in kernels[1:]:
        total += max(0.0, begin - end)
        end = max(end, until)
    return total
