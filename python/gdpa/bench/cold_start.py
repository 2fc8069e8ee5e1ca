"""Measures the time from the first call of a new function to its gradient, in this process, and prints a JSON object.

``--figures`` runs ``python -m gdpa.bench.cold_start`` with GDPA_CACHE_DIR set to a separate folder.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

import gdpa

ACTIVATION = "s * sigmoid(1.6180 * s)"
LENGTH = 256


def first_gradient(device: torch.device, activation: str) -> float:
    """Returns the seconds of one forward and backward call. PyTorch has computed a gradient on the device before."""
    operands = torch.randn(3, LENGTH, 4, 128, device=device).bfloat16().unbind()
    query, key, value = (operand.detach().requires_grad_() for operand in operands)
    grad_output = torch.ones_like(query)
    offsets = torch.tensor([0, LENGTH], device=device)
    torch.autograd.grad(query * key, (query, key), grad_output)
    torch.cuda.synchronize()
    start = time.perf_counter()
    output = gdpa.varlen_attention(query, key, value, offsets, offsets, activation=activation)
    torch.autograd.grad(output, (query, key, value), grad_output)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gdpa.bench.cold_start", description=__doc__)
    parser.add_argument("--device", default="cuda", metavar="NAME", help="cuda or cuda:N (cuda)")
    parser.add_argument("--activation", default=ACTIVATION, metavar="F", help=f"the function ({ACTIVATION})")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.cuda.set_device(device.index or 0)
    print(json.dumps({"seconds": first_gradient(device, options.activation)}))


if __name__ == "__main__":
    main()
