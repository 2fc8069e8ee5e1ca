"""The runs of a report. On a CPU, several at the same time, each in a process of its own.

The operations of the model are small: a second thread makes a run hardly faster, and a second process makes twice as
many runs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from gdpa.train import data
from gdpa.train.parallel import ONE, Ranks
from gdpa.train.report import Result
from gdpa.train.run import Run, Settings

Advance = Callable[[int], object]  # is called with the number of finished steps


def result_of(
    settings: Settings, options: argparse.Namespace, device: torch.device, ranks: Ranks, advance: Advance
) -> Result:
    """Finishes one run."""
    folder = options.checkpoints or options.output / "checkpoints"
    events = data.load(options.users)
    run = Run(settings, events, device, options.compile, folder, options.restart, ranks, options.shard_tables)
    advance(len(run.losses))
    for _ in run.train():
        advance(1)
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


class Stopped(Exception):
    """Ends the run of a worker process after the command was interrupted, or another run failed."""


class _Worker:
    """The state of a process of the pool."""

    steps: Any
    stop: Any

    @classmethod
    def begin(cls, steps: Any, stop: Any, threads: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command stops the processes
        torch.set_num_threads(threads)
        cls.steps, cls.stop = steps, stop

    @classmethod
    def advance(cls, steps: int) -> None:
        if cls.stop.is_set():
            raise Stopped
        cls.steps.put(steps)

    @classmethod
    def run(cls, settings: Settings, options: argparse.Namespace) -> Result:
        return result_of(settings, options, torch.device("cpu"), ONE, cls.advance)


def results_in_processes(
    runs: Sequence[Settings], options: argparse.Namespace, jobs: int, threads: int, advance: Advance
) -> list[Result]:
    """Finishes the runs, `jobs` at a time, each in a process with this number of threads."""
    context = multiprocessing.get_context("spawn")
    steps, stop = context.Queue(), context.Event()
    pool = ProcessPoolExecutor(jobs, context, _Worker.begin, (steps, stop, threads))
    try:
        futures = [pool.submit(_Worker.run, settings, options) for settings in runs]
        while not all(future.done() for future in futures):
            for future in futures:
                if future.done():
                    future.result()  # raises the error of a run at once
            try:
                advance(steps.get(timeout=0.5))
            except queue.Empty:
                continue
        while not steps.empty():
            advance(steps.get())
        return [future.result() for future in futures]
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
