"""PyTorch's own error where a GPU has too little memory, and calls that succeed after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import gdpa

HEADS, D = 2**17, 8


@pytest.fixture(autouse=True)
def without_limit() -> Iterator[None]:
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def attend(query: Tensor, key: Tensor) -> Tensor:
    empty = torch.zeros(2, dtype=torch.int64, device=query.device)
    return gdpa.varlen_attention(query, key, key, empty, empty, activation="silu")


# Inductor has no kernel for a tensor of this size.
compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)


def rows(count: int = 1) -> Tensor:
    """Rows that occupy the memory of one head. The sequences have none of them."""
    return torch.zeros(1, 1, D, dtype=torch.bfloat16).expand(count, HEADS, D)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_an_output_without_memory_is_pytorchs_error(is_compiled: bool, requires_grad: bool) -> None:
    function = compiled if is_compiled else attend
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"^CUDA out of memory. Tried to allocate"):
        function(rows(2**29).requires_grad_(requires_grad), rows())
    assert function(rows(), rows()).shape == (1, HEADS, D)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_gradient_without_memory_is_pytorchs_error(is_compiled: bool) -> None:
    function = compiled if is_compiled else attend
    output = function(rows(), rows(2**29).requires_grad_())
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"^CUDA out of memory. Tried to allocate"):
        output.sum().backward()


def test_every_allocation_of_a_step_raises_pytorchs_error_or_succeeds() -> None:
    """A falling limit stops each allocation once: the output, the gradients and the workspace.

    PyTorch gives each tensor of 32 MiB memory of its own, so that no earlier tensor leaves room.
    """
    rows = 32768
    operands = [torch.randn(rows, 8, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    cu = torch.arange(0, rows + 1, 2048)

    def step() -> list[Tensor]:
        output = gdpa.varlen_attention(*operands, cu, cu, activation="silu")
        return [output.detach(), *torch.autograd.grad(output, operands, torch.ones_like(output))]

    expected = [one.clone() for one in step()]
    total = torch.cuda.get_device_properties(operands[0].device).total_memory
    results: set[type] = set()
    for extra in range(640, 0, -16):
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + extra * 2**20) / total)
        try:
            step()
            results.add(type(None))
        except torch.cuda.OutOfMemoryError as error:
            assert str(error).startswith("CUDA out of memory."), error
            results.add(type(error))
    assert results == {type(None), torch.cuda.OutOfMemoryError}
    torch.cuda.set_per_process_memory_fraction(1.0)
    for one, other in zip(step(), expected, strict=True):
        torch.testing.assert_close(one, other)
