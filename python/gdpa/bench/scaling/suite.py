"""The suite scaling: its options, its work on each rank, and its report."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist

from gdpa.bench.command_line import count
from gdpa.bench.device import Device
from gdpa.bench.measure import Effort, Plan, Progress, Result, part_of
from gdpa.bench.plot import Bar, Group, Panel
from gdpa.bench.report import Figure, Report, Table, heading
from gdpa.bench.scaling import strategies
from gdpa.bench.scaling.ranks import CONTEXT, FSDP, Comparison, Ranks, ScalingRow, launch, measure

HELP = "A training step under FSDP2, and context parallelism, on one GPU and on all GPUs, with their goals"
GOALS = {FSDP: 0.925, CONTEXT: 0.85}  # the scaling divided by the number of GPUs
FIGURES = 2 * (1 + 2 * len(strategies.MASKS))  # timed calls: on one rank and on all ranks


def goal_of(row: ScalingRow) -> Figure:
    """Returns the goal of a row. Processes of one CPU share its cores, so their scaling is not compared with a goal."""
    what = f"{row.system}, {row.direction}, {row.shape}, mask {row.mask}"
    goal = GOALS[row.system] * row.processes
    if row.backend != "nccl":
        return Figure(what, None, goal, "needs several GPUs")
    return Figure(what, row.scaling, goal, f"throughput of {row.processes} GPUs by that of one")


class ScalingReport(Report):
    row_type = ScalingRow
    caption = "throughput of all GPUs divided by the throughput of one, with the goals"

    @property
    def figures(self) -> list[Figure]:
        return [goal_of(row) for row in self.rows]

    def tables(self) -> list[Table]:
        row, n = self.rows[0], self.rows[0].processes
        columns: dict[str, Callable[[ScalingRow], str]] = {
            "strategy": lambda row: row.system,
            "": lambda row: row.direction,
            "mask": lambda row: row.mask,
            "shape": lambda row: str(row.shape),
            "ms on 1": lambda row: f"{row.ms_one:.3f}",
            f"ms on {n}": lambda row: f"{row.ms:.3f}",
            "Mtokens/s on 1": lambda row: f"{row.tokens_per_second_one * 1e-6:.3f}",
            f"Mtokens/s on {n}": lambda row: f"{row.tokens_per_second * 1e-6:.3f}",
            "scaling": lambda row: f"{row.scaling:.3f}",
            f"of {n}": lambda row: f"{row.scaling / n:.3f}",
            "largest part": lambda row: f"{row.largest_part:.3f}",
            "difference": lambda row: f"{row.difference:.1e}",
        }
        what = f"{n} processes with {row.backend}, {row.H} heads of {row.d}, {row.dtype}, {row.activation}"
        return [Table.of(what, columns, self.rows, texts=4)]

    def panels(self) -> list[Panel]:
        def group(row: ScalingRow) -> Group:
            goal = goal_of(row)
            bar = Bar(row.scaling, f"{row.scaling:.2f}", [(goal.goal, goal.reached)] if goal.measured else [])
            label = f"{row.system}\n{row.direction}, mask {row.mask}"
            return Group(label, {"scaling": bar}, {"number of processes": row.processes})

        return [Panel("times the throughput of one", [group(row) for row in self.rows])]


def measure_on_rank(
    rank: int, world: int, store: str, progress: Progress, kind: str, options: argparse.Namespace, effort: Effort
) -> list[ScalingRow]:
    """Measures FSDP2, and then context parallelism with each mask. All ranks return the same rows."""
    ranks = Ranks.join(rank, world, kind, store, options.threads)

    def fsdp_step() -> Sequence[Comparison]:
        return [strategies.fsdp_comparison(ranks, options.layers, options.scale_batch)]

    def long_sequence(mask: str) -> Sequence[Comparison]:
        return strategies.context_comparisons(ranks, strategies.long_sequence(kind, mask, options.scale_batch))

    subjects = {FSDP: fsdp_step}
    subjects |= {f"{CONTEXT}, mask {mask}": partial(long_sequence, mask) for mask in strategies.MASKS}
    rows: list[ScalingRow] = []
    for index, (what, prepare) in enumerate(subjects.items()):
        of_subject = part_of(progress, index, len(subjects), what)
        of_subject(0.0, "first call")
        rows += measure(ranks, prepare(), effort, of_subject)
        ranks.device.release()
    dist.destroy_process_group()
    return rows


def processes_on(device: Device, wanted: int | None) -> int:
    """Returns the number of processes.

    Raises ValueError if PyTorch has one GPU only, and for a number below 2 or above the number of GPUs.
    """
    if device.torch_device.type == "cpu":
        if wanted == 1:
            raise ValueError("--processes: expected at least 2, because scaling compares several with one; got 1")
        return wanted or 2
    found = torch.cuda.device_count()
    if found < 2:
        raise ValueError(
            f"scaling: needs several GPUs; PyTorch finds one, {device.describe()}; make more visible "
            "(CUDA_VISIBLE_DEVICES; `nvidia-smi -L` lists all), or pass --device cpu to see that the command works"
        )
    if wanted and not 2 <= wanted <= found:
        raise ValueError(f"--processes: expected a number from 2 to {found}, the number of GPUs; got {wanted}")
    return wanted or found


REPORT = ScalingReport


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--processes", type=count, metavar="N", help="processes, one for each GPU (all visible GPUs; 2 on the CPU)"
    )
    parser.add_argument("--layers", type=count, default=2, metavar="N", help="layers of the model of FSDP2 (2)")


def plan(options: argparse.Namespace, device: Device, effort: Effort) -> Plan:
    if options.device not in (None, "cpu", "cuda"):
        raise ValueError(
            f"--device: expected cpu or cuda with scaling, got {options.device!r}; CUDA_VISIBLE_DEVICES selects GPUs"
        )
    kind, processes = device.torch_device.type, processes_on(device, options.processes)
    name = f"{device.describe()}, {processes} {'GPUs' if kind == 'cuda' else 'processes'}"

    def step(progress: Progress) -> Result:
        return Result(launch(measure_on_rank, processes, (kind, options, effort), progress))

    report = ScalingReport(*heading(options.command, name, effort.seconds, effort.rounds))
    return Plan(report, [step], FIGURES)
