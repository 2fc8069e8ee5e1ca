"""The gradient of out_scale with one number for each query, of the operators for CUDA on the emulated GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import emulated_gpu
import pytest
import torch
from reference import offsets
from torch import Tensor

import gdpa

H, D = 2, 64
CU_Q, CU_K = offsets([20, 0, 9]), offsets([12, 3, 18])


def problem(layout: str, dtype: torch.dtype) -> tuple[list[Tensor], Tensor, dict[str, Any]]:
    """Returns query, key, value, the gradient of the output, the numbers, and the layout."""
    generator = torch.Generator().manual_seed(0)
    is_shared = layout == "shared query"
    of_query, of_output = (9, 27) if is_shared else (29, 29)
    shapes = [(rows, H, D) for rows in (of_query, 33, 33, of_output)]
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    arguments: dict[str, Any] = {"cu_seq_q": None if is_shared else CU_Q, "cu_seq_k": CU_K}
    if layout == "output offsets":
        arguments["output_offsets"] = torch.tensor([9, 0, 0])
    return tensors, torch.randn((of_query, 1), generator=generator), arguments


CASES = [("output offsets", torch.bfloat16), ("shared query", torch.float16)]


def run_on_gpu(folder: str) -> None:
    """Writes the output and the gradients of each case to files. Its process has the GPU."""
    emulated_gpu.start()
    for n, (layout, dtype) in enumerate(CASES):
        tensors, numbers, arguments = problem(layout, dtype)
        query, key, value, grad_output = map(emulated_gpu.to_gpu, tensors)
        rows = emulated_gpu.to_gpu(numbers)
        on_gpu = {name: one if one is None else emulated_gpu.to_gpu(one) for name, one in arguments.items()}
        options = {"activation": "silu", "out_scale": rows, **on_gpu}
        output = gdpa.varlen_attention(query, key, value, **options)
        buffers = {f"grad_{name}": torch.empty_like(one) for name, one in (("query", query), ("key", key))}
        gradient = gdpa.varlen_attention_backward(
            grad_output, query, key, value, **options, **buffers, grad_params=["out_scale"]
        )["out_scale"]
        results = [output, *buffers.values(), gradient]
        torch.save([emulated_gpu.to_host(one) for one in results], f"{folder}/{n}.pt")


def test_the_operators_for_cuda_compute_the_gradient_of_the_numbers(tmp_path: Path) -> None:
    if why := emulated_gpu.missing():
        pytest.skip(why)
    program = f"import torch, gdpa, test_row_scale_gpu; test_row_scale_gpu.run_on_gpu({str(tmp_path)!r})"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, env=emulated_gpu.environment(tmp_path),
        stderr=subprocess.PIPE, text=True, timeout=280,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    for n, (layout, dtype) in enumerate(CASES):
        tensors, numbers, arguments = problem(layout, dtype)
        *operands, grad_output = (one.double() for one in tensors)
        leaves = [operands[0].requires_grad_(), operands[1].requires_grad_(), numbers.double().requires_grad_()]
        output = gdpa.varlen_attention(*operands, **arguments, activation="silu", out_scale=leaves[2])
        expected = [output.detach(), *torch.autograd.grad(output, leaves, grad_output)]
        for got, exact in zip(torch.load(tmp_path / f"{n}.pt"), expected, strict=True):
            assert (got.double() - exact).norm() <= 1e-2 * exact.norm(), (layout, got.shape)
