"""Starts one process for each rank, and ends all of them when one fails."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch.multiprocessing as multiprocessing

from gdpa.bench.agreement import Disagreement
from gdpa.bench.measure import Progress
from gdpa.bench.rows import reason_of

SECONDS_OF_DYING = 1.0  # the time in which the exit code of a process becomes known


class RankFailed(RuntimeError):
    """The process of a rank has raised an error or died. All other processes have been ended."""


# Receives the rank, the number of ranks, the file of the store, the progress display and further arguments.
Target = Callable[..., Any]


def _run(target: Target, rank: int, world: int, store: str, channel: Any, arguments: tuple[Any, ...]) -> None:
    """Runs the target in the process of a rank, and sends its progress and its result to the parent process."""

    def progress(done: float, text: str) -> None:
        if rank == 0:
            channel.send(("progress", (done, text)))

    try:
        channel.send(("result", target(rank, world, store, progress, *arguments)))
    except Exception as error:
        kind = "disagreement" if isinstance(error, Disagreement) else "error"
        words = str(error) if kind == "disagreement" else reason_of(error)
        channel.send((kind, (words, traceback.format_exc())))
        # If this process ended now, its peers would fail with an error of their connection. The parent process kills
        # all of them.
        channel.recv()


def launch(target: Target, world: int, arguments: tuple[Any, ...], progress: Progress) -> Any:
    """Runs the target on `world` ranks of one machine, and returns the result of rank 0.

    Args:
        target: a function of a module, called as target(rank, world, store, progress, *arguments). `store` is the path
            of a file, for the rendezvous of torch.distributed.
        progress: receives the progress of rank 0.

    Raises:
        RankFailed: a rank has raised an error or died.
        Disagreement: a rank has raised it.
    """
    context = multiprocessing.get_context("spawn")
    processes: list[Any] = []
    channels: dict[Any, int] = {}  # of the running ranks
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        try:
            for rank in range(world):
                ours, theirs = context.Pipe()
                channels[ours] = rank
                started = (target, rank, world, store, theirs, arguments)
                processes.append(context.Process(target=_run, args=started, daemon=True))
                processes[-1].start()
                theirs.close()  # so that the end of the process ends the channel
            return _result(channels, processes, progress)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _result(channels: dict[Any, int], processes: list[Any], progress: Progress) -> Any:
    """Returns the result of rank 0 after all ranks have sent theirs."""
    results: dict[int, Any] = {}
    while channels:
        ready: list[Any] = connection.wait(channels)
        for channel in ready:
            rank = channels[channel]
            try:
                kind, content = channel.recv()
            except (EOFError, ConnectionResetError):
                raise RankFailed(_death(rank, processes[rank])) from None
            if kind == "progress":
                progress(*content)
            elif kind == "result":
                results[rank] = content
                del channels[channel]
            else:
                words, trace = content
                raise _failure(rank, kind, words, trace, processes)
    return results[0]


def _failure(rank: int, kind: str, words: str, trace: str, processes: list[Any]) -> Exception:
    """Returns the error of the run. It begins with the processes that have died, which cause errors on other ranks."""
    if kind == "disagreement":
        return Disagreement(words)
    time.sleep(SECONDS_OF_DYING)
    deaths = [_death(number, process) for number, process in enumerate(processes) if process.exitcode]
    return RankFailed("\n".join([*deaths, f"rank {rank}: {words}; all ranks have been ended", trace.rstrip()]))


def _death(rank: int, process: Any) -> str:
    process.join(SECONDS_OF_DYING)
    return f"rank {rank}: the process ended with exit code {process.exitcode}; all ranks have been ended"
