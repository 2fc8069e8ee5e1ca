"""One of the two processes of `--against`. It times the gdpa on its PYTHONPATH through the public API.

The process runs this file as a script and not as a module, because the imported gdpa may be older than this file. Both
processes import ``gdpa.bench`` from the folder of this file, so that both builds get the same operands. The process
reads pickled objects from standard input, and answers each object with one on standard output:

    {"prepare": a Case}                      ->  {}
    {"time": "fwd" | "bwd", "seconds": S}    ->  {"times": [seconds of each call]}

An answer {"refused": text} says why a call failed.
"""

from __future__ import annotations

import pickle
import sys
import types
from pathlib import Path
from typing import Any

import torch

import gdpa


def works_of(case: Any, device: torch.device) -> dict[str, Any]:
    """Returns a forward call and a backward call with the N(0, 1) operands of a case."""
    from gdpa.bench.device import Work
    from gdpa.bench.systems.base import Operands
    from gdpa.bench.systems.ours import Gdpa

    prepared = Gdpa().prepare(case, Operands.random(case, device))
    for name, operand in zip("qkv", prepared.inputs, strict=False):
        operand.requires_grad_(name in case.gradients)
    wanted = [operand for operand in prepared.inputs if operand.requires_grad]
    outputs: list[torch.Tensor] = []

    def forward(_: None) -> object:
        with torch.no_grad():
            return prepared.forward()

    def backward(_: None) -> object:
        outputs[:] = outputs or prepared.forward()
        return torch.autograd.grad(outputs, wanted, prepared.grad_outputs, retain_graph=True)

    return {"fwd": Work(forward), "bwd": Work(backward)}


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
    from gdpa.bench.device import choose
    from gdpa.bench.report import reason_of

    def answer(said: dict[str, Any]) -> None:
        pickle.dump(said, sys.stdout.buffer)
        sys.stdout.buffer.flush()

    device = choose(sys.argv[1])
    answer({"gdpa": gdpa.__file__})
    works: dict[str, Any] = {}
    while True:
        try:
            asked = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            if "prepare" in asked:
                works.clear()
                device.release()
                works = works_of(asked["prepare"], device.torch_device)
                said: dict[str, Any] = {}
            else:
                said = {"times": device.times(works[asked["time"]], asked["seconds"])}
        except Exception as error:
            said = {"refused": reason_of(error)}
        answer(said)


if __name__ == "__main__":
    main()
