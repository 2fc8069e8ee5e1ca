"""The figures of the CPU backend, measured on the histories of MovieLens 100K."""

from __future__ import annotations

from functools import partial

import torch

from gdpa.bench import command
from gdpa.bench.cases import DIRECTIONS, Case, movielens_lengths
from gdpa.bench.device import Device
from gdpa.bench.figures import Figure, from_command, host_costs, part_of
from gdpa.bench.measure import Effort, Progress, Result, measure
from gdpa.bench.systems import Gdpa, GdpaIn, Padded, SdpaPerSequence

SECONDS = 6.0  # the default time for each figure
USERS_IN_A_CALL = 64
LONG_SEQUENCE = 100_000
MASKS = ("none", "causal")
SYSTEMS = (Gdpa(), GdpaIn("bfloat16"), GdpaIn("float16"), SdpaPerSequence(), Padded())


def measure_figures(
    effort: Effort, device: Device, users: int | None, progress: Progress
) -> tuple[Result, list[Figure]]:
    """Returns all rows and the figures of the first `users` histories, or of all histories."""
    lengths = movielens_lengths()[:users]
    everything = Result()
    figures: list[Figure] = []
    for index, mask in enumerate(MASKS):
        case = Case(lengths, lengths, heads=4, head_dim=128, mask=mask, batch_limit=USERS_IN_A_CALL)
        progress_of_mask = part_of(progress, index, len(MASKS), f"mask {mask}")
        result = measure(case, SYSTEMS, DIRECTIONS, effort, device, progress_of_mask)
        everything.add(result)
        figures += ratios(result, mask)
    return everything, figures + host_costs(device.torch_device, torch.float32) + workspaces()


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


def workspace_per_thread(direction: str) -> float:
    """Returns the MiB per thread in addition to inputs and outputs, for one long sequence, from the plan."""
    problem = ("--lengths", str(LONG_SEQUENCE), "--heads", "4", "--head-dim", "128", "--device", "cpu")
    plan = command.json_of("explain", *problem)[direction]
    return plan["workspace_bytes"] / plan["threads"] / 2**20


def workspaces() -> list[Figure]:
    what = f"memory beyond inputs and outputs, {LONG_SEQUENCE} tokens"
    return [
        from_command(f"{what}, {direction}", 64, "MiB a thread", partial(workspace_per_thread, direction))
        for direction in ("forward", "backward")
    ]
