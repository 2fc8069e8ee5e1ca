"""scripts/gpu-record in a small checkout. Its GPU programs are scripts that write the files of a test.

The programs contain the hash of their sources in the form of a real build.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

import gdpa

ROOT = Path(__file__).parents[2]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")

# Logs its settings and writes the report of one test.
PROGRAM = r"""#!/bin/bash
memory=${GDPA_SHARED_KILOBYTES:-own}
echo "${TOOL:-none} $memory $GDPA_GPU_PROBLEMS" >>"${0%/build/*}/log"
[ "$memory" = own ] && kind=hopper || kind=portable
for word; do [[ $word = --gtest_output=xml:* ]] && report=${word#*:}; done
cat >"$report" <<END
<testsuites><testsuite><testcase name="Drawn" classname="Problems"><properties>
<property name="problems" value="$GDPA_GPU_PROBLEMS"/><property name="kernel ${KIND:-$kind}:" value="1"/>
</properties></testcase></testsuite></testsuites>
END
"""
SANITIZER = """#!/bin/bash
[[ $2 = --tool=* ]] && export TOOL=${2#--tool=}
exec "${@:3}"
"""


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def build(checkout: Path, name: str, file: Path, *covered: str, text: str = "") -> None:
    """Writes a file with the hash that a build of the checkout would contain."""
    source = checkout / "built_from.cpp"
    groups = "library|tests" if covered else "library"
    settings = {
        "ROOT": checkout,
        "PYTHON": sys.executable,
        "NAME": name,
        "GROUPS": groups,
        "FILES": ";".join(covered),
        "OUTPUT": source,
    }
    command = ["cmake", *(f"-D{key}={value}" for key, value in settings.items()), "-P"]
    subprocess.run([*command, str(checkout / "cmake" / "write_built_from.cmake")], check=True)
    script(file, f"{text}\n# {source.read_text()}")


def build_all(checkout: Path) -> None:
    program = checkout / "build" / "tests" / "gpu" / "gpu_problems_test"
    build(checkout, "libgdpa", checkout / "libgdpa.so")
    text = PROGRAM + (checkout / "libgdpa.so").read_text()
    build(checkout, "gpu_problems_test", program, "tests/gpu/gpu_problems_test.cpp", text=text)
    build(checkout, "libgdpa", checkout / "package" / "lib" / "libgdpa.so.0")
    build(checkout, "libgdpa_torch", checkout / "package" / "lib" / "libgdpa_torch.so")


def insert(checkout: Path, line: str) -> None:
    """A first line of the program under a sanitizer, which still says its sources."""
    program = checkout / "build" / "tests" / "gpu" / "gpu_problems_test"
    program.write_text(program.read_text().replace("#!/bin/bash", f"#!/bin/bash\n{line}"))


def some_files(folder: str, names: list[str]) -> set[str]:
    """Selects the files that the checkout lacks: hashing every source would take most of the time of the tests."""
    files = sorted(name for name in names if not (Path(folder) / name).is_dir())
    return set(files[1:]) - {"backend.cpp", "backward.cuh", "gpu_plan.cpp", "gpu_plan.h", "tile.cuh"}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with ROOT in tmp_path."""
    for folder in ("cmake", "scripts", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("include", "kernels", "src", "torch"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=some_files)
    path = tmp_path / "scripts" / "gpu-record"
    build_all(tmp_path)
    report = json.dumps({"library": str(tmp_path / "libgdpa.so"), "components": []})
    script(tmp_path / "build" / "tools" / "gdpa", f"#!/bin/bash\necho '{report}'\n")
    package = importlib.machinery.ModuleSpec("gdpa", None, is_package=True)
    package.submodule_search_locations = [str(tmp_path / "package")]
    monkeypatch.setattr(importlib.util, "find_spec", {"gdpa": package}.get)
    script(tmp_path / "bin" / "compute-sanitizer", SANITIZER)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.delenv("GDPA_SHARED_KILOBYTES", raising=False)
    loader = importlib.machinery.SourceFileLoader("gpu_record", str(path))
    specification = importlib.util.spec_from_loader("gpu_record", loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "gpu_record", module)
    loader.exec_module(module)
    monkeypatch.setattr(module, "machine", lambda: {"device": "Fake GPU"})
    return module


def call(record: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """The words that it ends with; empty where it succeeds."""
    monkeypatch.setattr(sys, "argv", ["gpu-record", *arguments])
    try:
        record.main()
    except SystemExit as end:
        return str(end.code)
    return ""


def test_each_sanitizer_runs_on_the_kernels_of_the_gpu_and_on_the_portable_ones(
    record: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts = [name for tool in TOOLS for name in (tool, f"{tool}-portable")]
    assert call(record, monkeypatch, "run", *parts) == ""
    expected = [f"{tool} {kilobytes} 4" for tool in TOOLS for kilobytes in ("own", "226")]
    assert set((tmp_path / "log").read_text().splitlines()) == set(expected)
    assert sorted(json.loads((tmp_path / "reports" / "gpu.json").read_text())["parts"]) == sorted(parts)


@pytest.mark.parametrize("part", [name for tool in TOOLS for name in (tool, f"{tool}-portable")])
def test_the_check_requires_each_part_under_a_sanitizer(
    part: str, record: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "LEAST_PROBLEMS", 0)
    parts = {name: {"sources": entry.sources, "problems": 1} for name, entry in record.PARTS.items()}
    record.RECORD.parent.mkdir()
    record.RECORD.write_text(json.dumps({"parts": parts}))
    assert call(record, monkeypatch, "check") == ""
    del parts[part]
    record.RECORD.write_text(json.dumps({"parts": parts}))
    assert f"does not cover the current sources: {part};" in call(record, monkeypatch, "check")


def test_a_run_that_continues_another_has_its_seed_and_a_new_run_has_a_new_seed(
    record: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GDPA_FUNCTION_SEED", raising=False)
    monkeypatch.setattr(record, "PARTS", {name: record.PARTS[name] for name in TOOLS[:2]})
    drawn = iter([7, 8, 9])
    monkeypatch.setattr(record.secrets, "randbelow", lambda _: next(drawn))
    for arguments, seed in ((["run", TOOLS[0]], 7), (["run"], 7), (["run", "--again"], 8)):
        assert call(record, monkeypatch, *arguments) == ""
        assert {entry["function_seed"] for entry in record.recorded().values()} == {seed}
    assert list(record.recorded()) == sorted(TOOLS[:2])


def test_a_part_for_hopper_kernels_that_ran_none_is_not_recorded(
    record: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KIND", "portable")
    assert call(record, monkeypatch, "run", "memcheck", "memcheck-portable") == "gpu-record: failed: memcheck"
    assert "expected at least one hopper kernel, got none" in capfd.readouterr().out
    assert list(record.recorded()) == ["memcheck-portable"]


@pytest.mark.parametrize(
    ("edited", "part", "refused"),
    [
        ("kernels/common/tile.cuh", "memcheck", ["libgdpa", "libgdpa", "gpu_problems_test"]),
        ("src/cuda/backend.cpp", "fuzz", ["libgdpa", "libgdpa", "libgdpa_torch"]),
        ("tests/cpp/promise.h", "memcheck", ["gpu_problems_test"]),
        ("tests/gpu/gpu_problems_test.cpp", "memcheck", ["gpu_problems_test"]),
    ],
)
def test_what_was_built_from_other_sources_is_refused(
    edited: str, part: str, refused: list[str], record: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / edited).open("a") as file:
        file.write("struct Edited;\n")
    message = call(record, monkeypatch, "run", part)
    named = re.findall(r"^  (\w+): expected sources [0-9a-f]{12}, got sources [0-9a-f]{12}: /", message, re.MULTILINE)
    assert sorted(named) == sorted(refused)
    assert "run make build install" in message
    assert not (tmp_path / "log").exists() and not record.RECORD.exists()
    build_all(tmp_path)
    assert not record.old_binaries([record.PARTS[part]])


def test_a_program_that_does_not_say_its_sources_is_refused(
    record: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script(tmp_path / "build" / "tests" / "gpu" / "gpu_problems_test", PROGRAM)
    assert "gpu_problems_test: expected sources" in (message := call(record, monkeypatch, "run", "memcheck"))
    assert "got a file without a hash of its sources" in message


def test_a_comment_that_changes_keeps_the_record(record: ModuleType, tmp_path: Path) -> None:
    with (tmp_path / "kernels" / "common" / "tile.cuh").open("a") as file:
        file.write("// edited\n")
    assert not record.old_binaries([record.PARTS["memcheck"], record.PARTS["fuzz"]])


def test_show_names_the_machine_and_the_versions_of_each_part(
    record: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = {"device": "NVIDIA H200", "driver": "580.1", "nvrtc": "13.0.88", "torch": "2.11.0+cu130"}
    parts = {
        "memcheck": {"sources": record.PARTS["memcheck"].sources, "tests": 3, "problems": 7, "seconds": 5, **machine}
    }
    parts["racecheck"] = parts["memcheck"] | {"sources": "older", "device": "NVIDIA H100"}
    record.RECORD.parent.mkdir()
    record.RECORD.write_text(json.dumps({"parts": parts}))
    assert call(record, monkeypatch, "show") == ""
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["memcheck"] == [
        "memcheck",
        "covered",
        "3",
        "7",
        "5",
        *["NVIDIA", "H200", "580.1", "13.0.88", "2.11.0+cu130"],
    ]
    assert lines["racecheck"][:2] == ["racecheck", "older"] and "H100" in lines["racecheck"]
    assert lines["initcheck"] == ["initcheck", "missing"]


def test_sources_edited_while_a_part_runs_make_its_record_old(
    record: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    insert(tmp_path, 'echo "struct Edited;" >>"${0%/build/*}/kernels/common/tile.cuh"')
    assert call(record, monkeypatch, "run", "memcheck") == ""
    record.sources_hash.cache_clear()
    assert "memcheck" in record.missing()


def test_the_parts_use_all_gpus_and_devices_sees_them(
    record: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")

    def gpus_of(part: str) -> set[str | None]:
        commands = record.commands_of(record.PARTS[part], tmp_path, "1")
        return {settings.get("CUDA_VISIBLE_DEVICES") for _, settings in commands}

    assert [gpus_of(tool) for tool in TOOLS] == [{"3"}, {"5"}, {"3"}, {"5"}]
    assert gpus_of("devices") == {None}  # the setting of the environment remains


# The child process of racecheck writes its process id and waits forever.
STANDS_STILL = '[ "$TOOL" = racecheck ] && { sleep 1000 & echo $! >>"${0%/build/*}/started"; wait; }'


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
    record: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    insert(tmp_path, STANDS_STILL)
    ended = call(record, monkeypatch, "run", "--limit", "3", "--jobs", "3", "memcheck", "racecheck", "initcheck")
    assert ended == "gpu-record: failed: racecheck"
    assert "expected the part to end within 3 s" in capfd.readouterr().out
    assert sorted(record.recorded()) == ["initcheck", "memcheck"]
    assert not still_run(tmp_path)


def test_an_interrupt_stops_what_runs_and_what_would_follow(
    record: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    insert(tmp_path, STANDS_STILL)
    me = threading.get_ident()
    started = tmp_path / "started"
    # A shell that starts a job in the background lets it ignore interrupts, and this process with it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        while not (started.exists() and len(started.read_text().splitlines()) == record.PARTS["racecheck"].processes):
            time.sleep(0.1)
        signal.pthread_kill(me, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call(record, monkeypatch, "run", "racecheck", "memcheck")
    finally:
        signal.signal(signal.SIGINT, before)
    assert not record.RECORD.exists() and not still_run(tmp_path)


def test_the_log_of_a_failed_part_names_the_error_of_each_test(
    record: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    error = "CUDA out of memory: " + 20 * "bytes " + "and no more"
    (tmp_path / "tests" / "gpu" / "test_training.py").write_text(f"def test_one():\n    raise MemoryError({error!r})\n")
    assert "failed: training" in call(record, monkeypatch, "run", "training")
    assert re.search(f"^FAILED .*::test_one - MemoryError: {error}$", capfd.readouterr().out, re.MULTILINE)


def test_a_part_that_fails_without_a_word_is_not_recorded(
    record: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    insert(tmp_path, '[ "$TOOL" = racecheck ] && [ "$GTEST_SHARD_INDEX" = 3 ] && kill -KILL $$')
    assert call(record, monkeypatch, "run", "memcheck", "racecheck") == "gpu-record: failed: racecheck"
    assert list(record.recorded()) == ["memcheck"]


def test_the_installed_library_says_its_sources() -> None:
    folder = Path(gdpa.__path__[0]) / "lib"
    for name, file in (("libgdpa", "libgdpa.so.0"), ("libgdpa_torch", "libgdpa_torch.so")):
        assert re.search(rf"gdpa built from: {name} [0-9a-f]{{64}}\0".encode(), (folder / file).read_bytes())
