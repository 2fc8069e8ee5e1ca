"""The programs of this machine, the sources that they were built from, its GPUs, and the versions of its software."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpu_record import ROOT
from gpu_record.coverage import hash_of_library, hash_of_program
from gpu_record.parts import Part

SEARCH_PATH = os.pathsep.join([f"{ROOT}/build/tests/gpu", f"{ROOT}/build/tools", os.environ.get("PATH", "")])


def path_of(program: str) -> str:
    path = shutil.which(program, path=SEARCH_PATH)
    return path or sys.exit(f"gpu-record: expected {program} in one of {SEARCH_PATH}, found none; run make build")


def output_of(command: list[str], settings: dict[str, str] | None = None) -> str:
    """Returns the output of a command, which must succeed."""
    given = [path_of(command[0]), *command[1:]]
    try:
        environment = {**os.environ, **(settings or {})}
        return subprocess.run(given, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
    except OSError as error:
        sys.exit(f"gpu-record: expected {command[0]} to work, got: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"gpu-record: expected {command[0]} to work, got: {error}\n{error.stdout}{error.stderr}")


@functools.cache
def doctor() -> dict[str, Any]:
    return json.loads(output_of(["gdpa", "doctor", "--json"]))


def binaries_of(part: Part) -> list[tuple[str, Path, str]]:
    """Returns the compiled files of a part, each with its name, its path and the hash of the current sources."""
    library = hash_of_library()
    binaries = [("libgdpa", Path(doctor()["library"]), library)]
    if not part.is_python:
        # The program contains the objects of the library, which have a separate hash.
        program = Path(path_of(part.program))
        return [*binaries, ("libgdpa", program, library), (part.program, program, hash_of_program(part))]
    package = importlib.util.find_spec("gdpa")
    folders = list(package.submodule_search_locations or []) if package else []
    for name in ("libgdpa", "libgdpa_torch"):
        files = [file for folder in folders for file in (Path(folder) / "lib").glob(f"{name}.so*")]
        if not files:
            sys.exit(f"gpu-record: expected the Python package gdpa with {name}, found none; run make install")
        binaries += [(name, file, library) for file in files]
    return binaries


def old_binaries(parts: list[Part]) -> str:
    """Returns a line for each compiled file of these parts that was built from other sources."""
    lines = ""
    for name, file, expected in dict.fromkeys(binary for part in parts for binary in binaries_of(part)):
        said = re.search(rf"gdpa built from: {name} ([0-9a-f]{{64}})".encode(), file.read_bytes())
        if said is None or said[1].decode() != expected:
            got = f"sources {said[1].decode()[:12]}" if said else "a file without a hash of its sources"
            lines += f"  {name}: expected sources {expected[:12]}, got {got}: {file}\n"
    return lines


@functools.cache
def gpus() -> list[str]:
    """Returns the visible GPUs, in the notation of CUDA_VISIBLE_DEVICES."""
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    listed = output_of(command) if shutil.which("nvidia-smi") else ""
    return listed.split() or ["0"]


@functools.cache
def facts() -> dict[str, object]:
    """Returns the device and the versions, for the record of a run."""
    import torch

    import gdpa

    components = doctor()["components"]
    known = {
        "device": torch.cuda.get_device_name(),
        "devices": torch.cuda.device_count(),
        "capability": list(torch.cuda.get_device_capability()),
        "driver": output_of(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]).split()[0],
        "nvrtc": next(c["version"] for c in components if c["name"] == "NVRTC"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gdpa": gdpa.__version__,
        "python": sys.version.split()[0],
        "processors": os.cpu_count(),
    }
    if shutil.which("compute-sanitizer"):
        known["compute-sanitizer"] = re.findall(r"[Vv]ersion (\S+)", output_of(["compute-sanitizer", "--version"]))[0]
    return known
