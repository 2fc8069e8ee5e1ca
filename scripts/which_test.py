#!/usr/bin/env python3
"""Prints the shortest command that tests an edited file, from the table tests/which.toml.

scripts/which_test.py [FILE...]     for these files; by default, for all files that differ from the last commit
scripts/which_test.py --table       the table of CONTRIBUTING.md
"""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "which.toml"


def read_table(table: Path = TABLE) -> list[tuple[list[str], str]]:
    """Returns the patterns and the test of each entry, or nothing without a table."""
    entries = tomllib.loads(table.read_text())["edit"] if table.is_file() else []
    return [(entry["files"], entry["test"]) for entry in entries]


def test_of(file: str, table: Path = TABLE) -> str | None:
    """Returns the test of a file, by its path in the checkout, or None."""
    entries = read_table(table)
    return next((test for files, test in entries if any(fnmatchcase(file, pattern) for pattern in files)), None)


def command_of(test: str) -> str:
    """Returns a command for the root of the checkout. A program of the emulator needs the whole build."""
    if test.split()[0].endswith(".py"):
        return f".venv/bin/python -m pytest -q {test}"
    target = "" if test.startswith("emulated_") else f" --target {test.removesuffix('_sample')}"
    return f"cmake --build build{target} && ctest --test-dir build -R '^{test}$'"


def as_markdown() -> str:
    rows = (f"| {', '.join(f'`{pattern}`' for pattern in files)} | `{test}` |" for files, test in read_table())
    return "\n".join(["| edited file | test |", "|---|---|", *rows])


def main() -> int:
    edited = sys.argv[1:]
    if edited == ["--table"]:
        print(as_markdown())
        return 0
    if not edited:
        listing = ["git", "status", "--porcelain", "--no-renames", "--untracked-files=all"]
        lines = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
        edited = [line[3:] for line in lines]
    tests = {file: test_of(file) for file in edited}
    for test in dict.fromkeys(filter(None, tests.values())):
        print(command_of(test))
    without = [file for file, test in tests.items() if test is None]
    if without:
        print(f"no entry in tests/which.toml: {', '.join(without)}; run make test", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
