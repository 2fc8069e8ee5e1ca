"""One of the two processes of `--against`. It times the gdpa on its PYTHONPATH through the public API.

The process runs this file as a script and not as a module, because the imported gdpa may be older than this file. Both
processes import ``gdpa.bench`` from the folder of this file, so that both builds get the same operands. The process
reads one JSON object in each line of standard input, and answers each object with one line on standard output:

    {"prepare": the fields of a Case}
    {"time": "fwd" | "bwd", "seconds": S}    ->  {"times": [seconds of each call]}

An answer {"refused": text} says why a call failed.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import torch

import gdpa


class Problem:
    """The N(0, 1) operands of one case, with a forward call and a backward call."""

    def __init__(self, fields: dict[str, Any], device: torch.device) -> None:
        from gdpa.bench.cases import Case
        from gdpa.bench.systems.base import Operands
        from gdpa.bench.systems.ours import Gdpa

        case = Case(**{name: as_tuple(value) for name, value in fields.items()})
        self.prepared = Gdpa().prepare(case, Operands.random(case, device))
        for name, operand in zip("qkv", self.prepared.inputs, strict=False):
            operand.requires_grad_(name in case.gradients)
        self.wanted = [operand for operand in self.prepared.inputs if operand.requires_grad]
        self.outputs: list[torch.Tensor] = []

    def forward(self, _: None = None) -> object:
        with torch.no_grad():
            return self.prepared.forward()

    def backward(self, _: None = None) -> object:
        self.outputs = self.outputs or self.prepared.forward()
        return torch.autograd.grad(self.outputs, self.wanted, self.prepared.grad_outputs, retain_graph=True)


def as_tuple(value: Any) -> Any:
    """Returns lists as tuples, also within lists. JSON has no tuples."""
    return tuple(map(as_tuple, value)) if isinstance(value, list) else value


def import_bench() -> None:
    """Makes the folder of this file the package ``gdpa.bench``.

    The packages do not run their ``__init__.py``. That of ``systems`` imports every system, and some of them need
    modules that an older gdpa does not have.
    """
    folder = Path(__file__).parent
    for name, of_package in (("gdpa.bench", folder), ("gdpa.bench.systems", folder / "systems")):
        package = types.ModuleType(name)
        package.__path__ = [str(of_package)]
        sys.modules[name] = package


def main() -> None:
    import_bench()
    from gdpa.bench.device import Work, choose
    from gdpa.bench.report import reason_of

    device = choose(sys.argv[1])
    print(json.dumps({"gdpa": gdpa.__file__}), flush=True)
    problem: Problem | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "prepare" in asked:
                problem = None
                device.release()
                problem = Problem(asked["prepare"], device.torch_device)
                answer: dict[str, Any] = {}
            else:
                assert problem is not None
                work = Work(problem.forward if asked["time"] == "fwd" else problem.backward)
                answer = {"times": device.times(work, asked["seconds"])}
        except Exception as error:
            answer = {"refused": reason_of(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
