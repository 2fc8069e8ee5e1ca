"""Compilation of GPU kernels in a thread, and what became of each kernel."""

import atexit
import threading
from typing import Any, NamedTuple

import torch

from gdpa._errors import translated
from gdpa._library import compile_kernels


class CompiledKernel(NamedTuple):
    """One GPU kernel that gdpa.warmup() compiled or found."""

    name: str  #: kind, types and tile of the kernel
    architecture: str  #: "sm_90a"
    was_cached: bool
    seconds: float


class Progress(NamedTuple):
    """How far a compilation is."""

    done: int  #: kernels that are compiled or found
    total: int  #: all kernels, as far as they are known


class Warmup:
    """A compilation in a background thread, as gdpa.warmup(..., background=True) returns it.

    At the end of the program a compilation that still runs is stopped after the kernels that are in the compiler then.
    """

    def __init__(
        self, problems: list[tuple[Any, ...]], options: tuple[Any, ...], wanted: list[tuple[bool, ...]] | None = None
    ) -> None:
        self._problems = problems
        # Which gradients of query, key and value backward is to compute, for each problem; all of them by default.
        self._wanted = wanted if wanted is not None else [(True, True, True)] * len(problems)
        self._options = options
        self._numbers = [no_progress() for _ in problems]
        self._kernels: list[CompiledKernel] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gdpa.warmup", daemon=True)
        _running.add(self)
        self._thread.start()

    @property
    def progress(self) -> Progress:
        """The numbers of kernels that are done and that there are."""
        counts = torch.stack(self._numbers)[:, :2].sum(0).tolist() if self._numbers else [0, 0]
        return Progress(*counts)

    def done(self) -> bool:
        """Whether result() returns, or raises, at once."""
        return not self._thread.is_alive()

    def result(self, timeout: float | None = None) -> list[CompiledKernel]:
        """Waits for the compilation, and returns the kernels or raises the error of gdpa.warmup.

        Args:
            timeout: seconds to wait at most; None waits until the end.

        Raises:
            TimeoutError: the compilation is not done after that time. It goes on.
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


# The interpreter must not end while a thread is in the compiler: its libraries are unloaded then.
@atexit.register
def _stop_all() -> None:
    for warmup in list(_running):
        warmup._stop()


def no_progress() -> torch.Tensor:
    """What the operator writes and reads: kernels that are done, kernels in all, and whether to stop."""
    return torch.zeros(3, dtype=torch.int64, device="cpu")  # whatever torch's default device is


def compiled(
    problem: tuple[Any, ...], options: tuple[Any, ...], progress: torch.Tensor, wanted: tuple[bool, ...]
) -> list[CompiledKernel]:
    """Compiles the kernels of one call of gdpa::forward, and counts them in `progress`.

    `wanted` says which of the gradients of query, key and value backward is to compute.
    """
    try:
        with torch.no_grad():
            lines = compile_kernels(*problem, *options, progress, *wanted)
    except RuntimeError as error:
        raise translated(error) from None
    columns = (line.split("\t") for line in lines.splitlines())
    return [
        CompiledKernel(name, architecture, was_cached == "1", float(seconds))
        for name, architecture, was_cached, seconds in columns
    ]
