"""Jagged batches as rows and offsets. No function reads a number from the device, so none waits for it.

Rows before the first offset and after the last offset belong to no sequence. Every function keeps them and gives them
to no sequence.
"""

from typing import Any

import torch
from torch import Tensor

from gdpa._attention import nested_like


def unpacked(name: str, x: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the rows (T, D) and the offsets (B + 1) of a jagged batch.

    Args:
        name: the name of the argument, for errors.
        x: rows (T, D), or a nested tensor (B, ragged, D).
        cu_seqlens: the offsets of rows, or None for a nested tensor.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected Tensor, got {type(x).__name__}; convert it")
    if x.is_nested:
        jagged: Any = x
        if cu_seqlens is not None:
            raise ValueError(f"cu_seqlens: expected None with a nested {name}, got offsets; omit them")
        if x.layout != torch.jagged or x.dim() != 3 or jagged._ragged_idx != 1 or jagged.lengths() is not None:
            raise ValueError(
                f"{name}: expected a nested tensor of layout torch.jagged and shape (batch, ragged, D) without holes, "
                f"got layout {x.layout} and {x.dim()} dimensions; build it with torch.nested.nested_tensor_from_jagged"
            )
        return jagged.values(), jagged.offsets()
    if x.dim() != 2:
        raise ValueError(f"{name}: expected rows of shape (T, D), got {tuple(x.shape)}; join the batch and the rows")
    if cu_seqlens is None:
        raise ValueError(f"cu_seqlens: expected the offsets of the rows of {name}, got None; pass (B + 1) offsets")
    return x, cu_seqlens


def packed_like(x: Tensor, rows: Tensor) -> Tensor:
    """Returns the rows as a nested tensor with the lengths of x if x is nested, and else the rows themselves."""
    return nested_like(x, rows) if x.is_nested else rows


def check_batch(name: str, x: Tensor, cu_seqlens: Tensor) -> None:
    """Refuses a tensor (B, n, D) whose B is not the number of sequences, as with the offsets of another batch."""
    batch = cu_seqlens.shape[0] - 1

    def refusal() -> str:
        return (
            f"{name}: expected shape (B, n, D) with B = {batch}, the number of sequences, got {tuple(x.shape)}; pass "
            "the offsets of this batch"
        )

    if _is_exported():  # the program checks a size that the trace does not know
        torch._check_value(x.dim() == 3 and x.shape[0] == batch, refusal)
    elif x.dim() != 3 or x.shape[0] != batch:
        raise ValueError(refusal())


def _is_exported() -> bool:
    """Returns whether torch.export runs this code with symbolic sizes. With strict=True, TorchDynamo reads it."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def exported_batch(cu_seqlens: Tensor) -> Any:
    """Returns the number of sequences as a dimension in a program of torch.export, or None for the size itself.

    PyTorch assumes that no dimension is 1. The size of cu_seqlens is at least 2, but a dimension that is one less may
    be 1: the program then refuses one sequence, or takes no other number if the example has one sequence. PyTorch
    assumes nothing about a number that the program reads from a tensor.

    None: in eager and compiled code; with strict=True; if the number of sequences is a dimension of another input; and
    with the setting backed_size_oblivious, with which PyTorch assumes nothing.
    """
    batch: Any = cu_seqlens.shape[0] - 1
    is_derived = _is_exported() and isinstance(batch, torch.SymInt) and not batch.node.expr.is_Symbol
    if not is_derived or torch.fx.experimental._config.backed_size_oblivious:
        return None
    size = torch.full((), batch, dtype=torch.int64, device="cpu").item()
    torch._check(size > 0)
    return size


def sequence_of_rows(rows: int, cu_seqlens: Tensor) -> Tensor:
    """Returns the number of sequences that begin at or before each row (rows,): 1 in the first sequence, 0 before."""
    positions = torch.arange(rows, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    return torch.searchsorted(cu_seqlens[:-1].contiguous(), positions, right=True)


def prepend(tokens: Tensor, rows: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Puts the n tokens (B, n, D) of each sequence before its rows. Returns the rows (T + B n, D) and their offsets."""
    batch, count = tokens.shape[:2]
    device, dtype = cu_seqlens.device, cu_seqlens.dtype
    shift = count * torch.arange(batch + 1, device=device, dtype=dtype)
    of_tokens = (cu_seqlens + shift)[:-1, None] + torch.arange(count, device=device, dtype=dtype)
    of_rows = torch.arange(rows.shape[0], device=device) + count * sequence_of_rows(rows.shape[0], cu_seqlens)
    target = torch.cat([of_tokens.reshape(-1).long(), of_rows.long()])
    source = torch.cat([tokens.flatten(0, 1).to(rows.dtype), rows])
    return torch.empty_like(source).index_copy(0, target, source), cu_seqlens + shift


def first_rows(rows: Tensor, cu_seqlens: Tensor, count: int) -> Tensor:
    """Returns the first rows of each sequence (B, count, D). Rows that a short sequence lacks are 0."""
    at = cu_seqlens[:-1, None] + torch.arange(count, device=cu_seqlens.device)
    return _rows_at(rows, at, at < cu_seqlens[1:, None])


def last_rows(rows: Tensor, cu_seqlens: Tensor, count: int) -> Tensor:
    """Returns the last rows of each sequence (B, count, D), the newest last. Rows that a short sequence lacks are 0."""
    at = cu_seqlens[1:, None] - count + torch.arange(count, device=cu_seqlens.device)
    return _rows_at(rows, at, at >= cu_seqlens[:-1, None])


def _rows_at(rows: Tensor, at: Tensor, exists: Tensor) -> Tensor:
    # A row of zeros comes first, because a batch without events has no row that a missing row could read.
    padded = torch.cat([rows.new_zeros(1, rows.shape[-1]), rows])
    return padded[torch.where(exists, at + 1, 0).long()]
