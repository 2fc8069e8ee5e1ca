"""What the commands of this distribution share: types of options, their errors and exit codes, and a fault of AMX."""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import sys
from collections.abc import Callable

from gdpa.bench.agreement import Disagreement


class RankFailed(RuntimeError):
    """The process of a rank has raised an error or died. All other processes have been ended."""


def count(text: str) -> int:
    """The type of an option that is a number from 1 up."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 up; got {text}")
    return int(text)


def above_0(text: str) -> float:
    """The type of an option that is a factor."""
    if float(text) <= 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0; got {text}")
    return float(text)


def exit_code(name: str, run: Callable[[argparse.Namespace], None], options: argparse.Namespace, kept: str) -> int:
    """Runs a command and returns its exit code. `kept` says what an interruption leaves.

    The codes are 0 for success, 1 for a result outside its promise or a failed rank of scaling, 2 for a wrong
    argument, 3 for a missing component, and 130 after an interruption from the keyboard.
    """
    disable_forbidden_amx()
    try:
        run(options)
    except (Disagreement, RankFailed) as error:
        code, words = 1, str(error)
    except ModuleNotFoundError as missing:
        code, words = 3, f"needs the package {missing.name}: pip install {missing.name}"
    except (ValueError, TypeError) as refused:
        code, words = 2, str(refused)
    except OSError as failed:
        code, words = 3, str(failed)
    except KeyboardInterrupt:
        code, words = 130, f"interrupted; {kept}"
    else:
        return 0
    print(f"{name}: {words}", file=sys.stderr)
    return code


def disable_forbidden_amx() -> None:
    """Disables AMX in oneDNN if the processor lists AMX but the operating system does not allow it.

    On some virtual machines, PyTorch's bf16 products otherwise end with an illegal instruction. oneDNN reads the
    variable at its first product. If the operating system allows AMX, nothing changes.
    """
    arch_prctl, request_permission, amx_tile_data = 158, 0x1023, 18
    if platform.machine() != "x86_64" or ctypes.CDLL(None).syscall(arch_prctl, request_permission, amx_tile_data) == 0:
        return
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
