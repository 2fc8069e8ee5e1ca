"""The table of the tests for each edited file: its patterns and tests exist, and CONTRIBUTING.md shows it."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "which_test.py"
WHICH = runpy.run_path(str(SCRIPT))
ENTRIES = WHICH["read_table"]()
LISTED = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
# Files of these folders are sources, of which each has a test.
SOURCES = ("src/", "kernels/", "torch/", "tools/", "python/gdpa/", "include/", "docs/")


def test_every_source_has_a_test() -> None:
    sources = [file for file in LISTED if file.startswith(SOURCES) and (ROOT / file).is_file()]
    without = [file for file in sources if WHICH["test_of"](file) is None]
    assert not [file for file in without if not file.endswith(("CMakeLists.txt", ".cmake"))]


@pytest.mark.parametrize(("files", "test"), ENTRIES, ids=[test for _, test in ENTRIES])
def test_the_patterns_and_the_test_of_an_entry_exist(files: list[str], test: str) -> None:
    for pattern in files:
        assert any(fnmatchcase(file, pattern) for file in LISTED), (
            f"{pattern} matches no file; correct tests/which.toml"
        )
    if test.endswith(".py"):
        assert (ROOT / test).is_file()
        return
    program = test.removesuffix("_sample")
    names = "".join((ROOT / "tests" / folder / "CMakeLists.txt").read_text() for folder in ("cpp", "emulator"))
    # A list of tests of the emulator has the names without "emulated_".
    told = (program, program.removeprefix("emulated_"))
    is_listed = any(re.search(rf"\b{name}\b", names) for name in told)
    assert (ROOT / "tests" / "cpp" / f"{program}.cpp").is_file() or is_listed, test


def test_the_page_shows_the_table() -> None:
    assert WHICH["as_markdown"]() in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_script_prints_a_command_for_each_file_once() -> None:
    files = ["src/cpu/convert.cpp", "src/cpu/convert.h", "docs/masks.md", "kernels/portable/norm.cuh", "LICENSE"]
    done = subprocess.run([sys.executable, SCRIPT, *files], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "cmake --build build --target convert_test && ctest --test-dir build -R '^convert_test$'",
        ".venv/bin/python -m pytest -q tests/python/test_docs.py",
        "cmake --build build && ctest --test-dir build -R '^emulated_norms_sample$'",
    ]
    assert done.stderr == "no entry in tests/which.toml: LICENSE; run make test\n"
