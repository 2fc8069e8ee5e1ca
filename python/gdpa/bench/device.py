"""The measured device: its choice, its name, the timing of calls, its rates, and the memory of a call.

Only this module chooses between the processor and a GPU. The demonstration also uses it.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch

from gdpa.bench import command

PRODUCT_SIZE = 8192  # the size of the square cuBLAS product with which GPU rates are compared
COPIED_BYTES = 2**30
QUEUED_CALLS = 500  # the most calls before their times are read
USED_AT_PEAK = 8  # CU_MEMPOOL_ATTR_USED_MEM_HIGH


@dataclass(frozen=True)
class Work:
    """A timed call. `run` receives the result of `prepare`, and only `run` is timed."""

    run: Callable[[Any], object]
    prepare: Callable[[], Any] = lambda: None


@dataclass(frozen=True)
class Product:
    """A large product of two matrices, which alternates with the measured calls."""

    work: Work
    flops: float


@dataclass(frozen=True)
class Rates:
    """The rates of the device, measured in this run: FLOP/s of products and bytes/s of copies."""

    product_flops: float
    copy_bytes: float


class Device:
    """The processor. `Gpu` replaces every answer that differs on a GPU."""

    torch_device = torch.device("cpu")
    seconds = 0.5  # the default time for each figure, over all rounds

    def describe(self) -> str:
        """The name of the device in a row: the processor and the number of threads, in the form of `gdpa bench`."""
        described = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in described if line.startswith("model name")), "cpu")
        threads = torch.get_num_threads()
        return f"{model}, {threads} thread{'' if threads == 1 else 's'}"

    def call_times(self, work: Work, calls: int) -> list[float]:
        """Returns the seconds of each of `calls` calls, without a warm-up."""
        times: list[float] = []
        for _ in range(calls):
            prepared = work.prepare()
            start = time.perf_counter()
            result = work.run(prepared)
            times.append(time.perf_counter() - start)
            del prepared, result
        return times

    def times(self, work: Work, seconds: float) -> list[float]:
        """Returns the seconds of each call. Repeats the call until the sum reaches `seconds`, at least once."""
        times: list[float] = []
        while sum(times) < seconds or not times:
            times += self.call_times(work, 1)
        return times

    def product(self, dtype: str) -> Product | None:
        """Returns the product with which rates on this device are compared, or None."""
        return None

    def rates(self, dtype: str, product_flops: float | None) -> Rates | None:
        """Returns the rates of this device. `product_flops` is the measured rate of product(), if it exists.

        The processor has the rates of `gdpa doctor --rates` with PyTorch's number of threads, or None without the
        command.
        """
        return processor_rates("float64" if dtype == "float64" else "float32", torch.get_num_threads())

    def duration(self, seconds: float) -> float:
        """Returns the least duration of times()."""
        return seconds

    def release(self) -> None:
        """Releases unused memory for the next problem."""


@cache
def processor_rates(dtype: str, threads: int) -> Rates | None:
    try:
        measured = command.json_of("doctor", "--rates", "--threads", str(threads))["rates"][dtype]
    except command.CommandMissing:
        return None
    return Rates(measured["product_tflops"] * 1e12, measured["copy_gb_per_second"] * 1e9)


class Gpu(Device):
    """A GPU of PyTorch. Calls are queued and timed with events, so the host's part does not count."""

    seconds = 0.9

    def __init__(self, torch_device: torch.device) -> None:
        torch.cuda.set_device(torch_device)
        self.torch_device = torch_device
        self._products: dict[str, Product] = {}
        self._copy_bytes: float | None = None

    def describe(self) -> str:
        return torch.cuda.get_device_name(self.torch_device)

    def times(self, work: Work, seconds: float) -> list[float]:
        """Times calls after a warm-up of the same length, because the clock of a GPU falls under load."""
        begin, latest = time.perf_counter(), 0.0
        while latest == 0.0 or time.perf_counter() - begin < seconds:
            latest = self.call_times(work, 1)[0]
        times: list[float] = []
        while sum(times) < seconds or not times:
            missing = math.ceil((seconds - sum(times)) / latest)
            times += self.call_times(work, min(max(missing, 1), QUEUED_CALLS))
        return times

    def call_times(self, work: Work, calls: int) -> list[float]:
        """Queues all calls before it waits, so at most QUEUED_CALLS."""
        events = []
        for _ in range(calls):
            prepared = work.prepare()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            result = work.run(prepared)
            end.record()
            del prepared, result
            events.append((start, end))
        torch.cuda.synchronize()
        return [max(start.elapsed_time(end) * 1e-3, 1e-9) for start, end in events]

    def duration(self, seconds: float) -> float:
        return 2 * seconds

    def product(self, dtype: str) -> Product:
        """Returns a cuBLAS product of N(0, 1) numbers in the type of the operands."""
        if dtype not in self._products:
            size, element = PRODUCT_SIZE, getattr(torch, dtype)
            left, right = (torch.randn(size, size, device=self.torch_device).to(element) for _ in range(2))
            output = torch.empty_like(left)
            self._products[dtype] = Product(Work(lambda _: torch.mm(left, right, out=output)), 2.0 * size**3)
        return self._products[dtype]

    def rates(self, dtype: str, product_flops: float | None) -> Rates | None:
        return Rates(product_flops, self.copy_bytes()) if product_flops else None

    def copy_bytes(self) -> float:
        """Returns the bytes per second that a large copy reads and writes. The rate is measured once."""
        if self._copy_bytes is None:
            source = torch.randint(255, (COPIED_BYTES,), dtype=torch.uint8, device=self.torch_device)
            target = torch.empty_like(source)
            self._copy_bytes = 2.0 * COPIED_BYTES / median(self.times(Work(lambda _: target.copy_(source)), 0.1))
        return self._copy_bytes

    def release(self) -> None:
        torch.cuda.empty_cache()


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


def choose(wanted: str | None) -> Device:
    """Returns the device of `--device`. The default is a GPU if PyTorch has one, otherwise the processor.

    Raises ValueError for a name other than cpu, cuda and cuda:N, and for a GPU that PyTorch does not have.
    """
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name = wanted or ("cuda" if seen else "cpu")
    if name == "cpu":
        return Device()
    kind, _, index = name.partition(":")
    if kind != "cuda" or (":" in name and not index.isdecimal()):
        raise ValueError(f"--device: expected cpu, cuda or cuda:N; got {name!r}")
    if int(index or 0) >= seen:
        raise ValueError(
            f"--device: expected one of PyTorch's {seen} GPUs; got {name!r}; "
            "pass --device cpu, or run `gdpa doctor` for the reason"
        )
    return Gpu(torch.device("cuda", int(index or 0)))
