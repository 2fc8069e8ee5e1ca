"""Compilation ahead of the first call: the GPU kernels of a call are compiled and loaded, and nothing is computed."""

from collections.abc import Callable
from typing import Any, Literal, overload

from torch.utils._python_dispatch import TorchDispatchMode

from gdpa._compilation import CompiledKernel, Warmup, compiled, no_progress
from gdpa._library import forward
from gdpa._operators import empty_output


class _Record(TorchDispatchMode):
    """Notes what gdpa is asked to compute, and answers with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[tuple[Any, ...]] = []
        self.wanted: list[tuple[bool, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not forward:
            return func(*args, **(kwargs or {}))
        self.problems.append(args)
        required = tuple(tensor.requires_grad for tensor in args[:3])
        self.wanted.append(required if any(required) else (True, True, True))
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
        backward: compile the kernels of the gradients too: of those of query, key and value that require a gradient, or
            of all three where none does.
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
    options = "both" if backward else "forward", architecture, lengths
    if background:
        return Warmup(record.problems, options, record.wanted)
    calls = zip(record.problems, record.wanted, strict=True)
    return [kernel for problem, wanted in calls for kernel in compiled(problem, options, no_progress(), wanted)]
