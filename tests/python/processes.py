"""Processes that begin with the imports done: a server imports PyTorch and gdpa once, and each process is its fork.

The imports take seconds. A process has its own modules, registrations and C++ state, as after `import torch, gdpa`. It
ends without the end of the interpreter, so a test of that starts Python itself.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from typing import Any, NamedTuple

import torch.multiprocessing

context: Any = torch.multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["gdpa", "gdpa.train.run", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"]
)


class Finished(NamedTuple):
    code: int
    output: str
    errors: str


def run_program(program: str, **environment: str) -> Finished:
    """Runs the program in a process that has imported torch and gdpa."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        files = [torch.multiprocessing.reductions.reduction.DupFd(file.fileno()) for file in (output, errors)]
        process = context.Process(target=_run, args=(program, environment, *files))
        process.start()
        process.join(300)
        process.kill()
        process.join()
        output.seek(0)
        errors.seek(0)
        return Finished(process.exitcode, output.read(), errors.read())


def _run(program: str, environment: dict[str, str], output: Any, errors: Any) -> None:
    os.dup2(output.detach(), 1)
    os.dup2(errors.detach(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ.update(environment)
    import gdpa

    try:
        exec(program, {"__name__": "__main__", "torch": torch, "gdpa": gdpa})
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
