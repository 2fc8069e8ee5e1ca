"""The tensors that the functions of a case read: their shapes and numbers, and the positions of their elements.

The value of a tensor has the notation of ``gdpa run --tensor``, without files: a number, ``randn:SHAPE`` or
``randn:SHAPE:DTYPE`` for N(0, 1) numbers, or ``times:SHAPE`` for whole seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gdpa.bench.cases import Case

TIMES_END = 2**22  # float32 represents every whole number below it
MEAN_OF_LOG, DEVIATION_OF_LOG = 3.0, 2.0  # of the gaps between times


def random_tensors(case: Case, generator: torch.Generator, device: torch.device) -> dict[str, Tensor]:
    """Returns all tensors of the case. Tensors of times with the same shape have the same numbers."""
    tensors: dict[str, Tensor] = {}
    times: dict[tuple[int, ...], Tensor] = {}
    for name, value in case.tensors:
        kind, _, rest = value.partition(":")
        words, _, dtype = rest.partition(":")
        if kind not in ("randn", "times"):
            tensors[name] = torch.tensor(float(value), dtype=torch.float32, device=device)
            continue
        shape = tuple(size_of(word, case) for word in words.split(","))
        if kind == "times":
            if shape not in times:
                times[shape] = random_times(shape, generator, device)
            tensors[name] = times[shape]
        else:
            numbers = torch.randn(shape, generator=generator, device=device)
            tensors[name] = numbers.to(getattr(torch, dtype or "float32"))
    return tensors


def size_of(word: str, case: Case) -> int:
    """Returns the size of an axis: a number, or a size of the case by its name."""
    sizes = {
        "batch": len(case.lengths_q),
        "heads": case.heads,
        "length_q": max(case.lengths_q),
        "length_k": max(case.lengths_k),
        "tokens_q": case.rows_q,
        "tokens_k": case.rows_k,
    }
    return sizes[word] if word in sizes else int(word)


def random_times(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    """Returns int64 seconds that increase by log-normal gaps and begin again before TIMES_END."""
    normal = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)
    gaps = (MEAN_OF_LOG + DEVIATION_OF_LOG * normal).exp().clamp(max=TIMES_END)
    return gaps.long().flatten().cumsum(0).remainder(TIMES_END).view(shape)


def params_of(case: Case, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors that the function of the case reads. A tensor whose gradient is wanted is a leaf."""
    return {
        name: tensors[name].detach().requires_grad_(case.wants_gradient(name) and tensors[name].is_floating_point())
        for name in case.names_read
    }
