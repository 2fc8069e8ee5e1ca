"""Three operators of FBGEMM for jagged tensors in plain PyTorch, for tests on a machine without FBGEMM."""

from __future__ import annotations

import torch
from torch import Tensor

SCHEMAS = {
    "asynchronous_complete_cumsum": "(Tensor t_in) -> Tensor",
    "jagged_to_padded_dense": (
        "(Tensor values, Tensor[] offsets, SymInt[] max_lengths, float padding_value=0.) -> Tensor"
    ),
    "dense_to_jagged": "(Tensor dense, Tensor[] x_offsets, SymInt? total_L=None) -> (Tensor, Tensor[])",
}


def asynchronous_complete_cumsum(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(lengths.dtype)


def places(offsets: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Returns for each row of a jagged tensor its row of the padded tensor, and whether that row exists."""
    lengths = offsets.diff().long()
    sequence = torch.repeat_interleave(torch.arange(len(lengths), device=offsets.device), lengths)
    position = torch.arange(len(sequence), device=offsets.device) - offsets[:-1].long()[sequence]
    return sequence * most + position, position < most


def jagged_to_padded_dense(
    values: Tensor, offsets: list[Tensor], max_lengths: list[int], padding_value: float = 0.0
) -> Tensor:
    (most,), (of_rows,) = max_lengths, offsets
    batch = of_rows.shape[0] - 1
    place, exists = places(of_rows, most)
    rows = values[: len(place)][exists]
    padded = values.new_full((batch * most, *values.shape[1:]), padding_value).index_copy(0, place[exists], rows)
    return padded.view(batch, most, *values.shape[1:])


def dense_to_jagged(dense: Tensor, x_offsets: list[Tensor], total_L: int | None = None) -> tuple[Tensor, list[Tensor]]:
    (of_rows,) = x_offsets
    most = dense.shape[1]
    place, exists = places(of_rows, most)
    rows = dense.flatten(0, 1)[place.clamp(max=max(dense.shape[0] * most - 1, 0))]
    return torch.where(exists.view(-1, *[1] * (rows.dim() - 1)), rows, 0), x_offsets


def index_select(values: Tensor, index: Tensor, use_sorted: bool = False) -> Tensor:
    """torchrec's maybe_sorted_index_select, whose second form is only faster."""
    return values.index_select(0, index)


_library: list[torch.library.Library] = []


def register() -> list[str]:
    """Registers the operators that PyTorch does not have. Returns their names."""
    library = torch.library.Library("fbgemm", "FRAGMENT")
    missing = [name for name in SCHEMAS if not hasattr(torch.ops.fbgemm, name)]
    for name in missing:
        library.define(f"{name}{SCHEMAS[name]}")
        library.impl(name, globals()[name], "CompositeImplicitAutograd")
    _library.append(library)
    return missing
