"""A long training run on a GPU: new numbers in the tensors that a function reads compile nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import gdpa
from gdpa import _compilation

BUCKETS = "silu(s + w[head, clamp(floor(log2(1 + abs(t[q_idx] - t[kv_idx]))), 0, 63)])"
FUNCTIONS = {
    "numbers": ("a * s * sigmoid(b * s)", {"a": (2,), "b": ()}),
    "table": ("silu(s + table[head, clamp(q_idx - kv_idx, 0, 127)])", {"table": (2, 128)}),
    "buckets": (BUCKETS, {"w": (2, 64)}),
}


def train(name: str, cache: Path) -> None:
    """Takes 10,000 optimiser steps with an empty cache of kernels. Only the first step may add files to the cache."""
    text, shapes = FUNCTIONS[name]
    cu_seqlens = torch.tensor([0, 60, 60, 91, 191])
    query, key, value = (torch.randn(191, 2, 64).bfloat16().requires_grad_() for _ in range(3))
    learned = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    times = {"t": torch.randint(0, 10**6, (191,)).cumsum(0)} if name == "buckets" else {}
    first = [number.detach().clone() for number in learned.values()]
    optimiser = torch.optim.SGD(learned.values(), lr=1e-6)
    keywords = {"activation": text, "params": learned | times}

    def kernels_after(steps: int) -> list[str]:
        """Takes these steps. Returns the files of the cache."""
        for _ in range(steps):
            optimiser.zero_grad()
            gdpa.varlen_attention(query, key, value, cu_seqlens, cu_seqlens, **keywords).square().sum().backward()
            optimiser.step()
        torch.cuda.synchronize()
        end = time.monotonic() + 60
        while _compilation._running and time.monotonic() < end:
            time.sleep(0.01)
        return sorted(file.name for file in cache.iterdir())

    after_one_step = kernels_after(1)
    assert after_one_step, "expected the kernels of a step in the cache, got none"
    new = set(kernels_after(9_999)) - set(after_one_step)
    assert not new, f"expected the files {after_one_step}, got in addition {sorted(new)}"
    unchanged = [name for old, (name, number) in zip(first, learned.items(), strict=True) if torch.equal(old, number)]
    assert not unchanged, f"expected that training changes {unchanged}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_ten_thousand_optimiser_steps_compile_nothing_after_the_first_step(name: str, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import torch; "
        "torch.set_default_device('cuda'); import test_training; test_training.train(sys.argv[2], Path(sys.argv[3]))"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent), name, str(tmp_path)]
    ended = subprocess.run(
        command, env={**os.environ, "GDPA_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
