"""scripts/gpu-record in a small checkout. Its GPU programs are scripts that list and run the tests of a text file.

The programs contain the hash of their sources in the form of a real build, and write entries of the kernel cache.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gdpa

ROOT = Path(__file__).parents[2]
TOOLS = ("racecheck", "memcheck", "initcheck", "synccheck")
OF_TOOLS = [f"{tool}{suffix}" for tool in TOOLS for suffix in ("", "-wide", "-portable")]
PROBLEMS = "build/tests/gpu/gpu_problems_test"

# Lists the tests of the file `listed`, or logs its settings, writes the report of the selected tests, and copies the
# entries of the folder `entries` to the kernel cache.
PROGRAM = r"""#!/bin/bash
checkout=${0%/build/*}
for word; do
  case $word in
    --gtest_list_tests) cat "$checkout/listed"; exit ;;
    --gtest_output=xml:*) report=${word#*:} ;;
    --gtest_filter=*) filter=${word#*=} ;;
  esac
done
memory=${GDPA_SHARED_KILOBYTES:-own}
echo "${TOOL:-none} $memory $GDPA_GPU_PROBLEMS" >>"$checkout/log"
[ "$memory" = own ] && kind='hopper: backward' || kind='portable: backward'
[[ $GDPA_CACHE_DIR = */wide ]] && kind='hopper: wide_backward'
mkdir -p "$GDPA_CACHE_DIR/$$" && cp "$checkout/entries/"*.gdpa "$GDPA_CACHE_DIR/$$" || exit 1
{
  echo '<testsuites><testsuite>'
  IFS=:
  for name in $filter; do
    echo "<testcase name=\"$name\" classname=\"Problems\"><properties>"
    echo "<property name=\"problems\" value=\"$GDPA_GPU_PROBLEMS\"/>"
    echo "<property name=\"kernel ${KIND:-$kind}\" value=\"1\"/></properties></testcase>"
  done
  echo '</testsuite></testsuites>'
} >"$report"
"""
SANITIZER = """#!/bin/bash
[[ $2 = --tool=* ]] && export TOOL=${2#--tool=}
exec "${@:3}"
"""
LISTED = """GpuPages.
  LengthsAreClamped
Drawn/GpuProblems.
  AgreeWithTheDefinition/bfloat16_8_8_gelu_fast  # GetParam() = bfloat16 8 8 with any layout
  AgreeWithTheDefinition/float16_64_64_gelu_exact  # GetParam() = float16 64 64 with any layout
  AgreeWithTheDefinition/float16_32_32_silu_exact  # GetParam() = float16 32 32 with any layout
  AgreeWithTheDefinition/bfloat16_192_64_silu_fast  # GetParam() = bfloat16 192 64 with any layout
  AgreeWithTheDefinition/float16_256_256_silu_fast  # GetParam() = float16 256 256 with any layout
  AgreeWithTheDefinition/drawn_130  # GetParam() = bfloat16 128 128 with any layout
  AgreeWithTheDefinition/score_0  # GetParam() = float32 16 16 with any layout, tensors
  AgreeWithTheDefinition/score_1  # GetParam() = float32 136 16 with any layout, tensors
"""


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def says(name: str, sources: str) -> str:
    """The text of a file that was built from sources with this hash."""
    return f"gdpa built from: {name} {sources}\n"


def write_entry(folder: Path, name: str, *headers: str) -> None:
    """Writes an entry of the kernel cache, whose source includes these headers."""
    source = "".join(f'#include "{header}"\n' for header in headers)
    key = f'gdpa 0.1.0\n-arch=sm_90a\n{source}// silu(s)\n// common/types.cuh\n#include "common/never.cuh"\n'.encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.gdpa").write_bytes(struct.pack("=8sQQQQ", b"gdpakern", 1, len(key), 5, 0) + key + b"image")


class Checkout:
    """A copy of the repository with fake programs, and the modules of its scripts/gpu-record."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.command = self._loaded()
        self.parts = sys.modules["gpu_record.parts"].PARTS
        self.record = sys.modules["gpu_record.record"]
        self.coverage = sys.modules["gpu_record.coverage"]
        self.machine = sys.modules["gpu_record.machine"]
        self.run = sys.modules["gpu_record.run"]

    def _loaded(self) -> ModuleType:
        loader = importlib.machinery.SourceFileLoader("gpu_record_command", str(self.root / "scripts" / "gpu-record"))
        specification = importlib.util.spec_from_loader(loader.name, loader)
        assert specification is not None
        module = importlib.util.module_from_spec(specification)
        loader.exec_module(module)
        return module

    @property
    def file(self) -> Path:
        return self.root / "reports" / "gpu.json"

    def build(self) -> None:
        """Writes the files of a build of the sources."""
        self.forget_hashes()
        library = says("libgdpa", self.coverage.hash_of_library())
        program = says("gpu_problems_test", self.coverage.hash_of_program(self.parts["problems"]))
        script(self.root / "libgdpa.so", library)
        script(self.root / PROBLEMS, f"{PROGRAM}exit\n{library}{program}")
        script(self.root / "package" / "lib" / "libgdpa.so.0", library)
        script(self.root / "package" / "lib" / "libgdpa_torch.so", library.replace("libgdpa", "libgdpa_torch"))

    def forget_hashes(self) -> None:
        for name in ("hash_of", "hash_of_files", "hash_of_program", "hash_of_library", "included_by", "known_files"):
            getattr(self.coverage, name).cache_clear()

    def insert(self, line: str) -> None:
        """A first line of a process that runs tests of the program, which still says its sources."""
        file = self.root / PROBLEMS
        file.write_text(file.read_text().replace("memory=${", f"{line}\nmemory=${{"))

    def edit(self, name: str) -> None:
        with (self.root / name).open("a") as file:
            file.write("struct Edited;\n")

    def recorded(self) -> dict[str, Any]:
        return json.loads(self.file.read_text())["parts"] if self.file.exists() else {}

    def write(self, parts: dict[str, Any]) -> None:
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(json.dumps({"parts": parts}))

    def complete(self) -> dict[str, Any]:
        """A record that covers the sources."""
        runs = [{"seed": 1, "date": "2026-11-28T10:00:00+00:00", "tests": ["a"], "problems": 3000, "seconds": 5}]
        return {
            name: {"sources": self.coverage.hash_of(part), "of": 4, "runs": runs} for name, part in self.parts.items()
        }


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    for folder in ("cmake", "include", "kernels", "scripts", "src", "tests", "torch"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "scripts"), *sys.path])
    # The hashes of unchanged texts stay in the module sources_hash, which takes the folder as an argument.
    for name in [name for name in sys.modules if name.partition(".")[0] == "gpu_record"]:
        monkeypatch.delitem(sys.modules, name)
    result = Checkout(tmp_path)
    result.build()
    (tmp_path / "listed").write_text(LISTED)
    write_entry(tmp_path / "entries", "portable", "portable/backward.cuh", "common/types.cuh")
    report = json.dumps({"library": str(tmp_path / "libgdpa.so"), "components": []})
    script(tmp_path / "build" / "tools" / "gdpa", f"#!/bin/bash\necho '{report}'\n")
    package = importlib.machinery.ModuleSpec("gdpa", None, is_package=True)
    package.submodule_search_locations = [str(tmp_path / "package")]
    monkeypatch.setattr(importlib.util, "find_spec", {"gdpa": package}.get)
    script(tmp_path / "bin" / "compute-sanitizer", SANITIZER)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.delenv("GDPA_SHARED_KILOBYTES", raising=False)
    monkeypatch.delenv("GDPA_FUNCTION_SEED", raising=False)
    monkeypatch.setattr(result.machine, "facts", lambda: {"device": "Fake GPU"})
    return result


@pytest.fixture
def call(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Calls the script. Returns the words that it ends with, which are empty if it succeeds."""

    def call_it(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["gpu-record", *arguments])
        try:
            checkout.command.main()
        except SystemExit as end:
            return str(end.code)
        return ""

    return call_it


Call = Callable[..., str]


def test_each_sanitizer_runs_on_the_kernels_of_the_gpu_and_on_the_portable_ones(checkout: Checkout, call: Call) -> None:
    assert call("run", *OF_TOOLS) == ""
    expected = [f"{tool} {kilobytes} 4" for tool in TOOLS for kilobytes in ("own", "226")]
    assert set((checkout.root / "log").read_text().splitlines()) == set(expected)
    assert sorted(checkout.recorded()) == sorted(OF_TOOLS)


def test_the_check_requires_each_part_for_one_gpu(checkout: Checkout, call: Call) -> None:
    complete = checkout.complete()
    assert set(OF_TOOLS) < set(complete) and "devices" in complete
    checkout.write(complete)
    assert call("check") == ""
    for part in complete:
        checkout.write({name: entry for name, entry in complete.items() if name != part})
        assert f"does not cover the current sources: {part};" in call("check")
        checkout.write(complete | {part: complete[part] | {"sources": "of another day"}})
        assert (f"does not cover the current sources: {part};" in call("check")) == (part != "devices")


def test_an_older_part_for_two_gpus_is_a_warning_with_its_age(
    checkout: Checkout, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    complete = checkout.complete()
    day = datetime.datetime.now(datetime.timezone.utc).date() - datetime.timedelta(days=40)
    complete["devices"] |= {"sources": "older", "runs": [{"seed": 1, "date": str(day), "tests": ["a"], "problems": 0}]}
    checkout.write(complete)
    assert call("check") == ""
    warned = f"warning: devices, which needs 2 GPUs, was recorded for older sources on {day}, 40 days ago"
    assert warned in capsys.readouterr().out
    git = ["git", "-c", "user.name=a", "-c", "user.email=a", "-C", str(checkout.root)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    for _ in range(2):
        subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=one"], check=True)
    assert call("check") == ""
    assert f"{day}, 40 days and 2 commits ago" in capsys.readouterr().out


def test_the_check_requires_many_problems_in_all_runs(checkout: Checkout, call: Call) -> None:
    complete = checkout.complete()
    for entry in complete.values():
        entry["runs"] = [run | {"problems": 10} for run in entry["runs"]]
    number = 10 * sum(not part.sanitizer for part in checkout.parts.values())
    checkout.write(complete)
    assert f"expected at least 1500 random problems in all runs, got {number}" in call("check")
    complete["fuzz"]["runs"].append(complete["fuzz"]["runs"][0] | {"problems": 2000})
    checkout.write(complete)
    assert call("check") == ""


def test_a_run_that_continues_another_has_its_seed_and_a_new_run_has_a_new_seed(
    checkout: Checkout, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ("memcheck-portable", "racecheck-portable")
    for name in [name for name in checkout.parts if name not in parts]:
        monkeypatch.delitem(checkout.parts, name)
    drawn = iter([7, 8, 9])
    monkeypatch.setattr(checkout.command.secrets, "randbelow", lambda _: next(drawn))
    for arguments, seed in ((["run", parts[0]], 7), (["run"], 7), (["run", "--again"], 8)):
        assert call(*arguments) == ""
        assert {entry["runs"][-1]["seed"] for entry in checkout.recorded().values()} == {seed}
        assert {entry["runs"][-1]["function_seed"] for entry in checkout.recorded().values()} == {seed}
    assert sorted(checkout.recorded()) == sorted(parts)


def test_runs_with_the_same_sources_draw_other_tests_and_show_lists_their_union(
    checkout: Checkout, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    part = checkout.parts["portable"]
    (checkout.root / "listed").write_text(
        "Drawn/GpuProblems.\n" + "".join(f"  AgreeWithTheDefinition/mask_{i}\n" for i in range(10))
    )
    tests = set[str]()
    for number, seed in enumerate((17, 23, 5, 6), start=1):
        assert call("run", "--again", "--seed", str(seed), "portable") == ""
        runs = checkout.recorded()["portable"]["runs"]
        assert len(runs) == number and runs[-1]["seed"] == seed
        new = set(runs[-1]["tests"]) - tests
        assert len(runs[-1]["tests"]) == 3 and len(new) == (3 if number < 4 else 1)
        tests |= new
    assert call("show") == ""
    assert "10 of 10 in 4 runs, seeds 17, 23, 5, 6" in capsys.readouterr().out
    checkout.edit("kernels/portable/backward.cuh")
    checkout.build()
    assert call("run", "--seed", "4", "portable") == ""
    assert [run["seed"] for run in checkout.recorded()["portable"]["runs"]] == [4]
    assert part.share == 0.25


def listed(checkout: Checkout, part: str) -> list[Any]:
    return checkout.run.tests_of(checkout.parts[part], 1)


def test_a_sample_is_seeded_and_contains_each_subject(checkout: Checkout) -> None:
    from gpu_record.sample import draw

    tests = listed(checkout, "portable")
    samples = [frozenset(draw(tests, 0.5, seed, set())) for seed in range(30)]
    assert samples == [frozenset(draw(tests, 0.5, seed, set())) for seed in range(30)]
    assert len(tests) == 9 and len(set(samples)) > 10
    for sample in [*samples, frozenset(draw(tests, 0, 1, set()))]:
        words = {word for test in sample for word in test.words}
        assert {"bfloat16", "float16", "gelu", "silu", "exact", "fast", "score", "tensors"} < words
        assert "GpuPages.LengthsAreClamped" in {test.name for test in sample}
    assert all(len(sample) >= 5 for sample in samples)


def test_a_smaller_sample_of_the_same_seed_is_a_part_of_a_larger_one(checkout: Checkout) -> None:
    from gpu_record.sample import draw

    tests = listed(checkout, "portable")
    for seed in range(20):
        small, large = ({t.name for t in draw(tests, share, seed, set())} for share in (0.1, 0.9))
        assert small < large


def test_head_dims_above_128_have_parts_of_their_own(checkout: Checkout) -> None:
    wide = {t.name.rpartition("/")[2] for t in listed(checkout, "wide")}
    assert wide == {"bfloat16_192_64_silu_fast", "float16_256_256_silu_fast", "score_1"}
    narrow = {t.name.rpartition("/")[2] for t in listed(checkout, "memcheck")}
    assert {"drawn_130", "score_0", "bfloat16_8_8_gelu_fast"} < narrow and not wide & narrow


PYTEST = """tests/gpu/test_fuzz.py::test_random_problems_keep_the_promise[bfloat16-64-64-gelu]
tests/gpu/test_fuzz.py::test_random_problems_keep_the_promise[bfloat16-8-256-silu]
tests/gpu/test_fuzz.py::test_random_functions[3-192-192]
tests/gpu/test_features.py::test_two_streams_at_once
tests/gpu/test_features.py::test_sequences[longest0-64]
tests/gpu/test_features.py::test_sequences[longest0-192]

6 tests collected in 1.2s
"""


def test_pytest_modules_are_divided_by_head_dims_too(checkout: Checkout) -> None:
    from gpu_record.sample import subjects_of, tests_of_pytest

    tests = tests_of_pytest(PYTEST)
    assert [test.is_wide for test in tests] == [False, True, True, False, False, True]
    path = "tests/gpu/test_features.py::"
    expected = [{f"{path}test_two_streams_at_once"}, *[{f"{path}test_sequences[", "longest0"}] * 2]
    assert list(subjects_of(tests).values())[3:] == expected


def parts_with_other_hashes(checkout: Checkout, edited: str) -> set[str]:
    before = {name: checkout.coverage.hash_of(part) for name, part in checkout.parts.items()}
    checkout.edit(edited)
    checkout.forget_hashes()
    return {name for name, part in checkout.parts.items() if checkout.coverage.hash_of(part) != before[name]}


WIDE = {
    "batches",
    "wide",
    "features-wide",
    "fuzz-wide",
    "parameters-wide",
    "memory",
    "stress",
    "devices",
    *(f"{t}-wide" for t in TOOLS),
}
PORTABLE = {"portable", "portable-163", "portable-99", *(f"{t}-portable" for t in TOOLS)}


@pytest.mark.parametrize(
    ("edited", "voided"),
    [
        ("kernels/hopper/wide_backward.cuh", lambda part: part in WIDE),
        ("kernels/hopper/wide_backward_products.cuh", lambda part: part in WIDE),
        ("kernels/common/types.cuh", lambda part: True),
        ("kernels/hopper/forward.cuh", lambda part: part not in {*PORTABLE, "norms", "functions", "conditions"}),
        ("kernels/portable/backward.cuh", lambda part: part not in {"norms", "functions", "conditions"}),
        ("kernels/portable/norm_row.cuh", lambda part: part in {"norms", "stress", "devices", "batches"}),
        ("src/gpu/kernels/norm.cpp", lambda part: part in {"norms", "features", "features-wide", "fuzz", "fuzz-wide"}
         or part in {"training", "devices", "out-of-memory"}),
        ("tests/gpu/gpu_norm_test.cpp", lambda part: part == "norms"),
    ],
)  # fmt: skip
def test_an_edit_voids_the_parts_that_include_the_file(
    checkout: Checkout, edited: str, voided: Callable[[str], bool]
) -> None:
    assert parts_with_other_hashes(checkout, edited) == {part for part in checkout.parts if voided(part)}


def test_a_program_contains_the_hash_of_all_files_that_its_parts_cover(checkout: Checkout) -> None:
    """Otherwise a part could be recorded for a file that its program was not built from."""
    known = checkout.coverage.known_files()
    for name, part in checkout.parts.items():
        if part.is_python:
            continue
        files = set(checkout.coverage.files_of(part))
        assert files - known == {f"tests/gpu/{part.program}.cpp"}, name
        assert {"src/jit/nvrtc.cpp", "kernels/common/types.cuh", "tests/gpu/device.h"} < files, name


@pytest.mark.parametrize("header", ["hopper/wide_backward.cuh", "portable/norm.cuh", "elsewhere/kernel.cuh"])
def test_a_kernel_outside_the_declared_headers_is_refused(
    header: str, checkout: Checkout, call: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    write_entry(checkout.root / "entries", "other", header)
    assert call("run", "problems", "portable") == "gpu-record: failed: problems, portable"
    said = capfd.readouterr().out
    assert f"headers of KERNELS['narrow'] only, got kernels that include {header}" in said
    assert not checkout.recorded()


def test_entries_that_no_process_of_the_run_used_do_not_count(checkout: Checkout, call: Call) -> None:
    folder = checkout.root / "build" / "gpu-record-cache" / "portable"
    write_entry(folder, "other", "portable/norm.cuh")
    for used, failed in ((time.time() + 100, "gpu-record: failed: portable"), (time.time() - 100, "")):
        os.utime(folder / "other.gdpa", (used, used))
        assert call("run", "portable") == failed
    headers = checkout.recorded()["portable"]["runs"][0]["headers"]
    assert set(headers) == {"common/types.cuh", "portable/backward.cuh"}


def test_a_part_without_an_entry_of_the_cache_is_refused(
    checkout: Checkout, call: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    checkout.insert("cp() { :; }")
    assert call("run", "portable") == "gpu-record: failed: portable"
    assert "got none, so their sources are unknown" in capfd.readouterr().out


def test_a_part_for_hopper_kernels_that_ran_none_is_not_recorded(
    checkout: Checkout, call: Call, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KIND", "portable: backward")
    assert call("run", "memcheck", "memcheck-portable") == "gpu-record: failed: memcheck"
    assert "expected at least one kernel hopper: backward, got none" in capfd.readouterr().out
    assert list(checkout.recorded()) == ["memcheck-portable"]


def test_a_test_that_did_not_run_is_noticed(checkout: Checkout, call: Call, capfd: pytest.CaptureFixture[str]) -> None:
    checkout.insert("filter=")
    assert call("run", "problems") == "gpu-record: failed: problems"
    assert re.search(r"problems: expected \d+ tests, ran \d+; the part is not recorded", capfd.readouterr().out)


@pytest.mark.parametrize(
    ("edited", "part", "refused"),
    [
        ("kernels/common/tile.cuh", "memcheck", ["libgdpa", "libgdpa", "gpu_problems_test"]),
        # Built from another wide kernel: refused for all parts, also for those without this kernel.
        ("kernels/hopper/wide_backward.cuh", "portable", ["libgdpa", "libgdpa", "gpu_problems_test"]),
        ("src/gpu/backend.cpp", "fuzz", ["libgdpa", "libgdpa", "libgdpa_torch"]),
        ("tests/cpp/promise.h", "memcheck", ["gpu_problems_test"]),
        ("tests/gpu/gpu_problems_test.cpp", "memcheck", ["gpu_problems_test"]),
    ],
)
def test_what_was_built_from_other_sources_is_refused(
    edited: str, part: str, refused: list[str], checkout: Checkout, call: Call
) -> None:
    checkout.edit(edited)
    checkout.forget_hashes()
    message = call("run", part)
    named = re.findall(r"^  (\w+): expected sources [0-9a-f]{12}, got sources [0-9a-f]{12}: /", message, re.MULTILINE)
    assert sorted(named) == sorted(refused)
    assert "run make build install" in message
    assert not (checkout.root / "log").exists() and not checkout.recorded()
    checkout.build()
    assert not checkout.machine.old_binaries([checkout.parts[part]])


def test_the_build_and_the_record_compute_the_same_hash(checkout: Checkout) -> None:
    source = checkout.root / "built_from.cpp"
    settings = {
        "ROOT": checkout.root,
        "PYTHON": sys.executable,
        "NAME": "gpu_problems_test",
        "GROUPS": "library|tests",
        "FILES": "tests/gpu/gpu_problems_test.cpp",
        "OUTPUT": source,
    }
    command = ["cmake", *(f"-D{key}={value}" for key, value in settings.items()), "-P"]
    subprocess.run([*command, str(checkout.root / "cmake" / "write_built_from.cmake")], check=True)
    expected = checkout.coverage.hash_of_program(checkout.parts["problems"])
    assert says("gpu_problems_test", expected).strip() in source.read_text()


def test_a_program_that_does_not_say_its_sources_is_refused(checkout: Checkout, call: Call) -> None:
    script(checkout.root / PROBLEMS, PROGRAM)
    assert "gpu_problems_test: expected sources" in (message := call("run", "memcheck"))
    assert "got a file without a hash of its sources" in message


def test_a_comment_that_changes_keeps_the_record(checkout: Checkout, call: Call) -> None:
    checkout.write(checkout.complete())
    with (checkout.root / "kernels" / "common" / "tile.cuh").open("a") as file:
        file.write("// edited\n")
    checkout.forget_hashes()
    assert call("check") == ""
    assert not checkout.machine.old_binaries([checkout.parts["memcheck"], checkout.parts["fuzz"]])


def test_show_names_the_machine_and_the_versions_of_each_part(
    checkout: Checkout, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = {"device": "NVIDIA H200", "driver": "580.1", "nvrtc": "13.0.88", "torch": "2.11.0+cu130"}
    complete = checkout.complete()
    run = complete["memcheck"]["runs"][0] | machine | {"problems": 7}
    complete["memcheck"]["runs"] = [run]
    complete["racecheck"] = {"sources": "older", "of": 4, "runs": [run | {"device": "NVIDIA H100"}]}
    del complete["initcheck"]
    checkout.write(complete)
    assert call("show") == ""
    lines = {line.split()[0]: re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines()}
    assert lines["memcheck"] == [
        *("memcheck", "covered", "1 of 4 in 1 run, seed 1", "7", "5", "2026-11-28", "NVIDIA H200"),
        *("580.1", "13.0.88", "2.11.0+cu130"),
    ]
    assert lines["racecheck"][:2] == ["racecheck", "older"] and "NVIDIA H100" in lines["racecheck"]
    assert lines["initcheck"] == ["initcheck", "missing"]


def test_sources_edited_while_a_part_runs_make_its_record_old(checkout: Checkout, call: Call) -> None:
    checkout.insert('echo "struct Edited;" >>"$checkout/kernels/common/tile.cuh"')
    assert call("run", "memcheck") == ""
    checkout.forget_hashes()
    assert "memcheck" in checkout.record.missing()


def test_the_parts_use_all_gpus_and_devices_sees_them(
    checkout: Checkout, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setitem(
        checkout.parts, "devices", checkout.parts["portable"].__class__("gpu_problems_test", "portable", gpus=2)
    )
    checkout.insert('echo "$GDPA_GPU_PROBLEMS $CUDA_VISIBLE_DEVICES" >>"$checkout/gpus"')
    assert call("run", "portable", "portable-99", "devices") == ""
    assert set((checkout.root / "gpus").read_text().split("\n")[:-1]) == {"8 3", "4 5", "1 3,5"}


def test_a_machine_with_one_gpu_leaves_the_record_of_two_gpus(
    checkout: Checkout, call: Call, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    complete = checkout.complete()
    complete["devices"]["sources"] = "older"
    del complete["portable"]
    checkout.write(complete)
    assert call("run") == ""
    assert "devices needs 2 GPUs, got 1; its record stays" in capfd.readouterr().out
    assert checkout.recorded()["devices"] == complete["devices"] and "portable" in checkout.recorded()


# The child process of racecheck writes its process id and waits forever.
STANDS_STILL = '[ "$TOOL" = racecheck ] && { sleep 1000 & echo $! >>"$checkout/started"; wait; }'


def still_run(checkout: Path) -> list[str]:
    """Returns the states of the started processes that have not ended.

    A killed process ends when the scheduler runs it. The function therefore waits up to a minute. A zombie has ended.
    """
    states = [Path(f"/proc/{process}/stat") for process in (checkout / "started").read_text().split()]
    last_moment = time.monotonic() + 60
    while True:
        running = []
        for state in states:
            with contextlib.suppress(OSError):  # the process ends during the read
                running += [text for text in [state.read_text()] if ") Z " not in text]
        if not running or time.monotonic() > last_moment:
            return running
        time.sleep(0.05)


def test_a_part_that_stands_still_is_stopped_and_the_others_are_recorded(
    checkout: Checkout, call: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    checkout.insert(STANDS_STILL)
    ended = call("run", "--limit", "3", "--jobs", "9", "memcheck", "racecheck", "initcheck")
    assert ended == "gpu-record: failed: racecheck"
    assert "expected the process to end within 3 s" in capfd.readouterr().out
    assert sorted(checkout.recorded()) == ["initcheck", "memcheck"]
    assert not still_run(checkout.root)


def test_an_interrupt_stops_what_runs_and_what_would_follow(checkout: Checkout, call: Call) -> None:
    checkout.insert(STANDS_STILL)
    me = threading.get_ident()
    started = checkout.root / "started"
    # A shell that starts a job in the background lets it ignore interrupts, and this process with it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        while not (started.exists() and len(started.read_text().splitlines()) == 2):
            time.sleep(0.1)
        signal.pthread_kill(me, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call("run", "--jobs", "2", "racecheck", "memcheck")
    finally:
        signal.signal(signal.SIGINT, before)
    assert not checkout.recorded() and not still_run(checkout.root)


def test_the_log_of_a_failed_part_names_the_error_of_each_test(
    checkout: Checkout, call: Call, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    error = "CUDA out of memory: " + 20 * "bytes " + "and no more"
    tests = checkout.root / "tests" / "gpu"
    (tests / "conftest.py").write_text("")
    (tests / "test_training.py").write_text(f"def test_one():\n    raise MemoryError({error!r})\n")
    assert "failed: training" in call("run", "training")
    assert re.search(f"^FAILED .*::test_one - MemoryError: {error}$", capfd.readouterr().out, re.MULTILINE)


def test_a_part_that_fails_without_a_word_is_not_recorded(checkout: Checkout, call: Call) -> None:
    checkout.insert('[ "$TOOL" = racecheck ] && [[ $report = */1.xml ]] && kill -KILL $$')
    assert call("run", "memcheck", "racecheck") == "gpu-record: failed: racecheck"
    assert list(checkout.recorded()) == ["memcheck"]


def test_the_installed_library_says_its_sources() -> None:
    folder = Path(gdpa.__path__[0]) / "lib"
    for name, file in (("libgdpa", "libgdpa.so.0"), ("libgdpa_torch", "libgdpa_torch.so")):
        assert re.search(rf"gdpa built from: {name} [0-9a-f]{{64}}\0".encode(), (folder / file).read_bytes())


def test_the_record_has_a_line_for_each_part(checkout: Checkout) -> None:
    """A diff then shows which parts ran."""
    parts = checkout.complete()
    lines = checkout.record.text_of(parts).splitlines()
    assert [line.split('"')[1] for line in lines[2:-2]] == sorted(parts)
    assert json.loads("\n".join(lines)) == {"parts": parts}
    real = (ROOT / "reports" / "gpu.json").read_text()
    assert checkout.record.text_of(json.loads(real)["parts"]) == real
