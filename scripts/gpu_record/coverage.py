"""The files that a part covers, and their hash: what its kernels and its host code include."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

import sources_hash as sources

from gpu_record import ROOT
from gpu_record.parts import KERNELS, PYTHON_TESTS, Part

# The folders of #include "...", in addition to the folder of the file.
INCLUDED_FROM = ("kernels", "src", "include", "tests/gpu", "tests/cpp")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


@functools.cache
def included_by(name: str) -> list[str]:
    """Returns the paths that the includes of a file may mean, of which one exists unless another project has it."""
    folders = [Path(name).parent.as_posix(), *INCLUDED_FROM]
    return [f"{folder}/{header}" for header in INCLUDE.findall(text_of(name)) for folder in folders]


@functools.cache
def known_files() -> frozenset[str]:
    """Returns all files that the hashes in the programs cover, except the file of the program itself."""
    return frozenset(sources.listed_files("library|tests", ROOT))


def closure(names: Iterable[str]) -> set[str]:
    """Returns the files and everything that they include, as far as the hashes in the programs cover it."""
    reached: set[str] = set()
    ahead = list(names)
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead += [path for path in included_by(name) if path in known_files()]
    return reached


def files_like(pattern: str) -> list[str]:
    """Returns the files of a pattern, which must not be empty: a renamed file would otherwise be left out unseen."""
    found = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern) if path.is_file())
    if not found:
        raise SystemExit(f"gpu-record: expected files {pattern}, found none; correct scripts/gpu_record/parts.py")
    return found


def device_files(kernels: str) -> set[str]:
    """Returns the files that the kernels of a part may include, by the key of KERNELS."""
    return closure(name for pattern in KERNELS[kernels] for name in files_like(f"kernels/{pattern}"))


def files_of(part: Part) -> list[str]:
    """Returns all files that a part covers."""
    if part.host:
        host = {name for pattern in part.host for name in files_like(pattern)}
    else:
        library = sources.listed_files("library", ROOT)
        unused = {name for pattern in ("kernels/*", *part.unused_host) for name in library if fnmatch(name, pattern)}
        host = set(library) - unused
    tests = [*PYTHON_TESTS, part.program] if part.is_python else [f"tests/gpu/{part.program}.cpp"]
    return sorted(closure([*host, *tests]) | device_files(part.kernels))


@functools.cache  # an edit during the tests must not change the recorded hash; many parts have the same files
def hash_of_files(names: tuple[str, ...]) -> str:
    return sources.hash_of_files(list(names), ROOT)


@functools.cache
def hash_of(part: Part) -> str:
    """Returns the hash of the files of a part. A part without this hash in the record must run again."""
    return hash_of_files(tuple(files_of(part)))


@functools.cache
def hash_of_program(part: Part) -> str:
    """Returns the hash that the program of a part contains, of all sources that it was built from."""
    return sources.sources_hash("library|tests", [f"tests/gpu/{part.program}.cpp"], ROOT)


@functools.cache
def hash_of_library() -> str:
    return sources.sources_hash("library", [], ROOT)
