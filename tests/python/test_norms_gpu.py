"""The operators of norms for CUDA, on the emulated GPU, against operations of PyTorch in values and gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import emulated_gpu
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

ROWS, COLUMNS, EPS = 5, 256, 1e-3
NAMES = ("x", "weight", "bias", "gate", "residual")


def operands() -> list[Tensor]:
    """Different numbers in each operand, so that no result is that of another one."""
    shapes = [(ROWS, COLUMNS), (COLUMNS,), (COLUMNS,), (ROWS, COLUMNS), (ROWS, COLUMNS)]
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) + n / 4 for n, shape in enumerate(shapes)]


WANTED = ((True, True, True, True), (False, True, False, False))


def run_on_gpu(file: str) -> None:
    """Runs the operators on the operands in the file, and writes their results into it. Its process has the GPU."""
    emulated_gpu.start()
    grad, *given = (emulated_gpu.to_gpu(one) for one in torch.load(file))
    results = [torch.ops.gdpa.norm(*given, True, EPS)]
    results += [torch.ops.gdpa.norm_backward(grad, results[0][1], *given, True, EPS, *wanted) for wanted in WANTED]
    torch.save([[emulated_gpu.to_host(one) for one in each] for each in results], file)


def agree(got: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5, msg=lambda why: f"{what}: {why}")


def test_the_operators_for_cuda_compute_the_norm_and_each_wanted_gradient(tmp_path: Path) -> None:
    if why := emulated_gpu.missing():
        pytest.skip(why)
    file = tmp_path / "tensors.pt"
    grad = torch.linspace(-1, 2, ROWS * COLUMNS).view(ROWS, COLUMNS)
    torch.save([grad, *operands()], file)
    program = f"import torch, gdpa, test_norms_gpu; test_norms_gpu.run_on_gpu({str(file)!r})"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, env=emulated_gpu.environment(tmp_path),
        stderr=subprocess.PIPE, text=True, timeout=280,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    (y, statistics), *gradients = torch.load(file)

    x, weight, bias, gate, residual = leaves = [one.double().requires_grad_() for one in operands()]
    expected = F.layer_norm(x, (COLUMNS,), weight, bias, EPS) * gate + residual
    agree(y, expected.detach(), "y")
    agree(statistics[:, 0], x.detach().mean(-1), "mean")
    agree(statistics[:, 1], (x.detach().var(-1, correction=0) + EPS).rsqrt(), "rstd")
    exact = dict(zip(NAMES, torch.autograd.grad(expected, leaves, grad.double()), strict=True))
    for wanted, got in zip(WANTED, gradients, strict=True):
        for name, gradient, is_wanted in zip(NAMES, got, wanted, strict=False):
            agree(gradient, exact[name] if is_wanted else torch.empty(0).double(), f"gradient of {name} for {wanted}")
