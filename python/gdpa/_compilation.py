"""Compilation of GPU kernels in a thread, and the result for each kernel."""

import atexit
import threading
from typing import Any, NamedTuple

import torch

from gdpa._library import Wanted, compile_kernels


class CompiledKernel(NamedTuple):
    """A GPU kernel that gdpa.warmup() compiled or found in the cache."""

    name: str  #: the kind, types and tile of the kernel
    architecture: str  #: "sm_90a"
    was_cached: bool  #: whether the cache on disk or this process had the kernel already
    seconds: float  #: the time to find or to compile the kernel


class Progress(NamedTuple):
    """The progress of a compilation."""

    done: int  #: the number of kernels that are compiled or found
    total: int  #: the number of all known kernels


class Warmup:
    """A compilation in a background thread, the result of gdpa.warmup(..., background=True).

    If the program ends during the compilation, the compilation stops after the kernels that are being compiled.

    Example::

        >>> rows = torch.zeros(1, 4, 128, dtype=torch.bfloat16)
        >>> cu = torch.tensor([0, 1])
        >>> warm = gdpa.warmup(gdpa.varlen_attention, rows, rows, rows, cu, cu, background=True)
        >>> warm.result(timeout=60), warm.done()
        ([], True)
    """

    def __init__(self, problems: list[tuple[Any, ...]], options: tuple[Any, ...], wanted: list[Wanted]) -> None:
        self._problems = problems
        self._wanted = wanted  # for each problem, the gradients that backward computes
        self._options = options
        self._numbers = [no_progress() for _ in problems]
        self._kernels: list[CompiledKernel] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gdpa.warmup", daemon=True)
        _running.add(self)
        self._thread.start()

    @property
    def progress(self) -> Progress:
        """The number of finished kernels and the number of all kernels."""
        counts = torch.stack(self._numbers)[:, :2].sum(0).tolist() if self._numbers else [0, 0]
        return Progress(*counts)

    def done(self) -> bool:
        """Returns whether the compilation has ended, so that result() does not wait."""
        return not self._thread.is_alive()

    def result(self, timeout: float | None = None) -> list[CompiledKernel]:
        """Waits for the compilation, and returns the kernels or raises the error of gdpa.warmup.

        Args:
            timeout: the longest wait in seconds. None waits until the end.

        Raises:
            TimeoutError: the compilation has not ended after this time. The compilation continues.
            ValueError, TypeError, RuntimeError: for the same reasons as gdpa.warmup.
        """
        self._thread.join(timeout)
        if not self.done():
            raise TimeoutError(
                f"gdpa.warmup: expected the kernels within {timeout} s, got {self.progress.done} of "
                f"{self.progress.total}; wait longer, or call result() again later"
            )
        if self._error is not None:
            raise self._error
        return self._kernels

    def _stop(self) -> None:
        for numbers in self._numbers:
            numbers[2] = 1
        self._thread.join()

    def _run(self) -> None:
        try:
            for problem, wanted, numbers in zip(self._problems, self._wanted, self._numbers, strict=True):
                self._kernels += compiled(problem, self._options, numbers, wanted)
        except BaseException as error:
            self._error = error
        finally:
            _running.discard(self)


_running: set[Warmup] = set()


# The interpreter must not end while a thread runs the compiler, because the interpreter unloads its libraries.
@atexit.register
def _stop_all() -> None:
    for warmup in list(_running):
        warmup._stop()


def no_progress() -> torch.Tensor:
    """Returns new counters for the operator: finished kernels, all kernels, and a flag that stops the compilation."""
    return torch.zeros(3, dtype=torch.int64, device="cpu")  # independent of torch's default device


def compiled(
    problem: tuple[Any, ...],
    options: tuple[Any, ...],
    progress: torch.Tensor,
    wanted: Wanted,
) -> list[CompiledKernel]:
    """Compiles the kernels of one call of gdpa::forward, and counts them in `progress`."""
    with torch.no_grad():
        lines = compile_kernels(*problem, *options, progress, *wanted)
    columns = (line.split("\t") for line in lines.splitlines())
    return [
        CompiledKernel(name, architecture, was_cached == "1", float(seconds))
        for name, architecture, was_cached, seconds in columns
    ]
