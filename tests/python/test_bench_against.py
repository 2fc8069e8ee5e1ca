"""Two builds of gdpa timed in turn: `python -m gdpa.bench --against FOLDER`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import gdpa
from gdpa.bench import __main__ as bench
from gdpa.bench import against
from gdpa.bench.cases import Case
from gdpa.bench.measure import Effort

PACKAGE = Path(gdpa.__file__).parent
CASE = ["--lengths", "3,0,17", "--head-dim", "16", "--dtype", "fp32", "--device", "cpu", "--seconds", "0.003"]


def other_build(folder: Path, *, broken: bool = False) -> Path:
    """A copy of this build of gdpa, or a copy with a failing attention."""
    shutil.copytree(PACKAGE, folder / "gdpa", symlinks=True)
    if broken:
        with (folder / "gdpa" / "__init__.py").open("a") as file:
            file.write("\n\ndef varlen_attention(*args, **keywords):\n    raise ValueError('an older build')\n")
    return folder


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

    def ask(self, **_: Any) -> dict[str, Any]:
        return {"times": [next(self._rounds)]}


def test_a_row_compares_the_rounds_and_the_fastest_rounds() -> None:
    builds: Any = [Recorded(0.004, 0.003, 0.006), Recorded(0.002, 0.003, 0.0025)]
    row = against.compare_case(Case((3,), (3,), 1, 16), "fwd", builds, Effort(seconds=0.003, rounds=3), "cpu")
    assert row.rounds == pytest.approx([2, 1, 2.4])
    assert (row.speed_up, row.fastest) == pytest.approx((2, 1.5))


def test_both_builds_get_the_mask_and_the_tensors_of_a_case(tmp_path: Path) -> None:
    other = other_build(tmp_path / "other")
    with (other / "gdpa" / "__init__.py").open("a") as file:
        file.write(
            "\n\n_attention = varlen_attention\n\n\n"
            "def varlen_attention(*args, **keywords):\n"
            "    assert 'j <= i' in keywords['mask'].text and keywords['params']['slope'].requires_grad\n"
            "    return _attention(*args, **keywords)\n"
        )
    case = Case((3, 5), (3, 5), 2, 16, activation="silu(slope[h] * s)", mask="j <= i", tensors=(("slope", "randn:2"),))
    rows, refusals = against.compare([(case, ("fwd", "bwd"))], other, "cpu", "cpu", Effort(seconds=0.003, rounds=3))
    assert [row.direction for row in rows] == ["fwd", "bwd"] and not refusals


def test_the_rows_of_finished_cases_survive_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = against.compare_case

    def interrupted(case: Case, direction: str, *rest: Any) -> against.Comparison:
        if case.activation == "relu":
            raise KeyboardInterrupt
        return measured(case, direction, *rest)

    monkeypatch.setattr(against, "compare_case", interrupted)
    other, rows_file = other_build(tmp_path / "other"), tmp_path / "rows.jsonl"
    arguments = [*CASE, "--activation", "silu", "relu", "--against", str(other), "--json", str(rows_file)]
    assert bench.main(arguments) == 130
    rows = [json.loads(line) for line in rows_file.read_text().splitlines()]
    assert [row["activation"] for row in rows] == ["silu", "silu"]


def test_an_older_build_without_params_masks_and_compat_is_timed(tmp_path: Path) -> None:
    other = other_build(tmp_path / "other")
    with (other / "gdpa" / "__init__.py").open("a") as file:
        file.write(
            "\n\nimport sys\n\n"
            "sys.modules['gdpa.compat'] = sys.modules['gdpa.mask'] = None  # an import of them fails\n"
            "_attention = varlen_attention\n\n\n"
            "def varlen_attention(q, k, v, cu_q, cu_k, *, activation, window_size, deterministic):\n"
            "    options = {'activation': activation, 'window_size': window_size, 'deterministic': deterministic}\n"
            "    return _attention(q, k, v, cu_q, cu_k, **options)\n"
        )
    case = Case((3, 5), (3, 5), 2, 16, activation="silu", mask="causal")
    rows, refusals = against.compare([(case, ("fwd", "bwd"))], other, "cpu", "cpu", Effort(seconds=0.003, rounds=3))
    assert [row.direction for row in rows] == ["fwd", "bwd"] and not refusals


def test_the_other_build_is_the_one_that_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = other_build(tmp_path / "other", broken=True)
    assert bench.main([*CASE, "--direction", "fwd", "--against", str(other)]) == 0
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
