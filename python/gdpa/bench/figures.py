"""The figures of the project with their goals: the cost of a call, cold starts, memory, and the speed on the CPU.

On the CPU, the data are the histories of MovieLens 100K. On a GPU, the memory is that of the first shape of the
suite hopper.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import torch

import gdpa
from gdpa.bench import command
from gdpa.bench.cases import DIRECTIONS, Case, cases_of_suite, movielens_lengths
from gdpa.bench.command_line import count
from gdpa.bench.device import Device, memory_beyond
from gdpa.bench.measure import Effort, Plan, Progress, Result, forward_alone, measure
from gdpa.bench.rates import RateReport
from gdpa.bench.report import Figure, heading
from gdpa.bench.systems import Gdpa, Operands, Padded, SdpaPerSequence

HELP = "The project's figures and their goals: the cost of a call, memory, cold starts on a GPU, MovieLens on the CPU"
CPU_SECONDS = 6.0  # the default time for each figure on the CPU
USERS_IN_A_CALL = 64
LONG_SEQUENCE = 100_000
MASKS = ("none", "causal")
ON_CPU = (Gdpa(), Gdpa().variant(dtype="bfloat16"), Gdpa().variant(dtype="float16"), SdpaPerSequence(), Padded())
CALLS_BEFORE_WAITING = 50  # fewer calls than a GPU's queue holds, so that no call waits
MIB = 2.0**20
NEW_ACTIVATION, NEW_LENGTH = "s * sigmoid(1.6180 * s)", 256  # of the cold start


REPORT = RateReport


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--users", type=count, metavar="N", help="on the CPU, use only the first N histories (all)")


def plan(options: argparse.Namespace, device: Device, effort: Effort) -> Plan:
    if device.torch_device.type == "cuda":
        steps = [partial(on_gpu, device, effort, options.scale_batch)]
        figures = 0
    else:
        effort = replace(effort, seconds=CPU_SECONDS) if options.seconds is None else effort
        lengths = movielens_lengths()[: options.users]
        cases = [Case(lengths, lengths, 4, 128, mask=mask, batch_limit=USERS_IN_A_CALL) for mask in MASKS]
        steps = [*(partial(on_histories, case, device, effort) for case in cases), partial(on_cpu, device)]
        figures = len(cases) * len(ON_CPU) * len(DIRECTIONS)
    report = RateReport(*heading(options.command, device.describe(), effort.seconds, effort.rounds))
    return Plan(report, steps, figures)


def on_gpu(device: Device, effort: Effort, batch_factor: float, progress: Progress) -> Result:
    progress(0.0, "memory")
    figures = memory(cases_of_suite("hopper", batch_factor)[0], device)
    figures += host_costs(device.torch_device, torch.bfloat16)
    progress(0.5, "cold start, in new processes")
    return Result(figures=cold_starts(device, effort.rounds) + figures)


def on_cpu(device: Device, progress: Progress) -> Result:
    progress(0.0, "cost of a call, and memory")
    return Result(figures=host_costs(device.torch_device, torch.float32) + workspaces())


def at_most(what: str, goal: float, unit: str, ask: Callable[[], float]) -> Figure:
    """Returns a figure with an upper bound, or the reason why it was not measured."""
    try:
        return Figure(what, ask(), goal, unit, more_is_better=False)
    except (command.CommandMissing, subprocess.SubprocessError, OSError, ValueError) as failed:
        said = getattr(failed, "stderr", None) or str(failed)
        return Figure(what, None, goal, (said.strip().splitlines() or ["it printed nothing"])[-1], more_is_better=False)


def on_histories(case: Case, device: Device, effort: Effort, progress: Progress) -> Result:
    result = measure(case, ON_CPU, DIRECTIONS, effort, device, progress)
    result.figures = ratios(result, case.mask)
    return result


def ratios(result: Result, mask: str) -> list[Figure]:
    """Returns the speed of gdpa relative to each other system, and of 16-bit types relative to float32."""
    ms = {(row.system, row.dtype, row.direction): row.ms for row in result.rows}
    gdpa_fp32 = ("gdpa", "float32")
    comparisons = (
        (gdpa_fp32, ("SDPA per sequence", "float32"), 1.2, "float32 against SDPA per sequence"),
        (gdpa_fp32, ("padded", "float32"), 3.0, "float32 against padded product-GELU-product"),
        (("gdpa", "bfloat16"), gdpa_fp32, 0.8, "bfloat16 against float32"),
        (("gdpa", "float16"), gdpa_fp32, 0.8, "float16 against float32"),
    )
    figures = []
    for fast, other, goal, what in comparisons:
        for direction in DIRECTIONS:
            pair = (ms.get((*fast, direction)), ms.get((*other, direction)))
            ratio = pair[1] / pair[0] if pair[0] and pair[1] else None
            figures.append(Figure(f"{what}, mask {mask}, {direction}", ratio, goal, "times the speed"))
    return figures


# The cost of a call ---------------------------------------------------------------------------------------------------


def call_cost(record: bool, device: torch.device, dtype: torch.dtype, calls: int = 2000) -> float:
    """Returns the median microseconds of one forward call on one query and one key, with or without recording.

    The time is the host's part, because no measured call waits for a GPU.
    """
    query, key, value = torch.randn(3, 1, 1, 64, dtype=dtype, device=device, requires_grad=record).unbind()
    offsets = torch.tensor([0, 1], device=device)
    times = []
    with torch.set_grad_enabled(record):
        for call in range(calls):
            if device.type == "cuda" and call % CALLS_BEFORE_WAITING == 0:
                torch.cuda.synchronize()
            start = time.perf_counter()
            gdpa.varlen_attention(query, key, value, offsets, offsets)
            times.append(time.perf_counter() - start)
    return median(times[calls // 10 :]) * 1e6


def host_costs(device: torch.device, dtype: torch.dtype) -> list[Figure]:
    asked = ("bench", "--host-cost", "--device", str(device))
    costs: list[tuple[str, float, Callable[[], float]]] = [
        ("one row, C++", 5, lambda: command.json_of(*asked)["host_cost_us"]),
        ("one row, PyTorch", 15, lambda: call_cost(False, device, dtype)),
        ("one row, PyTorch, recording", 30, lambda: call_cost(True, device, dtype)),
    ]
    return [at_most(what, goal, "us a call", ask) for what, goal, ask in costs]


# Memory ---------------------------------------------------------------------------------------------------------------


def workspaces() -> list[Figure]:
    """Returns the MiB for each thread in addition to inputs and outputs, for one long sequence, from the plan."""
    problem = ("--lengths", str(LONG_SEQUENCE), "--heads", "4", "--head-dim", "128", "--device", "cpu")

    def per_thread(direction: str) -> float:
        plan = command.json_of("explain", *problem)[direction]
        return plan["workspace_bytes"] / plan["threads"] / MIB

    what = f"memory beyond inputs and outputs, {LONG_SEQUENCE} tokens"
    return [
        at_most(f"{what}, {direction}", 64, "MiB a thread", partial(per_thread, direction))
        for direction in ("forward", "backward")
    ]


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


# Cold start -----------------------------------------------------------------------------------------------------------


def cold_starts(device: Device, rounds: int) -> list[Figure]:
    """Runs two new processes `rounds` times: the first with an empty cache, the second with the filled cache."""
    folders = [tempfile.TemporaryDirectory() for _ in range(rounds)]
    figures = [
        at_most(
            f"{NEW_ACTIVATION}, cache {state}", goal, "s to the first gradient",
            lambda: median(in_new_process(device, folder.name) for folder in folders),
        )
        for state, goal in (("empty", 2.5), ("filled", 0.05))
    ]  # fmt: skip
    for folder in folders:
        folder.cleanup()
    return figures


def in_new_process(device: Device, cache: str) -> float:
    """Returns the seconds of `first_gradient` in a new process with this folder as its cache."""
    program = f"from gdpa.bench import figures; print(figures.first_gradient({str(device.torch_device)!r}))"
    # NVRTC has its own cache since 12.9. With this cache, every round except the first would be warm.
    environment = os.environ | {"GDPA_CACHE_DIR": cache, "CUDA_CACHE_DISABLE": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return float(done.stdout)


def first_gradient(name: str) -> float:
    """Returns the seconds of one forward and backward call. PyTorch has computed a gradient on the device before."""
    device = torch.device(name)
    torch.cuda.set_device(device.index or 0)
    operands = torch.randn(3, NEW_LENGTH, 4, 128, device=device).bfloat16().unbind()
    query, key, value = (operand.detach().requires_grad_() for operand in operands)
    grad_output = torch.ones_like(query)
    offsets = torch.tensor([0, NEW_LENGTH], device=device)
    torch.autograd.grad(query * key, (query, key), grad_output)
    torch.cuda.synchronize()
    start = time.perf_counter()
    output = gdpa.varlen_attention(query, key, value, offsets, offsets, activation=NEW_ACTIVATION)
    torch.autograd.grad(output, (query, key, value), grad_output)
    torch.cuda.synchronize()
    return time.perf_counter() - start
