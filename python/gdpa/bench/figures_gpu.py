"""The figures of the GPU backend: cold start, host cost, shares of cuBLAS, and memory beyond inputs and outputs."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from statistics import median

import torch

from gdpa.bench.cases import DIRECTIONS, Case, cases_of_suite
from gdpa.bench.cold_start import ACTIVATION as NEW_ACTIVATION
from gdpa.bench.device import Device
from gdpa.bench.figures import Figure, host_costs, part_of
from gdpa.bench.measure import Effort, Progress, Result, forward_alone, measure
from gdpa.bench.rows import Row
from gdpa.bench.systems import Gdpa, GdpaWith, Operands, System

LENGTH, HEAD_DIM = 2048, 128  # the row of the suite whose shares of cuBLAS have goals
SHARES = {"fwd": 0.50, "bwd": 0.38}
NAME, EXPRESSION = "silu", "s * sigmoid(s)"
MIB = 2.0**20


def measure_figures(
    effort: Effort, device: Device, batch_factor: float, progress: Progress
) -> tuple[Result, list[Figure]]:
    """Returns all rows and the figures, for a fraction of the suite's batch."""
    whole, half = (long_case(fill, batch_factor) for fill in (1.0, 0.5))
    systems: list[System] = [Gdpa(), GdpaWith(NAME), GdpaWith(EXPRESSION)]
    parts = 4
    result = measure(whole, systems, DIRECTIONS, effort, device, part_of(progress, 0, parts, "fill 1"))
    result.add(measure(half, systems[:1], DIRECTIONS, effort, device, part_of(progress, 1, parts, "fill .5")))
    figures = rates(result.rows, whole.activation)
    progress(2 / parts, "memory")
    figures += memory(whole, device)
    figures += host_costs(device.torch_device, torch.bfloat16)
    progress(3 / parts, "cold start, in new processes")
    return result, cold_starts(device, effort.rounds) + figures


def long_case(fill: float, batch_factor: float) -> Case:
    """Returns the suite's case of 2048 queries and keys."""
    for case in cases_of_suite("anchors", batch_factor):
        is_filled = sum(case.lengths_q) == LENGTH * len(case.lengths_q)
        if {*case.lengths_k} == {LENGTH} and case.head_dim == HEAD_DIM and is_filled == (fill == 1.0):
            return case
    raise ValueError(f"the suite anchors has no row of {LENGTH} keys, head_dim {HEAD_DIM} and fill {fill}")


def rates(rows: list[Row], activation: str) -> list[Figure]:
    """Returns the shares of cuBLAS and their ratios. A share does not depend on the clock."""

    def share(direction: str, of: str, filled: bool) -> float | None:
        for row in rows:
            if (row.direction, row.activation, row.fill == 1.0) == (direction, of, filled) and row.cublas_tflops:
                return row.tflops / row.cublas_tflops
        return None

    def ratio(above: float | None, below: float | None) -> float | None:
        return above / below if above and below else None

    shape = f"{LENGTH} / {LENGTH}"
    figures = [
        Figure(f"{shape}, {activation}, {way}", share(way, activation, True), goal, "of cuBLAS")
        for way, goal in SHARES.items()
    ]
    for way in DIRECTIONS:
        fills = ratio(share(way, activation, False), share(way, activation, True))
        figures.append(Figure(f"{shape}, fill .5 against 1, {way}", fills, 0.9, "times the share"))
    for way in DIRECTIONS:
        functions = ratio(share(way, EXPRESSION, True), share(way, NAME, True))
        figures.append(Figure(f"{shape}, {EXPRESSION} against {NAME}, {way}", functions, 0.95, "times the speed"))
    return figures


def cold_starts(device: Device, rounds: int) -> list[Figure]:
    """Runs two new processes `rounds` times: the first with an empty cache, the second with the filled cache."""
    unit = "s to the first gradient"
    goals = {"empty": 2.5, "filled": 0.05}
    taken: dict[str, list[float]] = {state: [] for state in goals}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for state in taken:
                try:
                    taken[state].append(first_gradient(device, folder))
                except (subprocess.SubprocessError, OSError, ValueError) as failed:
                    said = getattr(failed, "stderr", None) or str(failed)
                    reason = (said.strip().splitlines() or ["it printed nothing"])[-1]
                    return [Figure(f"{NEW_ACTIVATION}, cache {s}", None, goals[s], reason, False) for s in goals]
    return [
        Figure(f"{NEW_ACTIVATION}, cache {state}", median(seconds), goals[state], unit, more_is_better=False)
        for state, seconds in taken.items()
    ]


def first_gradient(device: Device, cache: str) -> float:
    command = [sys.executable, "-m", "gdpa.bench.cold_start", "--device", str(device.torch_device)]
    # NVRTC has its own cache since 12.9. With this cache, every round except the first would be warm.
    environment = os.environ | {"GDPA_CACHE_DIR": cache, "CUDA_CACHE_DISABLE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return float(json.loads(done.stdout)["seconds"])


def memory(case: Case, device: Device) -> list[Figure]:
    """Returns the memory figures. The goal is 32 B for each entry plus 64 KiB, and in backward one dQ in float32."""
    prepared = Gdpa().prepare(case, Operands.random(case, device.torch_device))
    schedule = 32 * len(case.lengths_q) + 64 * 1024
    query_sum = 4 * prepared.inputs[0].numel()
    outputs = prepared.forward()
    unit = "MiB beyond inputs and outputs"
    taken = {
        "forward": (lambda: forward_alone(prepared), schedule),
        "backward": (lambda: prepared.backward(outputs), schedule + query_sum),
    }
    return [
        Figure(f"memory, {way}, B {len(case.lengths_q)}", memory_beyond(call) / MIB, goal / MIB, unit, False)
        for way, (call, goal) in taken.items()
    ]


def memory_beyond(call: Callable[[], Sequence[torch.Tensor]]) -> int:
    """Returns the peak bytes of a call without its results, from PyTorch's allocator and from the driver's pool."""
    pool = DriverPool()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    pool.reset()
    before = torch.cuda.memory_allocated()
    results = call()
    torch.cuda.synchronize()
    results_bytes = sum(result.untyped_storage().nbytes() for result in results)
    return torch.cuda.max_memory_allocated() - before - results_bytes + pool.peak()


class DriverPool:
    """The pool of cuMemAllocAsync on the current device. PyTorch's counters do not include this pool."""

    USED_AT_PEAK = 8  # CU_MEMPOOL_ATTR_USED_MEM_HIGH

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.pool = ctypes.c_void_p()
        self._check(self.driver.cuDeviceGetDefaultMemPool(ctypes.byref(self.pool), torch.cuda.current_device()))

    def reset(self) -> None:
        self._check(self.driver.cuMemPoolSetAttribute(self.pool, self.USED_AT_PEAK, ctypes.byref(ctypes.c_uint64(0))))

    def peak(self) -> int:
        bytes_ = ctypes.c_uint64()
        self._check(self.driver.cuMemPoolGetAttribute(self.pool, self.USED_AT_PEAK, ctypes.byref(bytes_)))
        return bytes_.value

    @staticmethod
    def _check(status: int) -> None:
        if status != 0:
            raise RuntimeError(f"the driver did not return the size of its memory pool: error {status}")
