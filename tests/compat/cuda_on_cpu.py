"""Makes the CPU answer to the name cuda, so that tests with device="cuda" run without a GPU.

Tensors for "cuda" are made on the CPU, and `is_cuda` of a tensor is True for the code of a checkout. gdpa and PyTorch
see the CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_is_cuda = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_cuda = torch.Tensor.cuda


class CudaOnCpu(TorchFunctionMode):
    """Replaces the device of each call. `folder` is the checkout whose code sees CUDA tensors."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = str(folder)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is _cuda:
            return args[0]
        if function == _is_cuda:
            return self.is_called_by_the_checkout() or function(*args)
        replaced = {name: _on_cpu(one) for name, one in (kwargs or {}).items()}
        return function(*[_on_cpu(one) for one in args], **replaced)

    def is_called_by_the_checkout(self) -> bool:
        return sys._getframe(2).f_code.co_filename.startswith(self.folder)


def _on_cpu(argument: Any) -> Any:
    if isinstance(argument, torch.device):
        return torch.device("cpu") if argument.type == "cuda" else argument
    return "cpu" if isinstance(argument, str) and argument.partition(":")[0] == "cuda" else argument


def pretend(folder: Path, capability: tuple[int, int]) -> None:
    """Enters the mode until the process ends, and answers the questions of torch.cuda."""
    properties = SimpleNamespace(
        major=capability[0], minor=capability[1], multi_processor_count=1, name="CPU", total_memory=2**34
    )
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_: capability,
        "get_device_properties": lambda *_: properties,
        "get_device_name": lambda *_: "CPU",
        "synchronize": lambda *_: None,
        "memory_reserved": lambda *_: 0,
        "empty_cache": lambda: None,
        "manual_seed_all": lambda *_: None,
        "manual_seed": lambda *_: None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    CudaOnCpu(folder).__enter__()
