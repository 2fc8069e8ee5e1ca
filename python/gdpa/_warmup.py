"""Compiling ahead: a call whose GPU kernels are made and loaded while nothing is computed."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode

from gdpa._errors import translated
from gdpa._library import compile_kernels, forward
from gdpa._operators import empty_output


class CompiledKernel(NamedTuple):
    """One GPU kernel that gdpa.warmup() made or found."""

    name: str  #: which one, for which types, with which tile
    architecture: str  #: "sm_90a"
    was_cached: bool
    seconds: float


class _Compile(TorchDispatchMode):
    """Compiles what gdpa is asked to compute, and answers with zeros."""

    def __init__(self, backward: bool, architecture: str) -> None:
        super().__init__()
        self.kernels: list[CompiledKernel] = []
        self._backward = backward
        self._architecture = architecture

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not forward:
            return func(*args, **(kwargs or {}))
        try:
            lines = compile_kernels(*args, self._backward, self._architecture)
        except RuntimeError as error:
            raise translated(error) from None
        for name, architecture, was_cached, seconds in (line.split("\t") for line in lines.splitlines()):
            self.kernels.append(CompiledKernel(name, architecture, was_cached == "1", float(seconds)))
        return empty_output(*args).zero_()


def warmup(
    function: Callable[..., Any], *arguments: Any, backward: bool = True, architecture: str = "", **keywords: Any
) -> list[CompiledKernel]:
    """Compiles the GPU kernels of a call, keeps them in the kernel cache and loads them; computes nothing.

    The first call of a new function takes a second or two, while its kernels are compiled. This takes that time when
    it suits: at the start of a program, before a CUDA graph is captured, or once for all processes of a job.

    Args:
        function: gdpa.varlen_attention or gdpa.generalized_dot_product_attention; or a function or module of yours that
            calls them: its other operations run, with zeros for what gdpa would have computed.
        arguments, keywords: as for the call. Kernels depend on types, head_dim, which operands are shared, the
            activation, accuracy, determinism and on whether rows begin at multiples of 16 bytes; on Hopper also on
            whether keys are few, 256 a sequence on average or less (512 where head_dim is at most 64), whether dense
            or shared queries are 64 of a sequence at most, and, where head_dim is at most 64 and there is no window,
            whether queries are 512 of a sequence on average or more (or in all, where the batch shares the keys).
            They do not depend on other lengths, nor on scales, but that a function like relu, where
            relu(c s) = c relu(s), has one kernel for a positive scale and one for others.
        backward: compile the kernels of the gradients too.
        architecture: "sm_90a", "sm_80": fill the cache for a GPU that is not here; the tensors may then be on the CPU.
            Without it, tensors on the CPU have nothing to compile.

    Returns:
        The kernels, in the order in which they run.

    Raises:
        ValueError, TypeError: as the call, or for an architecture that is unknown.
        RuntimeError: NVRTC is missing, or a graph is being captured already.

    Example::

        >>> rows = torch.zeros(1, 4, 128, dtype=torch.bfloat16)
        >>> cu = torch.tensor([0, 1])
        >>> gdpa.warmup(gdpa.varlen_attention, rows, rows, rows, cu, cu, activation="silu")
        []
    """
    with _Compile(backward, architecture) as mode:
        function(*arguments, **keywords)
    return mode.kernels
