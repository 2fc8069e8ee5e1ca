"""Queries the command line `gdpa` for the commit, the rates of the processor and the cost of a call."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import gdpa

ADVICE = "install the wheel of gdpa, which contains the command, or set GDPA_COMMAND to its path"


class CommandMissing(RuntimeError):
    """The command `gdpa` was not found or failed."""


def find() -> str:
    """Returns GDPA_COMMAND, or the program in the package gdpa, or the command on PATH.

    The program in the package has the commit of the package. A command on PATH may belong to another build.
    """
    in_package = Path(gdpa.__file__).with_name("bin") / "gdpa"
    found = os.environ.get("GDPA_COMMAND") or (str(in_package) if in_package.is_file() else shutil.which("gdpa"))
    if not found:
        raise CommandMissing(f"expected the command gdpa in the package or on PATH, found none: {ADVICE}")
    return found


def output_of(*arguments: str) -> str:
    asked = f"`gdpa {' '.join(arguments)}`"
    try:
        done = subprocess.run([find(), *arguments], capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        raise CommandMissing(f"{asked} did not answer ({type(error).__name__}): {ADVICE}") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise CommandMissing(f"{asked} ended with exit status {done.returncode} and said: {said[0]}")
    return done.stdout


def json_of(*arguments: str) -> dict[str, Any]:
    return json.loads(output_of(*arguments, "--json"))


@cache
def commit() -> str:
    """Returns the commit of gdpa, or "unknown" if the command is missing."""
    try:
        found = re.search(r"commit ([^)]+)", output_of("--version"))
    except CommandMissing:
        return "unknown"
    return found.group(1) if found else "unknown"
