"""Settings of the GPU tests: tensors are created on the current GPU unless a test names another device."""

import sys
from pathlib import Path

import pytest
import torch

# The GPU tests use the reference of the CPU tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "python"))


@pytest.fixture(autouse=True)
def _on_the_gpu():  # type: ignore[no-untyped-def]
    with torch.device("cuda"):
        yield
