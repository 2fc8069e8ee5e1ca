"""A failed allocation raises PyTorch's own error, which programs look for to try again with a smaller batch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulated_gpu
import pytest
import torch
from torch import Tensor

import gdpa
from gdpa._errors import translated

HEADS, D = 2**17, 8
EMPTY = torch.tensor([0, 0])
WORDS = r"DefaultCPUAllocator: can't allocate memory: you tried to allocate \d+ bytes"


def attend(query: Tensor, key: Tensor) -> Tensor:
    return gdpa.varlen_attention(query, key, key, EMPTY, EMPTY, activation="silu")


def rows(count: int = 1) -> Tensor:
    """Rows that occupy the memory of one head. The sequences have none of them, so nothing is computed."""
    return torch.zeros(1, 1, D).expand(count, HEADS, D)


@pytest.mark.parametrize("function", [attend, torch.compile(attend, backend="aot_eager", fullgraph=True)])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_an_output_without_memory_is_pytorchs_error(function: Callable[..., Tensor], mode: Callable[..., Any]) -> None:
    with mode(), pytest.raises(RuntimeError, match=WORDS):
        function(rows(2**38), rows())
    with pytest.raises(RuntimeError, match=WORDS):
        function(rows(2**38).requires_grad_(), rows())


@pytest.mark.parametrize("function", [attend, torch.compile(attend, backend="aot_eager", fullgraph=True)])
def test_a_gradient_without_memory_is_pytorchs_error(function: Callable[..., Tensor]) -> None:
    output = function(rows(), rows(2**38).requires_grad_())
    with pytest.raises(RuntimeError, match=WORDS):
        output.sum().backward()


def test_the_error_of_a_gpu_has_the_type_and_the_words_of_pytorch() -> None:
    error = translated(RuntimeError("[OutOfMemoryError] CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert type(error) is torch.OutOfMemoryError is torch.cuda.OutOfMemoryError
    assert error.args == ("CUDA out of memory. Tried to allocate 2.00 GiB.",)
    assert translated(error) is error


def run_on_gpu() -> None:
    """Prints the errors of calls for which PyTorch has no memory. Its process has the GPU."""
    emulated_gpu.start()
    rows = emulated_gpu.to_gpu(torch.randn(16, 2, 64, dtype=torch.float16))
    offsets = emulated_gpu.to_gpu(torch.tensor([0, 16]))
    buffer, x = torch.empty_like(rows), emulated_gpu.to_gpu(torch.randn(4, 64))
    empty, counts = emulated_gpu.empty, {"left": 0}

    def exhausted(sizes: Any, dtype: torch.dtype | None = None) -> Tensor:
        if counts["left"] == 0:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {tuple(sizes)}.")
        counts["left"] -= 1
        return empty(sizes, dtype)

    emulated_gpu.empty = exhausted
    arguments: dict[str, Any] = {"cu_seq_q": offsets, "cu_seq_k": offsets, "activation": "silu"}
    calls: dict[str, Callable[[], object]] = {
        "forward": lambda: gdpa.varlen_attention(rows, rows, rows, **arguments),
        "backward": lambda: gdpa.varlen_attention_backward(rows, rows, rows, rows, **arguments, grad_query=buffer),
        "norm": lambda: gdpa.nn.functional.layer_norm(x),
    }
    for name, call in calls.items():
        for allocations in range(4):  # that succeed before one fails
            counts["left"] = allocations
            try:
                call()
            except torch.OutOfMemoryError as error:
                print(name, allocations, "CUDA out of memory. Tried to allocate" in str(error))


def test_the_operators_for_cuda_raise_the_error_of_pytorchs_allocator(tmp_path: Path) -> None:
    if why := emulated_gpu.missing():
        pytest.skip(why)
    program = "import torch, gdpa, test_out_of_memory; test_out_of_memory.run_on_gpu()"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, env=emulated_gpu.environment(tmp_path),
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = [line.split() for line in run.stdout.splitlines()]
    # The output; two gradients of tensors, which are empty, and the workspace; the norm and its statistics.
    fail = [("forward", 1), ("backward", 3), ("norm", 2)]
    assert found == [[name, str(n), "True"] for name, count in fail for n in range(count)]
