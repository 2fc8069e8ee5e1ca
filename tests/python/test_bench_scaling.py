"""The benchmark of scaling: its rows and goals, the end of all ranks when one fails, and refused arguments."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path

import processes
import pytest
import torch
from bench_cases import fields

from gdpa.bench import __main__ as bench
from gdpa.bench.agreement import Disagreement
from gdpa.bench.command_line import RankFailed
from gdpa.bench.device import Device
from gdpa.bench.measure import Progress
from gdpa.bench.scaling import strategies
from gdpa.bench.scaling.ranks import CONTEXT, FSDP, ScalingRow, launch
from gdpa.bench.scaling.suite import FIGURES, ScalingReport, goal_of, processes_on

ROW = ScalingRow(
    system=FSDP, version="1", commit="c", direction="step", device="NVIDIA H200", shape="s", dtype="bfloat16",
    activation="silu", mask="causal", B=2, H=4, d=128, q=9, tokens=20, processes=2, backend="nccl", ms_one=5.0, ms=5.4,
    tokens_per_second_one=2000.0, tokens_per_second=3703.7, scaling=1.852, largest_part=1.0, difference=0.0,
)  # fmt: skip


def report_of(*rows: ScalingRow) -> ScalingReport:
    return ScalingReport("scaling", "NVIDIA H200, 2 GPUs", "torch", "commit", "method", list(rows))


def fail_on_rank_1(rank: int, world: int, store: str, progress: Progress, how: str) -> int:
    """Fails on rank 1. Rank 0 waits without end, as in a collective."""
    progress(0.5, "before the failure")
    if rank == 0:
        time.sleep(600)
    if how == "dies":
        os._exit(7)
    raise Disagreement("differs") if how == "disagrees" else ValueError("no such kernel")


def test_the_command_compares_one_process_with_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: processes.context)
    arguments = ["scaling", "--device", "cpu", "--seconds", "0", "--rounds", "1", "--threads", "1", "--layers", "1"]
    assert bench.main([*arguments, "--report", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "not measured" in printed.out and "1 cases, " in printed.err
    (document,), (page,), (picture,) = (
        list(tmp_path.glob(f"scaling-*-2-processes.{e}")) for e in ("json", "md", "png")
    )
    read = json.loads(document.read_text())
    assert all(list(row) == fields(ScalingRow) for row in read["rows"])
    assert [(row["system"], row["direction"], row["mask"]) for row in read["rows"]] == [
        (FSDP, "step", "causal"), *((CONTEXT, one, mask) for mask in ("none", "causal") for one in ("fwd", "fwd+bwd")),
    ]  # fmt: skip
    assert 2 * len(read["rows"]) == FIGURES
    for row in read["rows"]:
        # On one rank, a step has half of the users, and attention has the whole sequence.
        tokens_one = row["tokens"] / 2 if row["system"] == FSDP else row["tokens"]
        assert row["tokens_per_second_one"] == pytest.approx(tokens_one / row["ms_one"] * 1e3)
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["ms"] * 1e3)
        assert row["scaling"] == pytest.approx(row["tokens_per_second"] / row["tokens_per_second_one"])
        assert (row["processes"], row["backend"]) == (2, "gloo")
        assert 1 <= row["largest_part"] < 1.5 and row["difference"] < 1e-5
    assert [figure["goal"] for figure in read["figures"]] == [1.85, 1.7, 1.7, 1.7, 1.7]
    assert not any(figure["reached"] for figure in read["figures"])
    assert f"]({picture.name})" in page.read_text() and picture.read_bytes().startswith(b"\x89PNG")


def test_goals_grow_with_the_number_of_gpus() -> None:
    low = replace(ROW, scaling=1.84)
    of_context = replace(ROW, system=CONTEXT, scaling=1.7)
    goals = report_of(ROW, low, of_context).figures
    assert [(one.measured, one.goal, one.reached) for one in goals] == [
        (1.852, 1.85, True), (1.84, 1.85, False), (1.7, 1.7, True),
    ]  # fmt: skip
    eight = replace(ROW, processes=8, scaling=7.3)
    assert (goal_of(eight).goal, goal_of(eight).reached) == (pytest.approx(7.4), False)
    on_the_cpu = goal_of(replace(ROW, backend="gloo"))
    assert on_the_cpu.measured is None and on_the_cpu.unit == "needs several GPUs" and not on_the_cpu.reached


def test_the_picture_marks_reached_and_missed_goals(tmp_path: Path) -> None:
    written = report_of(ROW, replace(ROW, system=CONTEXT, scaling=1.2)).write(tmp_path)
    assert [path.name for path in written] == [f"scaling-h200-2-gpus.{end}" for end in ("json", "md", "png")]
    page = written[1].read_text()
    assert "| at least 1.85 | yes |" in page and "| at least 1.7 | no |" in page and "ms on 2" in page


def test_the_parts_of_the_batch_are_balanced_and_lose_no_user() -> None:
    shape = strategies.whole_shape("cuda", 2, layers=2, batch_factor=1.0)
    parts = strategies.parts_of(shape, 2)
    assert shape.batch == 512 and sorted(user for part in parts for user in part) == list(range(512))
    work = [sum(shape.lengths[n] ** 2 + 5 * 512 * shape.lengths[n] for n in part) for part in parts]
    assert max(work) < 1.001 * min(work)


def test_the_long_sequence_has_65536_rows_on_a_gpu() -> None:
    case = strategies.long_sequence("cuda", "causal")
    assert (case.lengths_q, case.heads, case.head_dim, case.dtype) == ((65_536,), 4, 128, "bfloat16")
    assert strategies.long_sequence("cuda", "none", 0.25).lengths_k == (16_384,)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", r"(?s)^rank 1: .*Traceback.*ValueError: no such kernel; all ranks have been ended$"),
        ("dies", "^rank 1: process 1 terminated with exit code 7; all ranks have been ended$"),
        ("disagrees", r"(?s)^rank 1: .*Disagreement: differs; all ranks have been ended$"),
    ],
)
def test_a_rank_that_fails_ends_all_ranks(how: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forked = multiprocessing.get_context("fork")  # starts at once, because it imports nothing
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forked)
    with pytest.raises(RankFailed, match=message):
        launch(fail_on_rank_1, 2, (how,), lambda done, text: None)
    assert not multiprocessing.active_children()


def test_the_command_ends_with_1_if_a_rank_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RankFailed("rank 1: ValueError: no such kernel")

    monkeypatch.setattr("gdpa.bench.scaling.suite.launch", fail)
    assert bench.main(["scaling", "--device", "cpu"]) == 1
    assert "gdpa.bench: rank 1: ValueError: no such kernel" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scaling", "--device", "cuda:1"], "--device: expected"),
        (["scaling", "--device", "cpu", "--processes", "1"], "--processes: expected at least 2"),
    ],
)
def test_refused_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(arguments) == 2
    assert message in capsys.readouterr().err


class OneGpu(Device):
    torch_device = torch.device("cuda")

    def describe(self) -> str:
        return "NVIDIA H200"


def test_one_gpu_is_refused_with_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(ValueError, match="scaling: needs several GPUs; PyTorch finds one, NVIDIA H200; make more"):
        processes_on(OneGpu(), None)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert processes_on(OneGpu(), None) == 4 and processes_on(OneGpu(), 2) == 2
    with pytest.raises(ValueError, match="--processes: expected a number from 2 to 4, the number of GPUs; got 5"):
        processes_on(OneGpu(), 5)
