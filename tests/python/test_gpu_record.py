"""scripts/gpu-record in a small checkout of its own, whose GPU programs are scripts that write what a test would."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

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


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with ROOT in tmp_path."""
    (tmp_path / "scripts").mkdir()
    path = shutil.copy(ROOT / "scripts" / "gpu-record", tmp_path / "scripts")
    script(tmp_path / "build" / "tests" / "gpu" / "gpu_problems_test", PROGRAM)
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
    parts = {name: {"sources": record.sources_hash(entry), "problems": 1} for name, entry in record.PARTS.items()}
    record.RECORD.parent.mkdir()
    record.RECORD.write_text(json.dumps({"parts": parts}))
    assert call(record, monkeypatch, "check") == ""
    del parts[part]
    record.RECORD.write_text(json.dumps({"parts": parts}))
    assert f"does not cover the sources as they are: {part};" in call(record, monkeypatch, "check")


def test_a_part_for_hopper_kernels_that_ran_none_is_not_recorded(
    record: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KIND", "portable")
    assert call(record, monkeypatch, "run", "memcheck", "memcheck-portable") == "gpu-record: failed: memcheck"
    assert "expected hopper kernels among those that ran, got none" in capfd.readouterr().out
    assert list(record.recorded()) == ["memcheck-portable"]
