"""One of the two processes of ``--against``. It times the gdpa on its PYTHONPATH through the public API.

The process runs this file as a script and not as a module, because the imported gdpa may be older than this file. It
reads one JSON object in each line of standard input, and answers each object with one line on standard output:

    {"prepare": {lengths_q, lengths_k, shared_q, shared_kv, heads, head_dim, dtype, activation, window, deterministic,
                 gradients}}
    {"time": "fwd" | "bwd", "seconds": S}    ->  {"times": [seconds of each call]}

An answer {"refused": text} says why a call failed.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch

import gdpa

QUEUED_CALLS = 500  # the most calls before the process reads their times


class Problem:
    """The N(0, 1) operands of one case, with a forward call and a backward call."""

    def __init__(self, case: dict[str, Any], device: torch.device) -> None:
        self.case = case
        generator = torch.Generator(device).manual_seed(0)
        dtype = getattr(torch, case["dtype"])

        def normal(lengths: list[int], shared: bool) -> torch.Tensor:
            rows = lengths[0] if shared else sum(lengths)
            numbers = torch.randn(rows, case["heads"], case["head_dim"], generator=generator, device=device)
            return numbers.to(dtype)

        def offsets(lengths: list[int], shared: bool) -> torch.Tensor | None:
            return None if shared else torch.tensor([0, *accumulate(lengths)], device=device)

        self.query = normal(case["lengths_q"], case["shared_q"])
        self.key, self.value = (normal(case["lengths_k"], case["shared_kv"]) for _ in range(2))
        operands = {"q": self.query, "k": self.key, "v": self.value}
        self.inputs = [operands[name].requires_grad_() for name in case["gradients"]]
        self.grad_output = normal(case["lengths_q"], False)
        self.offsets = offsets(case["lengths_q"], case["shared_q"]), offsets(case["lengths_k"], case["shared_kv"])
        self.output: torch.Tensor | None = None

    def attend(self) -> torch.Tensor:
        return gdpa.varlen_attention(
            self.query, self.key, self.value, *self.offsets, activation=self.case["activation"],
            window_size=tuple(self.case["window"]), deterministic=self.case["deterministic"],
        )  # fmt: skip

    def forward(self) -> object:
        with torch.no_grad():
            return self.attend()

    def backward(self) -> object:
        if self.output is None:
            self.output = self.attend()
        return torch.autograd.grad(self.output, self.inputs, self.grad_output, retain_graph=True)


def queue(call: Callable[[], object], calls: int, device: torch.device) -> list[float]:
    """Returns the seconds of each call. On a GPU, events measure the time without the host's part."""
    if device.type == "cpu":
        times = []
        for _ in range(calls):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return times
    events = []
    for _ in range(calls):
        start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start_event.record()
        call()
        end_event.record()
        events.append((start_event, end_event))
    torch.cuda.synchronize()
    return [max(start_event.elapsed_time(end_event) * 1e-3, 1e-9) for start_event, end_event in events]


def times_of(call: Callable[[], object], seconds: float, device: torch.device) -> list[float]:
    """Times calls after a warm-up of the same length, because the clock of a GPU falls under load."""
    begin, latest = time.perf_counter(), 0.0
    while latest == 0.0 or time.perf_counter() - begin < seconds:
        latest = queue(call, 1, device)[0]
    times: list[float] = []
    while sum(times) < seconds or not times:
        times += queue(call, min(max(math.ceil((seconds - sum(times)) / latest), 1), QUEUED_CALLS), device)
    return times


def main() -> None:
    device = torch.device(sys.argv[1])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    print(json.dumps({"gdpa": gdpa.__file__}), flush=True)
    problem: Problem | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "prepare" in asked:
                problem = None
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                problem = Problem(asked["prepare"], device)
                answer: dict[str, Any] = {}
            else:
                assert problem is not None
                call = problem.forward if asked["time"] == "fwd" else problem.backward
                answer = {"times": times_of(call, asked["seconds"], device)}
        except Exception as error:
            answer = {"refused": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
