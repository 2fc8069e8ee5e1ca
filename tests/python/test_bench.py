"""The Python benchmark: its systems compute the same thing, its rows fit, and nothing is skipped without a word."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_cases import by_name, fields, unpadded
from bench_cases import small_case as case

import gdpa
from gdpa.bench import __main__ as bench
from gdpa.bench import command
from gdpa.bench.cases import Case, cases_of_suite, generate_lengths, movielens_lengths
from gdpa.bench.counts import bytes_of, flops_of, kept_scores
from gdpa.bench.device import Device, Rates, processor_rates
from gdpa.bench.figures import ratios
from gdpa.bench.goals import RateRow
from gdpa.bench.measure import Effort, Result, make_row, measure
from gdpa.bench.rates import columns, table_of_cases
from gdpa.bench.report import Figure, Table, reason_of
from gdpa.bench.shapes import chosen_cases
from gdpa.bench.systems import SYSTEMS, Gdpa, Operands, Padded, SdpaPerSequence, System

CPU = torch.device("cpu")
ON_CPU = tuple(system for system in SYSTEMS if "cpu" in system.devices)
QUICK = Effort(seconds=0.0, rounds=1)


@pytest.mark.parametrize(
    ("name", "timed"),
    [
        ("padded", case()),
        ("padded", case(mask="causal")),
        ("padded", case(activation="sigmoid")),
        ("padded", case(shared_q=True, lengths_q=(4, 4, 4))),
        ("padded", case(shared_kv=True, lengths_k=(5, 5, 5))),
        pytest.param("padded, compiled", case(mask="causal"), marks=pytest.mark.long),
    ],
)
def test_the_padded_systems_compute_what_gdpa_computes(name: str, timed: Case) -> None:
    """A rival that computed something else would be a rival of straw."""
    operands = Operands.random(timed, CPU)
    ours = Gdpa().prepare(timed, operands)
    theirs = by_name(name).prepare(timed, operands)
    our_output, their_output = ours.forward(), theirs.forward()
    torch.testing.assert_close(unpadded(their_output[0], timed.lengths_q), our_output[0])
    our_gradients, their_gradients = ours.backward(our_output), theirs.backward(their_output)
    shared = (timed.shared_q, timed.shared_kv, timed.shared_kv)
    lengths = (timed.lengths_q, timed.lengths_k, timed.lengths_k)
    for got, expected, is_shared, of in zip(their_gradients, our_gradients, shared, lengths, strict=True):
        torch.testing.assert_close(got[0].transpose(0, 1) if is_shared else unpadded(got, of), expected)


def test_nested_and_per_sequence_softmax_agree() -> None:
    timed = case(dtype="float32")
    operands = Operands.random(timed, CPU)
    one_by_one = by_name("SDPA per sequence").prepare(timed, operands).forward()
    nested = by_name("SDPA nested").prepare(timed, operands).forward()
    torch.testing.assert_close(nested[0], torch.cat([output[0].transpose(0, 1) for output in one_by_one]))


class Unbounded(Device):
    """The processor, without the time that measuring its rates takes."""

    bound: Rates | None = None

    def rates(self, dtype: str, product_flops: float | None) -> Rates | None:
        return self.bound


def test_a_reason_is_one_line_with_the_cause() -> None:
    assert reason_of(RuntimeError("no kernel\nadvice")) == "RuntimeError: no kernel"
    assert reason_of(RuntimeError("at 1:17:\ndef f():\nNameError('x')")) == "RuntimeError: at 1:17: NameError('x')"
    assert reason_of(RuntimeError()) == "RuntimeError: "


def test_every_system_gives_a_row_or_a_reason() -> None:
    result = measure(case(mask="window:2,0"), ON_CPU, ["fwd"], QUICK, Unbounded())
    named = {row.system for row in result.rows} | {refused.system for refused in result.refusals}
    assert named == {system.name for system in ON_CPU}
    assert all(refused.reason for refused in result.refusals)


class Broken(System):
    name = "broken"

    def prepare(self, case: Case, operands: Operands) -> None:  # type: ignore[override]
        raise RuntimeError("needs a device that is not there\nand a long story")


def test_a_system_that_fails_is_reported_with_its_words_and_stops_nothing() -> None:
    result = measure(case(batch_limit=2), [Broken(), Gdpa()], ["fwd", "bwd"], QUICK, Unbounded())
    assert [row.system for row in result.rows] == ["gdpa", "gdpa"]
    assert {refused.reason for refused in result.refusals} == {"RuntimeError: needs a device that is not there"}


def test_rows_have_the_fields_of_the_command_line() -> None:
    line = command.output_of("bench", "--lengths", "5", "--direction", "fwd", "--seconds", "0", "--json")
    assert fields(RateRow) == list(json.loads(line))


def test_a_row_says_what_was_run() -> None:
    device = Unbounded()
    device.bound = Rates(1e12, 1e11)
    row = measure(case(batch_limit=2, mask="causal"), [Gdpa()], ["bwd"], QUICK, device).rows[0]
    assert (row.system, row.version, row.dtype, row.mask) == ("gdpa", gdpa.__version__, "float64", "causal")
    assert (row.B, row.H_q, row.d, row.q, row.kv) == (3, 2, 8, 12, 12)
    assert row.fill == pytest.approx(22 / 36)
    kept = 7 * 8 / 2 + 3 * 4 / 2 + 12 * 13 / 2
    assert row.tflops * row.ms * 1e9 == pytest.approx(2.5 * 4 * 2 * 8 * kept)
    assert row.cublas_tflops is None and row.floor_tflops and row.floor_tflops <= 1


def test_the_commit_is_that_of_the_package_and_not_of_another_command_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "gdpa"
    other.write_text("#!/bin/sh\necho 'gdpa 0.1.0 (commit other)'\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("GDPA_COMMAND", raising=False)
    assert Path(command.find()).parent == Path(gdpa.__file__).with_name("bin")
    assert command.commit.__wrapped__() not in ("other", "unknown")


def test_lengths_are_those_of_the_command_line() -> None:
    for fill, seed in ((1.0, 0), (0.5, 0), (0.3, 7), (0.8, 4294967295)):
        options = ("--batch", "50", "--max-length", "97", "--fill", str(fill), "--seed", str(seed))
        problem = command.json_of("explain", *options)["problem"]
        assert generate_lengths(50, 97, fill, seed) == tuple(problem["lengths_q"])


def test_flop_and_bytes_are_those_of_the_plan() -> None:
    timed = case(mask="window:3,1", lengths_k=(4, 9, 12))
    lengths = ["--lengths-q", "7,3,12", "--lengths-k", "4,9,12", "--dtype", "float64"]
    plan = command.json_of("explain", *lengths, "--heads", "2", "--head-dim", "8", "--mask", timed.mask)
    for direction, name in (("fwd", "forward"), ("bwd", "backward")):
        assert flops_of(timed, direction) == plan[name]["flops"]
        assert bytes_of(timed, direction) == plan[name]["bytes"]


# Every number is another one, so that no column can have the number of another one.
SIZED = RateRow(
    system="gdpa", version="1", commit="abc", direction="fwd", device="a processor", shape="sized", dtype="float32",
    activation="silu", accuracy="fast", deterministic=False, mask="none", B=2, H_q=6, H_k=3, d=16, d_v=40, q=400,
    kv=500, fill=0.75, shared_q=False, shared_kv=False, bytes=7e6, ms=4.0, tflops=0.12,
    cublas_tflops=None, floor_tflops=0.2,
)  # fmt: skip


def shown(table: Table) -> dict[str, str]:
    (line,) = table.lines
    return dict(zip(table.columns, line, strict=True))


def test_a_line_of_the_table_has_the_numbers_of_its_row() -> None:
    assert shown(Table.of("", columns([SIZED]), [SIZED], 5)) == {
        "": "fwd", "system": "gdpa", "dtype": "float32", "f": "silu", "mask": "none", "B": "2", "H": "6", "d": "16",
        "q": "400", "kv": "500", "fill": "0.75", "ms": "4.000", "GFLOP/s": "120.0", "of floor": "0.60",
    }  # fmt: skip
    on_gpu = replace(SIZED, tflops=480.0, cublas_tflops=640.0, floor_tflops=600.0, shared_q=True)
    line = shown(Table.of("", columns([on_gpu]), [on_gpu], 5))
    assert {name: line[name] for name in ("q", "kv", "TFLOP/s", "of cuBLAS", "of floor")} == {
        "q": "400 shared", "kv": "500", "TFLOP/s": "480.0", "of cuBLAS": "0.75", "of floor": "0.80"
    }  # fmt: skip


def test_a_line_of_the_report_has_the_numbers_of_its_case() -> None:
    table = table_of_cases("Forward", [SIZED, replace(SIZED, system="other", activation="softmax", tflops=0.09)])
    assert table.heading == "Forward, GFLOP/s"
    assert shown(table) == {
        "shape": "sized", "dtype": "float32", "mask": "none", "B": "2", "d": "16", "q": "400", "kv": "500",
        "fill": "0.75", "cuBLAS": "", "floor": "200", "frontier": "", "gdpa (silu)": "120.0", "other (softmax)": "90.0",
    }  # fmt: skip


def test_a_row_has_the_sizes_of_its_case() -> None:
    timed = Case((3, 9), (4, 11), heads=6, head_dim=16, dtype="float32", activation="silu")
    row = make_row(timed, Gdpa(), "bwd", 2e-3, Device(), None)
    assert (row.B, row.H_q, row.H_k, row.d, row.d_v, row.q, row.kv) == (2, 6, 6, 16, 16, 9, 11)
    assert row.fill == 12 / 18
    assert row.tflops * row.ms * 1e9 == pytest.approx(2.5 * 4 * 6 * 16 * (3 * 4 + 9 * 11))


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 0), (0, 3), (-1, 2), (4, -1)])
@pytest.mark.parametrize(("length_q", "length_k"), [(0, 5), (5, 0), (6, 6), (3, 9), (9, 3)])
def test_kept_scores_are_counted_one_by_one(length_q: int, length_k: int, window: tuple[int, int]) -> None:
    left, right = window
    counted = sum(
        (left < 0 or j >= i + length_k - length_q - left) and (right < 0 or j <= i + length_k - length_q + right)
        for i in range(length_q)
        for j in range(length_k)
    )
    assert kept_scores(f"window:{left},{right}", length_q, length_k) == counted


def test_suites_scale_and_share() -> None:
    self_attention, pffn, pma = cases_of_suite("uses", batch_factor=1 / 32)
    assert len(self_attention.lengths_q) == 2
    assert pffn.shared_kv and set(pffn.lengths_k) == {64}
    assert pma.shared_q and set(pma.lengths_q) == {4}


def test_a_shape_of_a_suite_may_differ_in_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"head_dim": 8, "length_q": 6, "length_k": 9, "activation": ["silu", "relu"], "mask": "window:2,0"}
    shape |= {"batch": 3, "heads": 2, "dtype": "float16", "shared_kv": True}
    plain = {"head_dim": 4, "length_q": 5, "length_k": 5}
    suite = {"batch": 7, "heads": 1, "dtype": "float32", "activation": "gelu", "shapes": [plain, shape]}
    monkeypatch.setattr("gdpa.bench.cases.suites", lambda: {"own": suite})
    first, silu, relu = cases_of_suite("own")
    assert first == Case((5,) * 7, (5,) * 7, 1, 4, "float32", "gelu")
    assert silu == Case((6,) * 3, (9,) * 3, 2, 8, "float16", "silu", "window:2,0", shared_kv=True)
    assert relu == replace(silu, activation="relu")


def test_options_replace_what_a_suite_says_and_no_case_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"head_dim": 8, "length_q": 6, "length_k": 6, "activation": ["silu", "relu"], "mask": "causal"}
    suite = {"batch": 2, "heads": 2, "dtype": "float32", "shapes": [shape]}
    for module in ("cases", "shapes", "__main__"):
        monkeypatch.setattr(f"gdpa.bench.{module}.suites", lambda: {"own": {**suite, "description": ""}})
    asked = bench.parse(["own", "--activation", "gelu", "--dtype", "fp16"])
    (only,) = chosen_cases(asked)
    assert (only.activation, only.dtype, only.mask) == ("gelu", "float16", "causal")
    as_it_is = chosen_cases(bench.parse(["own", "--mask", "none"]))
    assert [(case.activation, case.mask) for case in as_it_is] == [("silu", "none"), ("relu", "none")]


def test_the_floor_is_that_of_the_threads_that_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    answer = {"rates": {"float32": {"product_tflops": 2.0, "copy_gb_per_second": 3.0}}}
    monkeypatch.setattr(command, "json_of", lambda *arguments: asked.append(arguments) or answer)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    processor_rates.cache_clear()
    assert Device().rates("bfloat16", None) == Rates(2e12, 3e9)
    processor_rates.cache_clear()
    assert asked[0][-2:] == ("--threads", "3")


def test_movielens_has_its_943_histories() -> None:
    pytest.importorskip("recbole")
    lengths = movielens_lengths()
    assert (len(lengths), min(lengths), max(lengths), sum(lengths)) == (943, 20, 737, 100_000)


def test_ratios_put_the_right_system_on_top() -> None:
    timed = case(dtype="float32")
    systems = [Gdpa(), Gdpa().variant(dtype="float16"), SdpaPerSequence(), Padded()]
    result = measure(timed, systems, ["fwd", "bwd"], QUICK, Unbounded())
    ms = {"gdpa": 2.0, "SDPA per sequence": 3.0, "padded": 8.0}
    rows = [replace(row, ms=4.0 if row.dtype == "float16" else ms[row.system]) for row in result.rows]
    measured = {figure.what: figure for figure in ratios(Result(rows), "none")}
    assert measured["float32 against SDPA per sequence, mask none, fwd"].measured == 1.5
    assert measured["float32 against padded product-GELU-product, mask none, bwd"].measured == 4.0
    assert measured["float16 against float32, mask none, fwd"].measured == 0.5
    missing = measured["bfloat16 against float32, mask none, fwd"]
    assert missing.measured is None and not missing.reached


def test_a_figure_knows_when_it_is_reached() -> None:
    assert Figure("speed", 1.2, 1.2, "x").reached
    assert not Figure("speed", 1.19, 1.2, "x").reached
    assert Figure("cost", 4.0, 5, "us", more_is_better=False).reached
    assert not Figure("cost", 5.1, 5, "us", more_is_better=False).reached


def test_the_command_prints_a_table_and_writes_rows_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, picture = tmp_path / "rows.jsonl", tmp_path / "new" / "rates.png"
    arguments = [
        "shapes",
        "--device",
        "cpu",
        "--lengths",
        "5,9",
        "--heads",
        "1",
        "--head-dim",
        "8",
        "--systems",
        "gdpa",
        "SDPA per sequence",
    ]
    arguments += [
        "--seconds",
        "0",
        "--rounds",
        "1",
        "--mask",
        "window:2,0",
        "--json",
        str(rows),
        "--plot",
        str(picture),
    ]
    assert bench.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "GFLOP/s" in printed
    assert "not run: SDPA per sequence, fwd: does not support windows" in printed
    assert [json.loads(line)["system"] for line in rows.read_text().splitlines()] == ["gdpa", "gdpa"]
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["uses", "--shapes", "4"], "of 1 self-attention; 2 PFFN; 3 PMA; got '4'"),
        (["shapes", "--without", "nosuch"], "--without: expected names among gdpa"),
        (["redraw", __file__], "expected a document that --report of this version has written"),
        (["shapes", "--lengths", "nosuch"], "expected movielens"),
        (["shapes", "--mask", "triangle"], "expected none, causal, window:LEFT,RIGHT"),
        (["shapes", "--activation", "sigmod(s)"], "sigmod"),
        (["shapes", "--systems", "nosuch"], "expected names among gdpa"),
        (["shapes", "--systems", "SDPA cuDNN", "--device", "cpu"], "on cpu; got 'SDPA cuDNN'"),
        (["shapes", "--device", "tpu"], "expected cpu, cuda or cuda:N"),
        (["shapes", "--device", "cuda:99"], "expected one of PyTorch's"),
        (["shapes", "--gradients", "q"], "--gradients: expected --against with it"),
    ],
)
def test_wrong_arguments_are_refused_in_words(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], "invalid choice: 'nosuch'"),
        (["uses", "--head-dim", "8"], "unrecognized arguments: --head-dim"),
        (["shapes", "--shapes", "1"], "unrecognized arguments: --shapes"),
        (["norms", "--systems", "gdpa"], "unrecognized arguments: --systems"),
        (["shapes", "--fill", "2"], "expected a number from 0 to 1; got 2"),
        (["uses", "--scale-batch", "0"], "expected a number above 0; got 0"),
        (["shapes", "--rounds", "0"], "--rounds: expected a number from 1 up; got 0"),
    ],
)
def test_a_command_refuses_options_of_others_and_wrong_numbers(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        bench.main(arguments)
    assert end.value.code == 2 and words in capsys.readouterr().err


@pytest.mark.parametrize("command", ["hopper", "shapes", "figures", "training", "norms", "scaling", "redraw"])
def test_every_command_describes_its_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        bench.main([command, "--help"])
    assert end.value.code == 0
    assert "--report" in capsys.readouterr().out


def test_an_interrupted_run_keeps_the_finished_cases_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, measured = tmp_path / "rows.jsonl", []

    def measure_once(timed: Case, *others: Any) -> Result:
        if measured:
            raise KeyboardInterrupt
        measured.append(timed)
        return measure(timed, *others)

    monkeypatch.setattr("gdpa.bench.shapes.measure", measure_once)
    arguments = [
        "shapes",
        "--device",
        "cpu",
        "--lengths",
        "5,9",
        "--heads",
        "1",
        "--head-dim",
        "8",
        "--systems",
        "gdpa",
    ]
    arguments += ["--seconds", "0", "--rounds", "1", "--dtype", "float32", "float64", "--json", str(rows)]
    assert bench.main(arguments) == 130
    assert "interrupted; --report writes each case when it has finished" in capsys.readouterr().err
    assert [json.loads(line)["dtype"] for line in rows.read_text().splitlines()] == ["float32", "float32"]


def test_it_runs_as_a_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gdpa.bench", "systems", "--device", "cpu"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("gdpa.bench", run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out.splitlines() == [system.name for system in ON_CPU]
