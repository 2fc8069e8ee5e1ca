"""Finds the headers that the kernels of a run included. It reads them from the kernel cache.

Each entry of the cache contains the generated source of its kernel. A process that compiles a kernel writes an entry. A
process that finds its kernel in the cache updates the modification time of the entry. Therefore, a run used exactly the
kernels whose entries were modified during the run.
"""

from __future__ import annotations

import collections
import re
import struct
from pathlib import Path

from gpu_record.coverage import INCLUDE, device_files

# The beginning of an entry (src/jit/cache.cpp): magic, layout, bytes of the key, bytes of the image, checksum.
HEADER = struct.Struct("=8sQQQQ")
# In the key, the text of each header of the device code follows such a line. The source is before the first one.
NAME_OF_HEADER = re.compile(r"^// [\w/]+\.(?:cuh|h)$", re.MULTILINE)
INCLUDED_FROM = ("kernels", "src", "include")


def source_of(entry: Path) -> str:
    """Returns the generated source of an entry."""
    with entry.open("rb") as file:
        magic, layout, key_bytes, _, _ = HEADER.unpack(file.read(HEADER.size))
        if (magic, layout) != (b"gdpakern", 1):
            raise SystemExit(
                f"gpu-record: expected an entry of the kernel cache with layout 1, got {magic!r} with layout {layout}: "
                f"{entry}; adapt scripts/gpu_record/compiled.py to src/jit/cache.cpp"
            )
        key = file.read(key_bytes).decode()
    end = NAME_OF_HEADER.search(key)
    return key[: end.start()] if end else key


def headers_since(folder: Path, begin: float) -> collections.Counter[str]:
    """Returns the headers in the sources of the kernels that were used since `begin`, with the number of kernels."""
    counts: collections.Counter[str] = collections.Counter()
    for entry in folder.rglob("*.gdpa"):
        # The clock of a file system may be some milliseconds late.
        if entry.stat().st_mtime >= begin - 1:
            counts.update(set(INCLUDE.findall(source_of(entry))))
    return counts


def undeclared(headers: collections.Counter[str], kernels: str) -> list[str]:
    """Returns the headers that do not belong to the kernels of a part."""
    declared = device_files(kernels)
    return sorted(h for h in headers if not any(f"{folder}/{h}" in declared for folder in INCLUDED_FROM))
