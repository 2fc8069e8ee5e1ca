"""Tensors of PyTorch on the emulated GPU of tests/emulator, whose memory is host memory.

gdpa's operators for CUDA run on them with the real dispatcher and the real kernels. PyTorch itself computes nothing on
this GPU, and its autograd, which would start a thread for the GPU, does not run in the process. A process needs the
variables of `environment` from its start, and calls `start` before it makes a tensor.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
EMULATOR = Path(os.environ.get("GDPA_BUILD", ROOT / "build")) / "tests" / "emulator"
GPU = torch.device("cuda", 0)

# PyTorch asks the CUDA runtime for its current stream, and the runtime needs more of a driver than the emulator has.
# These functions of libc10_cuda return the default stream instead.
STREAM = r"""
struct Stream { signed char kind, device; long long id; };
extern "C" Stream current(signed char device) __asm__("_ZN3c104cuda20getCurrentCUDAStreamEa");
extern "C" Stream current(signed char device) { return {1, device, 0}; }
extern "C" void* handle(const void*) __asm__("_ZNK3c104cuda10CUDAStream6streamEv");
extern "C" void* handle(const void*) { return nullptr; }
"""

_library: torch.library.Library
_driver: ctypes.CDLL


def missing() -> str | None:
    """Returns what a process needs and does not find, or None."""
    if not (EMULATOR / "driver" / "libcuda.so.1").is_file():
        return "needs a finished build of the tests: cmake --build build"
    if _nvrtc() is None:
        return "needs the oldest supported NVRTC: make setup"
    return None if torch.version.cuda else "needs a PyTorch with CUDA"


def _nvrtc() -> str | None:
    given = os.environ.get("GDPA_OLDEST_NVRTC")
    found = ROOT.glob(".venv-nvrtc/lib/python3*/site-packages/nvidia/cu13/lib")
    return given or next(map(str, found), None)


def environment(folder: Path) -> dict[str, str]:
    """Returns the variables of a process. `folder` gets a library. The kernels are in the cache of the emulator."""
    stream = folder / "stream.so"
    compiler = os.environ.get("CXX") or "c++"
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o", stream], input=STREAM, text=True, check=True)
    libraries = f"{EMULATOR / 'driver'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return os.environ | {
        "LD_PRELOAD": str(stream),
        "LD_LIBRARY_PATH": libraries,
        "GDPA_NVRTC": str(EMULATOR / "compiler" / "libnvrtc.so.13"),
        "GDPA_OLDEST_NVRTC": str(_nvrtc()),
        "GDPA_CACHE_DIR": str(EMULATOR / "cache"),
    }


def start() -> None:
    """Lets PyTorch make tensors in the memory of the emulated GPU."""
    global _library, _driver
    torch.cuda._lazy_init = lambda: None  # the CUDA runtime does not start
    _driver = ctypes.CDLL("libcuda.so.1")
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("empty.memory_format", lambda sizes, dtype=None, **_: empty(sizes, dtype), "CUDA")
    _library.impl("empty_strided", lambda sizes, strides, dtype=None, **_: empty(sizes, dtype), "CUDA")


def empty(sizes: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Returns a contiguous tensor of NaN."""
    like = torch.empty(sizes, dtype=dtype, device="meta")
    size, address = like.untyped_storage().nbytes(), ctypes.c_uint64()
    status = _driver.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(max(size, 1)), None)
    assert status == 0, f"cuMemAllocAsync answered {status}"
    storage = torch._C._construct_storage_from_data_pointer(address.value, GPU, size)
    metadata = {
        "nbytes": size, "data_ptr": address.value, "size": like.shape, "stride": like.stride(), "dtype": like.dtype,
        "device": GPU, "storage_offset": 0,
    }  # fmt: skip
    return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(metadata, storage)


def to_gpu(tensor: Tensor) -> Tensor:
    copy = empty(tensor.shape, tensor.dtype)
    ctypes.memmove(copy.data_ptr(), tensor.contiguous().data_ptr(), tensor.nbytes)
    return copy


def to_host(tensor: Tensor) -> Tensor:
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    assert tensor.is_contiguous()
    ctypes.memmove(copy.data_ptr(), tensor.data_ptr(), copy.nbytes)
    return copy
