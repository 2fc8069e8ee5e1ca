"""Compilation ahead of the first call: the GPU kernels of a call are compiled and loaded, and nothing is computed."""

import atexit
import threading
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, overload

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gdpa._errors import translated
from gdpa._library import compile_kernels, forward
from gdpa._operators import empty_output


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

    def __init__(self, problems: list[tuple[Any, ...]], options: tuple[Any, ...]) -> None:
        self._problems = problems
        self._options = options
        self._numbers = [_no_progress() for _ in problems]
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
            for problem, numbers in zip(self._problems, self._numbers, strict=True):
                self._kernels += _compiled(problem, self._options, numbers)
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


def _no_progress() -> torch.Tensor:
    """What the operator writes and reads: kernels that are done, kernels in all, and whether to stop."""
    return torch.zeros(3, dtype=torch.int64)


def _compiled(problem: tuple[Any, ...], options: tuple[Any, ...], progress: torch.Tensor) -> list[CompiledKernel]:
    try:
        lines = compile_kernels(*problem, *options, progress)
    except RuntimeError as error:
        raise translated(error) from None
    columns = (line.split("\t") for line in lines.splitlines())
    return [
        CompiledKernel(name, architecture, was_cached == "1", float(seconds))
        for name, architecture, was_cached, seconds in columns
    ]


class _Record(TorchDispatchMode):
    """Notes what gdpa is asked to compute, and answers with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not forward:
            return func(*args, **(kwargs or {}))
        self.problems.append(args)
        return empty_output(*args).zero_()


@overload
def warmup(
    function: Callable[..., Any], *arguments: Any, backward: bool = ..., architecture: str = ...,
    lengths: Literal["any", "these"] = ..., background: Literal[False] = ..., **keywords: Any,
) -> list[CompiledKernel]: ...  # fmt: skip


@overload
def warmup(
    function: Callable[..., Any], *arguments: Any, backward: bool = ..., architecture: str = ...,
    lengths: Literal["any", "these"] = ..., background: Literal[True], **keywords: Any,
) -> Warmup: ...  # fmt: skip


def warmup(
    function: Callable[..., Any],
    *arguments: Any,
    backward: bool = True,
    architecture: str = "",
    lengths: Literal["any", "these"] = "any",
    background: bool = False,
    **keywords: Any,
) -> list[CompiledKernel] | Warmup:
    """Compiles the GPU kernels of a call, keeps them in the kernel cache and loads them. Computes nothing.

    The first call of a new function waits a second or two for its kernels to be compiled. Which kernels a call needs
    depends on the lengths of its sequences, so a later call with other lengths may wait again, or fail while a CUDA
    graph is captured. warmup() compiles all kernels that calls of this kind can need: at the start of a program, before
    a CUDA graph is captured, or once for all processes of a job.

    Args:
        function: gdpa.varlen_attention or gdpa.generalized_dot_product_attention, or a function or module that calls
            them. The other operations of such a function run; gdpa's results are zeros.
        arguments, keywords: as for the call. The kernels fit later calls with any lengths, number of sequences and
            number of heads. Everything else must be the same: dtype, head_dim, the ratio of query heads to key heads,
            the layout (packed, padded or shared operands), activation and params, scale, window_size or mask, the kind
            of out_scale, accuracy, deterministic, and whether rows begin at multiples of 16 bytes.
        backward: compile the kernels of the gradients too.
        architecture: "sm_90a", "sm_80": fill the cache for a GPU that is not in this machine. The tensors may then be
            on the CPU. Without an architecture there is nothing to compile for tensors on the CPU.
        lengths: "any" compiles the kernels for all lengths. "these" compiles only those that the call itself needs,
            which takes less time where all calls have the same shapes.
        background: compile in a thread, and return a Warmup at once. `function` itself runs before warmup() returns. A
            call that needs a kernel before the thread has it waits for that kernel, as it would without warmup().

    Returns:
        The kernels, each once per direction: those of the call itself first, in the order in which they run. With
        ``background=True`` a :class:`Warmup`, whose result() returns them.

    Raises:
        ValueError, TypeError: as the call, or for an unknown architecture. With ``background=True`` some are raised by
            result().
        RuntimeError: NVRTC is missing, or a CUDA graph is being captured.

    Example::

        >>> rows = torch.zeros(1, 4, 128, dtype=torch.bfloat16)
        >>> cu = torch.tensor([0, 1])
        >>> gdpa.warmup(gdpa.varlen_attention, rows, rows, rows, cu, cu, activation="silu")
        []
        >>> kernels = gdpa.warmup(gdpa.varlen_attention, rows, rows, rows, cu, cu, background=True)
        >>> kernels.result()
        []
    """
    with _Record() as record:
        function(*arguments, **keywords)
    options = backward, architecture, lengths
    if background:
        return Warmup(record.problems, options)
    return [kernel for problem in record.problems for kernel in _compiled(problem, options, _no_progress())]
