"""scripts/mutation in a small checkout, whose test program is a script with the options of GoogleTest."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "mutation"

# The targets copy scripts, so that nothing is compiled. The copy fails on a script that bash cannot read.
CMAKE = """
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES NONE)
enable_testing()
add_custom_target(gdpa_torch)
add_custom_target(gdpa_command)
add_custom_target(adder_test COMMAND bash -n ${CMAKE_SOURCE_DIR}/src/adder.sh
                  COMMAND cp ${CMAKE_SOURCE_DIR}/src/adder.sh ${CMAKE_SOURCE_DIR}/tests/adder_test ${CMAKE_BINARY_DIR})
add_test(NAME adder_test COMMAND ${CMAKE_BINARY_DIR}/adder_test)
add_test(NAME adder_test_whole COMMAND ${CMAKE_BINARY_DIR}/adder_test)
set_tests_properties(adder_test_whole PROPERTIES LABELS whole)
"""
ADDER = """
add() { echo $(($1 + $2)); }
unused() { echo $(($1 * $2)); }
"""
PROGRAM = """#!/bin/bash
[[ $* = *=Adder.* ]] && listed=Adds || listed=Subtracts
[[ $* = *--gtest_list_tests* ]] && printf 'Adder.\\n  %s\\n' "$listed" && exit
source "${0%/*}/adder.sh"
[ "$(add 2 3)" = 5 ]
"""
PYTHON_TEST = """
from importlib import metadata

from gdpa.double import double


def test_double():
    assert metadata.version("gdpa") == "1.2"
    assert double(2) == 4
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    files = {
        "CMakeLists.txt": CMAKE,
        "src/adder.sh": ADDER,
        "tests/adder_test": PROGRAM,
        "include/gdpa/version.h": '#define GDPA_VERSION "1.2"',
        "python/gdpa/__init__.py": "",
        "python/gdpa/double.py": "def double(x):\n    return 2 * x\n",
        "tests/python/test_double.py": PYTHON_TEST,
        ".gitignore": "/build*/\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "tests" / "adder_test").chmod(0o755)
    (tmp_path / "scripts").mkdir()
    for name in ("mutation", "which_test.py"):
        shutil.copy(SCRIPT.with_name(name), tmp_path / "scripts")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


def fault(old: str, new: str, test: str = "adder_test", file: str = "src/adder.sh", place: str = "add") -> str:
    return f"[[fault]]\nfile = '{file}'\nplace = '{place}'\nold = '''{old}'''\nnew = '''{new}'''\ntest = '{test}'\n"


def run(checkout: Path, *faults: str, options: tuple[str, ...] = ("--all", "--limit", "2")) -> tuple[int, str]:
    (checkout / "tests" / "mutations.toml").write_text("\n".join(faults))
    command = [sys.executable, checkout / "scripts" / "mutation", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_fault_is_found_if_its_test_fails_and_the_checkout_stays_as_it_is(checkout: Path) -> None:
    status, output = run(
        checkout,
        fault("$1 + $2", "$1 - $2"),
        fault("2 * x", "3 * x", "tests/python/test_double.py", "python/gdpa/double.py", "double"),
        fault("add() {", "add() { sleep 100;", place="add, a hang"),
    )
    assert status == 0, output
    assert "fault 1 of 3: found," in output and "fault 2 of 3: found," in output
    assert "fault 3 of 3: found by its time limit" in output
    assert "found 3 of 3 faults (100.0%), 1 of them by a time limit" in output
    assert (checkout / "src" / "adder.sh").read_text() == ADDER
    copy = checkout / "build" / "mutation" / "tree"
    assert (copy / "src" / "adder.sh").read_text() == ADDER, "the copy has no fault after the run"


def test_a_fault_that_its_test_does_not_find_fails_the_run_and_is_listed(checkout: Path) -> None:
    status, output = run(checkout, fault("$1 * $2", "$1 / $2", place="unused"), fault("$1 + $2", "$1 - $2"))
    assert status == 1
    assert "mutation: survived its test: src/adder.sh, unused: `$1 * $2` -> `$1 / $2`" in output
    assert "found 1 of 2 faults (50.0%)" in output


def test_a_fault_that_does_not_compile_is_broken_and_not_found(checkout: Path) -> None:
    status, output = run(checkout, fault("$1 + $2", "$1 - $2"), fault("unused() {", "unused() { (", place="unused"))
    assert status == 1
    assert "fault 2 of 2: broken," in output and "the changed file does not compile" in output
    assert "found 1 of 1 faults (100.0%), 0 of them by a time limit; 1 broken" in output


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (fault("$1 - $2", "$1 + $2"), "expected the old text once in the file, found it 0 times"),
        (fault("echo", "printf"), "found it 2 times"),
        (fault("add", "add", file="src/none.sh"), "expected the file src/none.sh, found none"),
        (fault("return", "retu rn", "", "python/gdpa/double.py"), "the changed file does not compile"),
        (fault("$1 + $2", "$1", "adder_test_whole"), "which only `make test-all` runs"),
        (fault("$1 + $2", "$1", "none_test"), "expected a test of ctest or a file of pytest, got none_test"),
        (fault("$1 + $2", "$1", "adder_test --gtest_filter=Adder.Subtracts"), "got Adder.Adds"),
        (fault("2 * x", "x", "tests/python/test_none.py", "python/gdpa/double.py"), "pass without a fault"),
    ],
)
def test_a_table_that_does_not_apply_to_the_sources_is_an_error(checkout: Path, entry: str, message: str) -> None:
    status, output = run(checkout, entry)
    assert status == 1
    assert message in output
    assert "fault 1 of 1" not in output


def test_a_seed_repeats_a_sample(checkout: Path) -> None:
    faults = [fault("$1 + $2", f"$1 + {number}", place=f"place {number}") for number in range(20)]

    def drawn(seed: int) -> list[str]:
        status, output = run(checkout, *faults, options=("--list", "--seed", str(seed), "--count", "5"))
        assert status == 0
        return [line for line in output.splitlines() if line.startswith("src/adder.sh")]

    assert len(drawn(1)) == 5
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_the_table_has_at_most_three_faults_in_a_place(checkout: Path) -> None:
    status, output = run(checkout, *[fault("$1 + $2", f"$1 + {number}") for number in range(4)], options=("--list",))
    assert status == 1
    assert "expected at most 3 faults in one place, got 4: src/adder.sh, add" in output


def test_a_fault_without_a_test_has_that_of_its_file(checkout: Path) -> None:
    without = fault("$1 + $2", "$1 - $2").replace("test = 'adder_test'\n", "")
    status, output = run(checkout, without)
    assert status == 1 and "expected a test of src/adder.sh in the fault or in tests/which.toml, got none" in output
    (checkout / "tests" / "which.toml").write_text("[[edit]]\nfiles = ['src/*']\ntest = 'adder_test'\n")
    status, output = run(checkout, without, options=("--list",))
    assert status == 0 and output.splitlines()[-1].strip() == "adder_test"
