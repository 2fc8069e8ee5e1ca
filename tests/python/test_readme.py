"""The README: its commands run, its C++ compiles and runs. (Its Python and its links: test_docs.py.)"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMAND = Path(sys.executable).with_name("gdpa")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


CONSOLE = [
    line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")
]


def test_every_kind_of_block_is_checked_by_somebody() -> None:
    assert set(re.findall(r"^```(\S+)$", README, re.MULTILINE)) == {"console", "python", "cpp"}
    assert len(CONSOLE) >= 6


@pytest.mark.parametrize("command", [c for c in CONSOLE if c.startswith("make")])
def test_a_make_target_is_one_that_the_makefile_has(command: str) -> None:
    # `make test` runs this test. test_demo.py runs the demonstration of `make demo`.
    listed = subprocess.run(["make", "--dry-run", *shlex.split(command)[1:]], cwd=ROOT, capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr


@pytest.mark.parametrize("command", [c for c in CONSOLE if not c.startswith("make")])
def test_a_command_runs(command: str, tmp_path: Path) -> None:
    program, *arguments = shlex.split(command)
    places = {"gdpa": str(COMMAND), "python": sys.executable}
    ran = subprocess.run([places[program], *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout


@pytest.mark.parametrize("source", blocks("cpp"))
def test_the_cpp_compiles_and_runs(source: str, tmp_path: Path) -> None:
    import gdpa

    compiler = os.environ.get("CXX") or shutil.which("c++")
    if not compiler:
        pytest.skip("no C++ compiler here")
    library = next((Path(gdpa.__file__).parent / "lib").glob("libgdpa.so*"))
    (tmp_path / "main.cpp").write_text(source)
    program = tmp_path / "main"
    warnings = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
    linked = [f"-I{ROOT / 'include'}", str(library), f"-Wl,-rpath,{library.parent}"]
    subprocess.run(
        [compiler, "-std=c++20", *warnings, "main.cpp", *linked, "-o", str(program)], cwd=tmp_path, check=True
    )
    subprocess.run([str(program)], check=True)
