"""Loads the operators. torch/operators.cpp defines their schemas and checks in C++."""

from importlib import metadata
from pathlib import Path
from typing import Any

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

#: Among the names of the tensors of the call: the tensor that multiplies the score (gdpa::Activation::score_factor in
#: C++).
SCORE_FACTOR = "factor of s"

forward = torch.ops.gdpa.forward.default
backward = torch.ops.gdpa.backward.default
backward_out = torch.ops.gdpa.backward_out.default
flops = torch.ops.gdpa.flops.default
compile_kernels = torch.ops.gdpa.compile.default
prepare_lists = torch.ops.gdpa.prepare_mask.default
describe_activation = torch.ops.gdpa.activation.default
describe_text = torch.ops.gdpa.describe.default

#: The names of the arguments that describe a call: all of forward's, and the first ones of the other operators.
PROBLEM = tuple(argument.name for argument in forward._schema.arguments)

#: The gradients that backward computes: of query, key and value, of the tensors of the call (bit n: tensor n), and of
#: the rows of out_scale.
Wanted = tuple[bool, bool, bool, int, bool]


def wanted_gradients(flags: tuple[Any, ...]) -> Wanted:
    """Returns the wanted gradients of a call. PyTorch drops trailing arguments that are equal to their defaults."""
    every_operand: tuple[Any, ...] = (True, True, True, 0, False)
    query, key, value, parameters, out_scale = flags + every_operand[len(flags) :]
    return query, key, value, parameters, out_scale
