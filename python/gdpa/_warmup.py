"""Compilation ahead of the first call. It compiles and loads the GPU kernels of a call without computing anything."""

from collections.abc import Callable
from typing import Any, Literal, overload

from torch.utils._python_dispatch import TorchDispatchMode

from gdpa._compilation import CompiledKernel, Warmup, compiled, no_progress
from gdpa._library import Problem, Wanted, forward
from gdpa._operators import empty_output, required_gradients


class Record(TorchDispatchMode):
    """Records the calls of gdpa and returns zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[tuple[Any, ...]] = []
        self.wanted: list[Wanted] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not forward:
            return func(*args, **(kwargs or {}))
        self.problems.append(Problem(*args))
        self.wanted.append(required_gradients(self.problems[-1]))
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
    """Compiles the GPU kernels of a call, stores them in the kernel cache and loads them. Computes nothing.

    The first call of a new function waits one or two seconds for the compilation of its kernels. The kernels of a call
    depend on the lengths of its sequences, so a later call with other lengths may wait again, or fail during the
    capture of a CUDA graph. warmup() compiles all kernels that calls of this kind can need. Call it at the start of a
    program, before the capture of a CUDA graph, or once for all processes of a job.

    Args:
        function: gdpa.varlen_attention or gdpa.generalized_dot_product_attention, or a function or module that calls
            them. The other operations of such a function run, and the results of gdpa are zeros.
        arguments, keywords: the arguments of the call. The kernels fit later calls with any lengths, number of
            sequences and number of heads. These properties must be equal: dtype, head_dim, the ratio of query heads to
            key heads, the layout (packed, padded or shared operands), activation and params, scale, window_size or
            mask, the kind of out_scale, accuracy, deterministic, and whether rows begin at multiples of 16 bytes.
        backward: also compile the kernels of the gradients of query, key and value. If some of them, or tensors of
            params, require a gradient, compile only the kernels of these gradients.
        architecture: fill the cache for this architecture, such as "sm_90a" or "sm_80". No GPU is needed, and the
            tensors may be on the CPU. Without an architecture, CPU tensors need no compilation.
        lengths: "any" compiles the kernels for all lengths. "these" compiles only the kernels of the call itself. This
            takes less time, and is sufficient if all calls have the same shapes.
        background: compile in a thread, and return a Warmup immediately. `function` itself runs before warmup()
            returns. A call that needs a kernel before its compilation has ended waits for the kernel.

    Returns:
        The kernels, each once for each direction. The kernels of the call itself come first, in launch order. With
        ``background=True``, a :class:`Warmup`. Its result() returns the kernels.

    Raises:
        ValueError, TypeError: for the same reasons as the call, or for an unknown architecture. With
            ``background=True``, result() raises some of these errors.
        RuntimeError: NVRTC is missing, or a CUDA graph is being captured.

    Example::

        >>> rows = torch.zeros(1, 4, 128, dtype=torch.bfloat16)
        >>> cu = torch.tensor([0, 1])
        >>> gdpa.warmup(gdpa.varlen_attention, rows, rows, rows, cu, cu, activation="silu")
        []
    """
    with Record() as record:
        function(*arguments, **keywords)
    options = "both" if backward else "forward", architecture, lengths
    if background:
        return Warmup(record.problems, options, record.wanted)
    calls = zip(record.problems, record.wanted, strict=True)
    return [kernel for problem, wanted in calls for kernel in compiled(problem, options, no_progress(), wanted)]
