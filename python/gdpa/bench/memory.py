"""Measures the peak memory of a call on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

USED_AT_PEAK = 8  # CU_MEMPOOL_ATTR_USED_MEM_HIGH


def memory_beyond(call: Callable[[], Sequence[torch.Tensor]]) -> int:
    """Returns the peak bytes of a call without its results, from PyTorch's allocator and from the driver's pool.

    The pool of cuMemAllocAsync holds gdpa's workspaces. PyTorch's counters do not include this pool.
    """
    driver, pool, peak = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()

    def check(status: int) -> None:
        if status != 0:
            raise RuntimeError(f"the driver did not return the size of its memory pool: error {status}")

    check(driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), torch.cuda.current_device()))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    check(driver.cuMemPoolSetAttribute(pool, USED_AT_PEAK, ctypes.byref(ctypes.c_uint64(0))))
    before = torch.cuda.memory_allocated()
    results = call()
    torch.cuda.synchronize()
    results_bytes = sum(result.untyped_storage().nbytes() for result in results)
    check(driver.cuMemPoolGetAttribute(pool, USED_AT_PEAK, ctypes.byref(peak)))
    return torch.cuda.max_memory_allocated() - before - results_bytes + peak.value
