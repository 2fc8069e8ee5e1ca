"""Numbers that torch.compile and torch.export keep symbolic, so that one graph is valid for all of them.

The operators take plain numbers. PyTorch would make a symbolic number a constant there, and compile another graph for
each of them.
"""

from typing import Any, TypeGuard

import torch


def is_symbolic(number: Any) -> TypeGuard[float]:
    """Returns whether a graph is being traced, and the number may have several values in it, such as 1 / n."""
    if isinstance(number, (torch.SymInt, torch.SymFloat)):
        return True
    if not torch.compiler.is_compiling() or isinstance(number, bool) or not isinstance(number, (int, float)):
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not has_static_value(number)
