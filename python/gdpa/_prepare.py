"""prepare_mask: classifies the tiles of a mask once, for several calls."""

from collections.abc import Callable
from typing import Any

import torch

from gdpa._library import prepare_lists
from gdpa._warmup import Record
from gdpa._when_imported import disable
from gdpa.mask import Mask, PreparedMask, window


@disable(reason="gdpa.prepare_mask returns an object: call it outside of the compiled function")
def prepare_mask(function: Callable[..., Any], *arguments: Any, backward: bool = True, **keywords: Any) -> PreparedMask:
    """Classifies the tiles of a mask as empty, full or partial, for several calls. Comparable to a BlockMask.

    A GPU call with a mask expression first runs small kernels that list the tiles with valid scores. prepare_mask runs
    them once, and keeps the lists of forward and of backward. Pass the result as `mask` to the calls of several layers
    or steps. Nothing else changes: the results have the same bits in deterministic mode.

    The calls may differ in the numbers of their operands, and in everything that does not change the sizes of the
    tiles, such as scale. They must have the same mask, device, batch, number of rows, heads and layout. A call with
    other sizes of tiles raises a ValueError that names them; head_dim, dtype and the function determine them. The lists
    are for the offsets and for the elements of the mask's tensors at this time: docs/masks.md says what happens after a
    change of them.

    On the CPU, each call classifies its tiles itself: a prepared mask has the same results and the same speed. A window
    alone ("causal", gdpa.mask.window) needs no lists on any device.

    The host does not wait for the device. The call can be captured into a CUDA graph if its kernels are loaded, after
    an earlier call of prepare_mask or gdpa.warmup. A compiled function takes the result as an argument or a captured
    variable; prepare_mask itself is not compiled.

    Args:
        function: gdpa.varlen_attention or gdpa.generalized_dot_product_attention, or a function that calls one of them
            once.
        arguments, keywords: the arguments of the call, with `mask`.
        backward: also prepare the lists of the gradients, which occupy most of the memory.

    Returns:
        A gdpa.mask.PreparedMask. It keeps the tensors of the mask.

    Raises:
        ValueError, TypeError: for the same reasons as the call, or if the call has no mask.

    Example::

        >>> query, key, value = torch.randn(3, 12, 4, 64).unbind()
        >>> cu = torch.tensor([0, 5, 12])
        >>> mask = gdpa.mask.prefix(torch.tensor([2, 3])) | gdpa.mask.causal()
        >>> mask = gdpa.prepare_mask(gdpa.varlen_attention, query, key, value, cu, cu, activation="silu", mask=mask)
        >>> for layer in range(2):
        ...     output = gdpa.varlen_attention(query, key, value, cu, cu, activation="silu", mask=mask)
    """
    with Record() as record, torch.no_grad():
        function(*arguments, **keywords)
    if len(record.problems) != 1:
        raise ValueError(
            f"gdpa.prepare_mask: expected a function that calls gdpa once, got {len(record.problems)} calls; prepare "
            "the mask of each call"
        )
    problem = record.problems[0]
    if problem.mask_tiles is not None:  # of an earlier preparation of the mask
        problem = problem._replace(mask_tiles=None, parameters=problem.parameters[:-1])
    mask = _mask_of(problem)
    if mask.window is not None:
        return PreparedMask(mask, None, "")
    return PreparedMask(mask, *prepare_lists(*problem, backward, *record.wanted[0]))


def _mask_of(problem: Any) -> Mask:
    if problem.mask is not None:
        of_mask = problem.parameters[len(problem.parameter_names or ()) :]
        return Mask(problem.mask, dict(zip(problem.mask_names or (), of_mask, strict=True)))
    left, right = problem.window_left, problem.window_right
    if (left, right) == (-1, -1):
        raise ValueError("gdpa.prepare_mask: expected a call with a mask, got one without; pass mask=")
    return window(left, right)
