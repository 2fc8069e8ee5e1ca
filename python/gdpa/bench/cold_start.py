"""Measures the time from the first call of a new function to its gradient, in this process, and prints the seconds.

`figures` runs `python -m gdpa.bench.cold_start DEVICE` with GDPA_CACHE_DIR set to a separate folder.
"""

from __future__ import annotations

import sys
import time

import torch

import gdpa

ACTIVATION = "s * sigmoid(1.6180 * s)"
LENGTH = 256


def first_gradient(device: torch.device) -> float:
    """Returns the seconds of one forward and backward call. PyTorch has computed a gradient on the device before."""
    operands = torch.randn(3, LENGTH, 4, 128, device=device).bfloat16().unbind()
    query, key, value = (operand.detach().requires_grad_() for operand in operands)
    grad_output = torch.ones_like(query)
    offsets = torch.tensor([0, LENGTH], device=device)
    torch.autograd.grad(query * key, (query, key), grad_output)
    torch.cuda.synchronize()
    start = time.perf_counter()
    output = gdpa.varlen_attention(query, key, value, offsets, offsets, activation=ACTIVATION)
    torch.autograd.grad(output, (query, key, value), grad_output)
    torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    device = torch.device(sys.argv[1])
    torch.cuda.set_device(device.index or 0)
    print(first_gradient(device))
