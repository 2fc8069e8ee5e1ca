"""Two builds of gdpa timed in turn: `python -m gdpa.bench --against FOLDER`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gdpa
from gdpa.bench import __main__ as bench
from gdpa.bench import against
from gdpa.bench.cases import Case
from gdpa.bench.device import Device
from gdpa.bench.measure import Effort
from gdpa.bench.progress import silent
from gdpa.bench.report import Refused

PACKAGE = Path(gdpa.__file__).parent
CASE = ["shapes", "--lengths", "3,0,17", "--head-dim", "16", "--dtype", "fp32", "--device", "cpu", "--seconds", "0.003"]


def other_build(folder: Path, more: str = "") -> Path:
    """A copy of this build of gdpa, with more lines at its end."""
    shutil.copytree(PACKAGE, folder / "gdpa", symlinks=True)
    with (folder / "gdpa" / "__init__.py").open("a") as file:
        file.write(f"\n\n_attention = varlen_attention\n\n\n{more}")
    return folder


class Kept(against.Build):
    """A build whose process the next test asks too, because its start takes seconds."""

    def end(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def kept_builds() -> Iterator[dict[Path, Kept]]:
    builds: dict[Path, Kept] = {}
    yield builds
    for build in builds.values():
        build.end()


@pytest.fixture
def keeps_builds(kept_builds: dict[Path, Kept], monkeypatch: pytest.MonkeyPatch) -> None:
    def build(folder: Path, device: str) -> Kept:
        if folder not in kept_builds:
            kept_builds[folder] = Kept(folder, device)
        return kept_builds[folder]

    monkeypatch.setattr(against, "Build", build)


OLDER = """
import sys

sys.modules['gdpa.compat'] = sys.modules['gdpa.mask'] = None  # an import of them fails


def varlen_attention(q, k, v, cu_q, cu_k, *, activation, window_size, deterministic):
    if activation == 'relu':
        raise ValueError('an older build')
    options = {'activation': activation, 'window_size': window_size, 'deterministic': deterministic}
    return _attention(q, k, v, cu_q, cu_k, **options)
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build without params, masks and compat, and with a function that fails."""
    return other_build(tmp_path_factory.mktemp("older"), OLDER)


@pytest.mark.long
def test_a_row_has_both_builds_and_their_ratio(tmp_path: Path) -> None:
    other, rows_file = other_build(tmp_path / "other"), tmp_path / "rows.jsonl"
    assert bench.main([*CASE, "--activation", "silu", "--against", str(other), "--json", str(rows_file)]) == 0
    rows = [json.loads(line) for line in rows_file.read_text().splitlines()]
    assert [row["direction"] for row in rows] == ["fwd", "bwd"]
    for row in rows:
        assert row["activation"] == "silu" and row["ms"] > 0 and row["other_ms"] > 0
        assert len(row["rounds"]) == 3
        assert row["speed_up"] == sorted(row["rounds"])[1]


class Recorded:
    """A build with known seconds for each round."""

    def __init__(self, *rounds: float) -> None:
        self._rounds = iter(rounds)

    def ask(self, **question: Any) -> dict[str, Any]:
        return {} if "prepare" in question else {"times": [next(self._rounds)]}


def test_a_row_compares_the_rounds_and_the_fastest_rounds() -> None:
    builds: Any = [Recorded(0.004, 0.003, 0.006), Recorded(0.002, 0.003, 0.0025)]
    row = against.compare_case(Case((3,), (3,), 1, 16), "fwd", builds, Effort(seconds=0.003, rounds=3), "cpu")
    assert row.rounds == pytest.approx([2, 1, 2.4])
    assert (row.speed_up, row.fastest) == pytest.approx((2, 1.5))


@pytest.mark.usefixtures("keeps_builds")
def test_both_builds_get_the_mask_and_the_tensors_of_a_case(tmp_path: Path) -> None:
    other = other_build(
        tmp_path / "other",
        "def varlen_attention(*args, **keywords):\n"
        "    assert 'kv_idx <= q_idx' in keywords['mask'].text and keywords['params']['slope'].requires_grad\n"
        "    return _attention(*args, **keywords)\n",
    )
    case = Case(
        (3, 5),
        (3, 5),
        2,
        16,
        activation="silu(slope[head] * s)",
        mask="kv_idx <= q_idx",
        tensors=(("slope", "randn:2"),),
    )
    rows, refusals = compared(case, other)
    assert [row.direction for row in rows] == ["fwd", "bwd"] and not refusals


def compared(case: Case, other: Path) -> tuple[list[against.Comparison], list[Refused]]:
    work = [(case, "fwd"), (case, "bwd")]
    steps = against.plan("shapes", work, other, Device(), Effort(seconds=0.003, rounds=3)).steps
    results = [step(silent) for step in steps]
    return [row for one in results for row in one.rows], [refused for one in results for refused in one.refusals]


class Interrupted(Recorded):
    """A build whose second case is interrupted."""

    def __init__(self, folder: Path, device: str) -> None:
        super().__init__(*[0.001] * 6)

    def ask(self, **question: Any) -> dict[str, Any]:
        if "prepare" in question and question["prepare"].activation == "relu":
            raise KeyboardInterrupt
        return super().ask(**question)


def test_the_rows_of_finished_cases_survive_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against, "Build", Interrupted)
    rows_file = tmp_path / "rows.jsonl"
    arguments = [*CASE, "--activation", "silu", "relu", "--against", "anywhere", "--json", str(rows_file)]
    assert bench.main(arguments) == 130
    rows = [json.loads(line) for line in rows_file.read_text().splitlines()]
    assert [row["activation"] for row in rows] == ["silu", "silu"]


@pytest.mark.usefixtures("keeps_builds")
def test_an_older_build_without_params_masks_and_compat_is_timed(older: Path) -> None:
    case = Case((3, 5), (3, 5), 2, 16, activation="silu", mask="causal")
    rows, refusals = compared(case, older)
    assert [row.direction for row in rows] == ["fwd", "bwd"] and not refusals


@pytest.mark.usefixtures("keeps_builds")
def test_the_other_build_is_the_one_that_is_timed(older: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([*CASE, "--activation", "relu", "--direction", "fwd", "--against", str(older)]) == 0
    assert "ValueError: an older build" in capsys.readouterr().out


def test_operands_that_cannot_be_made_refuse_every_direction(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class WithoutMemory:
        def __init__(self, folder: Path, device: str) -> None: ...

        def ask(self, **question: Any) -> dict[str, Any]:
            assert "prepare" in question, "a build without operands is asked for times"
            raise RuntimeError("OutOfMemoryError: 80 GiB")

        def close(self) -> None: ...

    monkeypatch.setattr(against, "Build", WithoutMemory)
    assert bench.main([*CASE, "--against", "anywhere"]) == 0
    assert capsys.readouterr().out.count("OutOfMemoryError: 80 GiB") == 2


def test_a_folder_without_gdpa_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([*CASE, "--against", str(tmp_path)]) == 2
    assert f"expected the package gdpa in {tmp_path}" in capsys.readouterr().err
