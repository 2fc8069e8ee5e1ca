"""Loads the operators. torch/operators.cpp defines their schemas and checks in C++."""

from collections import namedtuple
from pathlib import Path
from typing import Any, NamedTuple

import torch

import gdpa
from gdpa._errors import translating

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


_load()

#: Among the names of the tensors of the call: the tensor that multiplies the score (gdpa::Activation::score_factor in
#: C++).
SCORE_FACTOR = "factor of s"

forward = torch.ops.gdpa.forward.default
backward = torch.ops.gdpa.backward.default
backward_out = torch.ops.gdpa.backward_out.default
flops = torch.ops.gdpa.flops.default
compile_kernels = translating(torch.ops.gdpa.compile.default)
prepare_lists = translating(torch.ops.gdpa.prepare_mask.default)
describe_activation = translating(torch.ops.gdpa.activation.default)
describe_text = translating(torch.ops.gdpa.describe.default)


def _record_of(operator: Any) -> Any:
    return namedtuple("Problem", [argument.name for argument in operator._schema.arguments])


#: The arguments that describe a call, by name: all of forward's, and the first ones of the other operators.
Problem = _record_of(forward)


def divided(arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Returns the problem of an operator's arguments, and the arguments after it."""
    count = len(Problem._fields)
    return Problem(*arguments[:count]), arguments[count:]


class Wanted(NamedTuple):
    """The gradients that backward computes. PyTorch drops trailing arguments that are equal to these defaults."""

    query: bool = True
    key: bool = True
    value: bool = True
    parameters: int = 0  #: of the tensors of the call (bit n: tensor n)
    out_scale: bool = False  #: of the rows of out_scale
