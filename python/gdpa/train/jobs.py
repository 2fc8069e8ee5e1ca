"""The runs of a report. On a CPU, several at the same time, each in a process of its own.

The operations of the model are small: a second thread makes a run hardly faster, and a second process makes twice as
many runs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch

from gdpa.train import data
from gdpa.train.parallel import ONE, Ranks
from gdpa.train.report import Result
from gdpa.train.run import Run, Settings


def result_of(
    settings: Settings, options: argparse.Namespace, device: torch.device, ranks: Ranks,
    show: Callable[[float], None] = lambda done: None,
) -> Result:  # fmt: skip
    """Finishes one run. `show` receives the finished part."""
    folder = options.checkpoints or options.output / "checkpoints"
    events = data.load(options.users)
    run = Run(settings, events, device, options.compile, folder, options.restart, ranks, options.shard_tables)
    for _ in run.train():
        show(len(run.losses) / run.steps)
    losses = [round(float(loss), 5) for loss in run.losses]
    return Result(settings.variant, settings.seed, losses, run.metrics, run.seconds)


def jobs_of(options: argparse.Namespace, device: torch.device, ranks: Ranks, runs: int) -> int:
    """Returns the number of runs at the same time."""
    if device.type == "cpu" and ranks.world == 1:
        processors = len(os.sched_getaffinity(0))
        return min(runs, options.jobs or max(1, processors // (options.threads or 1)))
    if options.jobs not in (None, 1):
        raise ValueError("--jobs: expected one run at a time on a GPU and with torchrun; leave it out")
    return 1


def begin(threads: int) -> None:
    """Begins a process of the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command stops the processes
    torch.set_num_threads(threads)


def results_in_processes(
    runs: Sequence[Settings], options: argparse.Namespace, jobs: int, threads: int, finish: Callable[[], None]
) -> list[Result]:
    """Finishes the runs, `jobs` at a time, each in a process with this number of threads."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), begin, (threads,)) as pool:
        futures = [pool.submit(result_of, settings, options, torch.device("cpu"), ONE) for settings in runs]
        try:
            for future in as_completed(futures):
                future.result()  # raises the error of a run at once
                finish()
        except BaseException:
            for process in multiprocessing.active_children():  # a checkpoint is whole when a process ends
                process.terminate()
            raise
        return [future.result() for future in futures]
