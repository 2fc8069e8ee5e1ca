"""The folder examples/ as a stranger's project: against an installed gdpa, found by find_package(gdpa).

gdpa is installed from a finished build, the folder that GDPA_BUILD names, or build/ of this checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = Path(os.environ.get("GDPA_BUILD", ROOT / "build"))


def succeed(*arguments: str | Path) -> str:
    done = subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cmake") is None or not (BUILD / "cmake_install.cmake").is_file():
        pytest.skip("needs cmake and a finished build: cmake --build build")
    folder = tmp_path_factory.mktemp("installed")
    succeed("cmake", "--install", BUILD, "--prefix", folder)
    return folder


def test_the_examples_build_and_run_against_an_installed_gdpa(prefix: Path, tmp_path: Path) -> None:
    source = shutil.copytree(ROOT / "examples", tmp_path / "examples")
    build = tmp_path / "build"
    succeed("cmake", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
    succeed("cmake", "--build", build, "--parallel", "2")
    report = succeed("ctest", "--test-dir", build, "--output-on-failure")
    assert "100% tests passed" in report and "out of 5" in report


def test_the_installed_command_finds_its_library(prefix: Path) -> None:
    assert succeed(prefix / "bin" / "gdpa", "--version").startswith("gdpa ")
