"""Settings of the GPU tests, which need a GPU: tensors are made on its current device where no other is named."""

import sys
from pathlib import Path

import pytest
import torch

# The reference is the CPU tests' own.
sys.path.insert(0, str(Path(__file__).parents[1] / "python"))


@pytest.fixture(autouse=True)
def _on_the_gpu():  # type: ignore[no-untyped-def]
    with torch.device("cuda"):
        yield
