"""Loads the operators. torch/operators.cpp defines their schemas and checks in C++."""

from importlib import metadata
from pathlib import Path

import torch

import gdpa

# An editable installation has two folders, one with sources and one with built files.
_package_folders: list[str] = list(gdpa.__path__)


def _load() -> None:
    candidates = [Path(folder) / "lib" / "libgdpa_torch.so" for folder in _package_folders]
    for candidate in candidates:
        if candidate.is_file():
            torch.ops.load_library(candidate)
            return
    tried = ", ".join(str(candidate) for candidate in candidates)
    raise ImportError(
        f"gdpa: expected the operators at {tried}, found none; install the package with pip instead of importing "
        "its source folder"
    )


def version() -> str:
    """Returns the version of the installed package."""
    return metadata.version("gdpa")


_load()

#: Between the two parts of the operators' argument `activation`: the text, and the names of the tensors of the call.
PART_SEPARATOR = "\x1f"

#: Among these names: the tensor that multiplies the score (gdpa::Activation::score_factor in C++).
SCORE_FACTOR = "factor of s"

forward = torch.ops.gdpa.forward.default
backward = torch.ops.gdpa.backward.default
backward_out = torch.ops.gdpa.backward_out.default
flops = torch.ops.gdpa.flops.default
compile_kernels = torch.ops.gdpa.compile.default
prepare_lists = torch.ops.gdpa.prepare_mask.default
describe_activation = torch.ops.gdpa.activation.default
