"""The goals of a suite: numbers of each kind that were computed by hand, the built-in suites, and the reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_cases import small_case

import gdpa
from gdpa.bench import __main__ as bench
from gdpa.bench import goals, plot
from gdpa.bench.cases import Case, by_shape, cases_of_suite, suites
from gdpa.bench.device import Processor
from gdpa.bench.estimate import estimate
from gdpa.bench.figures import Figure
from gdpa.bench.goals import Goal, frontier, goals_of_suite, standings
from gdpa.bench.measure import Effort, Result, measure
from gdpa.bench.report import Report, merged
from gdpa.bench.rows import Rates, Refused, Row
from gdpa.bench.systems import SYSTEMS, Gdpa, Padded, SdpaPerSequence, in_turn

OWN = {
    "description": "for these tests", "batch": 2, "heads": 2, "dtype": "float32", "activation": "gelu_tanh",
    "shapes": [
        {"name": "long", "head_dim": 8, "length_q": 12, "length_k": 12,
         "activation": ["gelu_tanh", "silu", "relu", "gelu"],
         "goals": {"fwd": {"gelu_tanh": {"of": "cublas", "at_least": 0.9},
                           "silu": {"of": "tflops", "at_least": 530},
                           "relu": {"of": "others", "at_least": 1.3},
                           "gelu": {"of": "row", "row": ["long", "gelu_tanh"], "at_least": 0.8}},
                   "bwd": {"silu": {"of": "row", "row": ["long", "gelu_tanh"], "at_least": 0.7},
                           "relu": {"of": "floor", "at_least": 0.65}}}},
        {"name": "short", "head_dim": 8, "length_q": 6, "length_k": 6,
         "goals": {"fwd": {"gelu_tanh": {"of": "frontier", "at_least": 0.85}}}},
        {"name": "repeated", "head_dim": 8, "length_q": 6, "length_k": 6, "deterministic": True,
         "directions": ["bwd"]},
    ],
}  # fmt: skip


@pytest.fixture
def own_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cases", "goals"):
        monkeypatch.setattr(f"gdpa.bench.{module}.suites", lambda: {"own": OWN})


def row(**changes: Any) -> Row:
    """A row of gdpa on the shape long: 600 TFLOP/s where cuBLAS gives 625."""
    first = Row(
        system="gdpa", version="1", commit="abc", direction="fwd", device="NVIDIA H200", shape="long", dtype="bfloat16",
        activation="gelu_tanh", accuracy="fast", deterministic=False, mask="none", B=2, H_q=2, H_k=2, d=8, d_v=8, q=12,
        kv=12, fill=1.0, shared_q=False, shared_kv=False, bytes=6e9, ms=1.0, tflops=600.0, cublas_tflops=625.0,
        floor_tflops=500.0,
    )  # fmt: skip
    return replace(first, **changes)


def measured(rows: list[Row]) -> dict[str, float | None]:
    return {standing.goal.activation: standing.measured for standing in standings("own", rows, [])}


def test_each_kind_of_goal_by_hand(own_suite: None) -> None:
    rows = [
        row(),
        row(activation="silu", tflops=500.0),
        row(activation="relu", tflops=750.0),
        row(activation="gelu", tflops=450.0, cublas_tflops=600.0),  # another part of the run: another clock
        row(system="slow", activation="softmax", tflops=300.0),
        row(system="fast", activation="softmax", tflops=500.0),
    ]
    found = measured(rows)
    assert found["gelu_tanh"] == pytest.approx(0.96)
    assert found["silu"] == pytest.approx(528)
    assert found["relu"] == pytest.approx(1.5)
    assert found["gelu"] == pytest.approx(0.75 / 0.96)
    told = standings("own", rows, [])
    assert [standing.reached for standing in told] == [True, False, True, False]
    assert {standing.best_other.system for standing in told if standing.best_other} == {"fast"}
    assert told[1].goal_tflops == pytest.approx(530 * 625 / 660)


def test_the_fastest_other_is_the_one_with_the_largest_share_of_cublas(own_suite: None) -> None:
    """The clock fell between the parts of a run, so the system with the higher rate is not the faster one."""
    rows = [
        row(activation="relu", tflops=600.0, cublas_tflops=625.0),
        row(system="early", activation="softmax", tflops=520.0, cublas_tflops=650.0),  # .8
        row(system="late", activation="softmax", tflops=500.0, cublas_tflops=500.0),  # 1
    ]
    told = {standing.goal.activation: standing for standing in standings("own", rows, [])}["relu"]
    assert told.best_other is not None and told.best_other.system == "late"
    assert told.measured == pytest.approx(0.96)
    assert told.as_json()["best_other"] == {"system": "late", "tflops": 500.0}
    without_cublas = [replace(one, cublas_tflops=None) for one in rows]
    told = {standing.goal.activation: standing for standing in standings("own", without_cublas, [])}["relu"]
    assert told.best_other is not None and told.best_other.system == "early"
    assert told.measured == pytest.approx(600 / 520)


def test_a_geometric_mean_takes_the_fastest_other_of_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    goal = {"of": "geometric", "shapes": ["long", "short"], "at_least": 1}
    monkeypatch.setattr(
        "gdpa.bench.goals.suites", lambda: {"own": {"shapes": [{"name": "long", "goals": {"fwd": {"silu": goal}}}]}}
    )
    rows = [
        row(activation="silu", tflops=600.0, cublas_tflops=600.0),  # 1
        row(system="early", activation="softmax", tflops=520.0, cublas_tflops=650.0),  # .8
        row(system="late", activation="softmax", tflops=250.0, cublas_tflops=500.0),  # .5
        row(shape="short", activation="silu", tflops=450.0, cublas_tflops=500.0),  # .9
        row(system="early", shape="short", activation="softmax", tflops=520.0, cublas_tflops=650.0),  # .8
        row(system="late", shape="short", activation="softmax", tflops=500.0, cublas_tflops=500.0),  # 1
    ]
    (told,) = standings("own", rows, [])
    assert told.measured == pytest.approx((1 / 0.8 * 0.9) ** 0.5)


def test_a_function_may_have_several_goals_and_be_compared_with_a_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    mean = {"of": "mean", "rows": [["long", "silu"], ["long", "silu"], ["long", "relu"]], "at_least": 0.97}
    shape = {"name": "long", "goals": {"fwd": {"silu; silu; relu": [mean, {"of": "others", "at_least": 2}]}}}
    monkeypatch.setattr("gdpa.bench.goals.suites", lambda: {"own": {"shapes": [shape]}})
    rows = [
        row(activation="silu", tflops=400.0),
        row(activation="relu", tflops=800.0),
        row(activation="silu; silu; relu", tflops=480.0),
        row(system="FlexAttention", activation="softmax", tflops=240.0),
    ]
    of_mean, of_others = standings("own", rows, [])
    assert of_mean.measured == pytest.approx(1.0)  # 2 / 400 + 1 / 800 = 3 / 480
    assert of_others.measured == pytest.approx(2.0) and of_others.reached
    assert of_mean.goal.unit == "of the mean of silu, silu, relu"
    without_relu, _ = standings("own", [rows[0], *rows[2:]], [])
    assert without_relu.missing == "no row long, relu"


def test_backward_has_goals_of_its_own(own_suite: None) -> None:
    forward = [row(), row(activation="silu", tflops=500.0)]
    backward = [
        row(direction="bwd", tflops=400.0),
        row(direction="bwd", activation="silu", tflops=300.0),
        row(direction="bwd", activation="relu", tflops=350.0),
    ]
    assert {standing.goal.direction for standing in standings("own", forward, [])} == {"fwd"}
    told = standings("own", backward, [])
    assert [(standing.goal.direction, standing.goal.activation) for standing in told] == [
        ("bwd", "silu"), ("bwd", "relu"),
    ]  # fmt: skip
    assert told[0].measured == pytest.approx(0.75)  # by the row of its own direction
    assert told[1].measured == pytest.approx(0.7)  # of 500 at the floor
    assert len(standings("own", forward + backward, [])) == 6


def test_backward_counts_five_products_and_reads_and_writes_each_operand_once() -> None:
    """By hand, a head of d = 128 in 16 bits: 10 FLOP for each score and column, Q, K, V and dO, and the gradients."""
    case = Case((512,) * 3, (256,) * 3, heads=1, head_dim=128, dtype="bfloat16")
    assert case.flops("bwd") == 3 * 10 * 128 * 512 * 256
    assert case.bytes("bwd") == 3 * 2 * 128 * (3 * 512 + 4 * 256)
    shared = replace(case, shared_kv=True)
    assert shared.bytes("bwd") == 2 * 128 * (3 * 3 * 512 + 4 * 256)
    rates = Rates(product_flops=660e12, copy_bytes=4.3e12)
    assert rates.floor_tflops(case, "bwd") == pytest.approx(660)
    intensity = 10 * 512 * 256 / (2 * (3 * 512 + 4 * 256))
    timed = row(direction="bwd", bytes=case.bytes("bwd"), ms=case.flops("bwd") / 600e9, cublas_tflops=660.0)
    assert frontier(timed) == pytest.approx(815 / (1 + 72 / intensity))
    short = replace(case, lengths_k=(16,) * 3)
    flop_by_byte = 10 * 512 * 16 / (2 * (3 * 512 + 4 * 16))
    assert rates.floor_tflops(short, "bwd") == pytest.approx(4.3 * flop_by_byte)


@pytest.mark.parametrize(
    ("query", "key", "share"), [(2048, 2048, 1.15), (512, 512, 0.96), (256, 256, 0.79), (2048, 128, 0.77)]
)
def test_the_frontier_is_that_of_power(query: int, key: int, share: float) -> None:
    """At d = 128 in 16 bits, where cuBLAS gives 660."""
    flops, moved = 4.0 * 128 * query * key, 2.0 * 128 * (2 * query + 2 * key)
    timed = row(bytes=moved, ms=flops / 600e9, cublas_tflops=660.0)
    assert frontier(timed) == pytest.approx(share * 660, abs=0.005 * 660)
    assert frontier(replace(timed, cublas_tflops=594.0)) == pytest.approx(0.9 * share * 660, abs=0.005 * 660)


def test_the_frontier_is_that_of_memory_where_that_is_less() -> None:
    """256 / 256 with queries half as long: .55 of cuBLAS, by 85.3 FLOP/byte and 4.3 TB/s."""
    timed = row(bytes=1e9, ms=85.333 / 600, cublas_tflops=660.0)
    assert frontier(timed) == pytest.approx(4.3 * 85.333)
    assert frontier(replace(timed, cublas_tflops=300.0)) == pytest.approx(815 / (1 + 72 / 85.333) * 300 / 660)
    assert frontier(replace(timed, device="NVIDIA H100")) is None
    assert frontier(replace(timed, cublas_tflops=None)) is None


def test_a_goal_says_why_it_is_not_measured(own_suite: None) -> None:
    rows = [
        row(activation="silu", cublas_tflops=None),
        row(activation="relu"),
        row(activation="gelu"),
        row(shape="short", device="NVIDIA A100"),
        row(direction="bwd", activation="relu", floor_tflops=None),
    ]
    told = standings("own", rows, [])
    assert [standing.missing for standing in told] == [
        "has no row", "no cuBLAS ran", "no other system ran", "no row long, gelu_tanh", "has no row",
        "no floor is known", "known only for an H200",
    ]  # fmt: skip
    assert not any(standing.reached for standing in told)


def test_only_the_shapes_of_the_run_have_goals_in_it(own_suite: None) -> None:
    assert {standing.goal.shape for standing in standings("own", [row()], [])} == {"long"}
    failed = Refused("gdpa", "fwd", "fails", "short")
    (told,) = standings("own", [], [failed])
    assert told.goal.shape == "short" and told.missing == "has no row"
    assert standings("shapes", [row()], []) == []


def test_the_goals_of_the_suites_can_be_told() -> None:
    for name, suite in suites().items():
        shapes = [shape["name"] for shape in suite["shapes"]]
        assert len(set(shapes)) == len(shapes), name
        cases = cases_of_suite(name, 1e-9)
        timed = {(case.name, case.activation, direction) for case in cases for direction in case.directions}
        told = goals_of_suite(name)
        for goal in told:
            assert goal.of in goals.KINDS and goal.at_least > 0 and goal.unit
            assert (goal.shape, goal.activation, goal.direction) in timed
            assert all((*other, goal.direction) in timed for other in (goal.row, *goal.rows) if other)
        if any("goals" in shape for shape in suite["shapes"]):
            with_goal = {(goal.shape, goal.activation) for goal in told}
            compared_with = {other for goal in told for other in (goal.row, *goal.rows) if other}
            compared_with |= {(shape, goal.activation) for goal in told for shape in goal.shapes}
            assert with_goal | compared_with == {(case.name, case.activation) for case in cases}


def test_the_suite_hopper_has_the_rows_that_were_promised() -> None:
    told = {(goal.shape, goal.activation): goal for goal in goals_of_suite("hopper") if goal.direction == "fwd"}
    assert len(told) == 57
    table = [goal.at_least for goal in told.values() if goal.of == "cublas" and " d " not in goal.shape]
    assert len(table) == 33 and sum(table) == pytest.approx(28.18)
    assert told["2048/2048 d 64", "relu"] == Goal("2048/2048 d 64", "relu", "fwd", "tflops", 710)
    assert told["2048/2048 causal", "gelu_tanh"].row == ("2048/2048", "gelu_tanh")
    cases = {case.name: case for case in cases_of_suite("hopper")}
    pffn, pma = cases["PFFN KV 128"], cases["PMA Q 32, KV 2048"]
    assert pffn.shared_kv and sum(pffn.lengths_q) / len(pffn.lengths_q) == pytest.approx(1000, rel=0.05)
    assert pma.shared_q and {*pma.lengths_q} == {32} and sum(pma.lengths_k) / 1152 == pytest.approx(1024, rel=0.05)
    assert [len(cases[f"16384/16384 B {batch}"].lengths_q) for batch in (1, 4, 16, 64)] == [1, 4, 16, 64]
    assert len(cases["2048/2048"].lengths_q) == 1152 and cases["2048/2048 window"].window == (256, 0)


def test_the_suite_hopper_has_the_backward_rows_that_were_promised() -> None:
    told = {(goal.shape, goal.activation): goal for goal in goals_of_suite("hopper") if goal.direction == "bwd"}
    table = [goal.at_least for goal in told.values() if goal.of == "cublas" and " d " not in goal.shape]
    assert len(table) == 33 and sum(table) == pytest.approx(25.93)
    narrow = [goal for goal in told.values() if goal.shape.endswith(" d 64")]
    assert len(narrow) == 6 and {(goal.of, goal.at_least) for goal in narrow} == {("others", 1.2)}
    wide = [told[f"2048/2048 d {head_dim}", "gelu_tanh"].at_least for head_dim in (96, 192, 256)]
    assert wide == [0.7, 0.6, 0.6]
    shared = [goal for goal in told.values() if goal.shape.startswith(("PFFN", "PMA"))]
    assert len(shared) == 7 and {(goal.of, goal.at_least) for goal in shared} == {("floor", 0.65)}
    for shape, at_least in (("causal", 0.85), ("window", 0.65), ("deterministic", 0.9)):
        goal = told[f"2048/2048 {shape}", "gelu_tanh"]
        assert goal == Goal(goal.shape, "gelu_tanh", "bwd", "row", at_least, ("2048/2048", "gelu_tanh"))
    cases = {case.name: case for case in cases_of_suite("hopper", 1e-9)}
    assert [name for name, case in cases.items() if case.deterministic] == ["2048/2048 deterministic"]
    assert [name for name, case in cases.items() if case.directions == ("bwd",)] == [
        "1024/1024 d 64", "2048/2048 deterministic",
    ]  # fmt: skip


def test_shapes_are_asked_for_by_name_number_and_range() -> None:
    def names(*wanted: str) -> list[str | None]:
        return [case.name for case, _ in by_shape(cases_of_suite("hopper", 1e-9, wanted=wanted))]

    assert names("2048/256", "1") == ["2048/2048", "2048/256"]
    assert names("2-3", "PMA Q 4, KV 1024") == ["1024/1024", "512/512", "PMA Q 4, KV 1024"]
    for wrong in ("0", "3-2", "1-99", "nosuch"):
        with pytest.raises(ValueError, match="got '" + wrong):
            names(wrong)


def test_the_functions_of_a_shape_take_turns_and_the_others_run_once(own_suite: None) -> None:
    (case, functions), (short, only), (repeated, _) = by_shape(cases_of_suite("own"))
    assert functions == ["gelu_tanh", "silu", "relu", "gelu"] and only == ["gelu_tanh"] and short.name == "short"
    systems = in_turn([Gdpa(), SdpaPerSequence(), Padded()], case, functions)
    assert case.activation == "gelu_tanh"
    rows = measure(case, systems, ["fwd"], Effort(0.0, 1), Quiet()).rows
    assert [(row.system, row.activation) for row in rows] == [
        *(("gdpa", function) for function in functions), ("SDPA per sequence", "softmax"), ("padded", "gelu_tanh"),
    ]  # fmt: skip
    assert [system.name for system in in_turn([Padded()], case, functions)] == ["padded"]
    assert [system.name for system in in_turn([Gdpa(), Padded()], repeated, ["relu"])] == ["gdpa"]


def test_a_deterministic_shape_asks_for_it_and_its_row_says_so(
    own_suite: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    attention = gdpa.varlen_attention

    def varlen_attention(*operands: Any, **options: Any) -> Any:
        asked.append(options["deterministic"])
        return attention(*operands, **options)

    monkeypatch.setattr(gdpa, "varlen_attention", varlen_attention)
    _, short, repeated = (case for case, _ in by_shape(cases_of_suite("own")))
    rows = [measure(case, [Gdpa()], ["bwd"], Effort(0.0, 1), Quiet()).rows[0] for case in (short, repeated)]
    assert [row.deterministic for row in rows] == [False, True]
    assert asked[0] is False and asked[-1] is True


class Quiet(Processor):
    """The processor, without the time that measuring its rates takes."""

    def rates(self, dtype: str, product_flops: float | None) -> None:
        return None


def test_an_estimate_counts_turns_and_first_calls() -> None:
    case, both = small_case(), ["fwd", "bwd"]
    plan = [
        (case, in_turn([Gdpa(), Padded()], case, ["silu", "relu"]), both),
        (small_case(mask="window:2,0"), [Padded()], both),
    ]
    words = estimate(plan, Effort(10.0, 3), Quiet())
    first_calls = 2 * (2 * Gdpa.first_call + Padded.first_call)
    assert words.startswith("2 cases") and f"about {60 + first_calls:.0f} s: 60 s of rounds" in words


def test_an_estimate_counts_the_compilation_of_the_first_case_once() -> None:
    class Slow(Padded):
        first_call, first_case = 0.0, 40.0

    class OnGpu(Quiet):
        torch_device = torch.device("cuda")

    plan = [(small_case(), [Slow()], ["fwd"])] * 3
    assert "about 70 s: 30 s of rounds" in estimate(plan, Effort(10.0, 3), OnGpu())
    assert "about 30 s: 30 s of rounds" in estimate(plan, Effort(10.0, 3), Quiet())


def test_an_option_chooses_among_the_directions_of_each_shape(own_suite: None) -> None:
    def directions(*options: str) -> dict[str | None, list[str]]:
        work = bench.chosen_work(bench.parse(list(options)), [Gdpa()])
        return {case.name: directions for case, _, directions in work}

    both = ["fwd", "bwd"]
    assert directions("--suite", "own") == {"long": both, "short": both, "repeated": ["bwd"]}
    assert directions("--suite", "own", "--direction", "fwd") == {"long": ["fwd"], "short": ["fwd"]}
    assert directions() == {None: both}
    with pytest.raises(ValueError, match="--direction: expected a direction of these shapes; got 'fwd'"):
        directions("--suite", "own", "--shapes", "repeated", "--direction", "fwd")


def report(rows: list[Row], **changes: Any) -> Report:
    return replace(Report("own", "NVIDIA H200", "2.11", "abc", "3 rounds", Result(rows), []), **changes)


def test_reports_show_goals_beside_what_was_measured(own_suite: None, tmp_path: Path) -> None:
    rows = [row(), row(activation="silu", tflops=500.0), row(system="fast", activation="softmax", tflops=500.0)]
    written = report(rows).write(tmp_path)
    text = written[1].read_text()
    assert "## Goals: 1 of 4 goals reached" in text
    line = "| long | gelu_tanh | fwd | 600.0 (0.96) | 430.0 (0.69) | fast 500.0 (0.80) | 0.9 of cuBLAS | 0.96 | yes |"
    assert line in text
    assert "| 530 TFLOP/s where cuBLAS gives 660 | 528 | no |" in text
    assert "| has no row | no |" in text
    assert "| long | bfloat16 | none | 2 | 8 | 12 | 12 | 1.00 | 625 | 500 | 430 |" in text
    told = json.loads(written[0].read_text())["goals"][0]
    assert (told["shape"], told["of"], told["at_least"], told["reached"]) == ("long", "cublas", 0.9, True)
    assert told["best_other"] == {"system": "fast", "tflops": 500.0}
    assert told["frontier_tflops"] == pytest.approx(430.0)


def test_the_picture_marks_goals_and_frontiers(own_suite: None) -> None:
    rows = [row(), row(activation="silu", tflops=500.0), row(shape="short", tflops=100.0, bytes=1e9)]
    drawing = plot.Drawing(rows, report(rows).standings)
    labels = [mark.get_label() for mark in drawing.legend()]
    assert labels[-5:] == ["floor", "cuBLAS", "frontier", "goal, not reached", "goal, reached"]
    assert "frontier" not in [mark.get_label() for mark in plot.Drawing(rows, []).legend()]


def test_every_system_and_function_of_a_picture_has_its_own_colour() -> None:
    functions = {case.activation for case in cases_of_suite("hopper", 1.0, 0)}
    others = [system.name for system in SYSTEMS if "cuda" in system.devices and not isinstance(system, Gdpa)]
    rows = [row(activation=function) for function in functions] + [row(system=name) for name in others]
    bars = [mark.get_facecolor() for mark in plot.Drawing(rows, []).legend() if mark.get_label().endswith(")")]
    assert len(bars) == len(rows)
    assert len(set(bars)) == len(bars)


def test_a_picture_of_many_cases_has_several_lines_of_as_many_cases_or_one_more() -> None:
    rows = [
        row(shape=f"{i}", direction=direction) for i in range(plot.CASES_IN_A_LINE + 1) for direction in ("fwd", "bwd")
    ]
    half = plot.CASES_IN_A_LINE // 2
    assert [len(line) for line in plot.Drawing(rows, []).lines()] == [half, half + 1] * 2


def test_parts_of_a_run_are_merged_into_one_report(own_suite: None, tmp_path: Path) -> None:
    ours = report([row(), row(activation="gelu", tflops=500.0), row(activation="silu", tflops=1.0)], method="2 rounds")
    ours.result.refusals += [Refused("slow", "fwd", "no room", "long"), Refused("HSTU", "fwd", "missing", "long")]
    again = report([row(activation="silu"), row(system="slow", activation="softmax")], figures=[Figure("x", 1, 2, "y")])
    paths = [part.write(tmp_path / name)[0] for name, part in (("a", ours), ("b", again))]
    whole = merged(paths)
    assert [(row.system, row.activation, row.tflops) for row in whole.result.rows] == [
        ("gdpa", "gelu_tanh", 600.0), ("gdpa", "gelu", 500.0), ("gdpa", "silu", 600.0), ("slow", "softmax", 600.0),
    ]  # fmt: skip
    assert whole.result.refusals == [Refused("HSTU", "fwd", "missing", "long")]
    assert (whole.method, whole.torch, whole.figures) == ("2 rounds; 3 rounds", "2.11", again.figures)
    assert whole.standings[3].measured == pytest.approx(500 / 600)  # across the parts
    in_order = merged([report([row(shape="short")]).write(tmp_path / "d")[0], paths[0]]).result.rows
    assert [row.shape for row in in_order] == ["long", "long", "long", "short"]  # the order of the suite
    other = report([row()], device="NVIDIA A100").write(tmp_path / "c")[0]
    with pytest.raises(ValueError, match="has the device 'NVIDIA H200'"):
        merged([paths[0], other])


def test_the_command_measures_parts_and_merges_them(
    own_suite: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--device", "cpu", "--suite", "own", "--seconds", "0", "--rounds", "1", "--systems", "gdpa", "padded"]
    parts = []
    for shape, direction in (("1", "fwd"), ("short", "fwd"), ("1", "bwd")):
        folder = tmp_path / shape / direction
        asked = ["--shapes", shape, "--direction", direction, "--report", str(folder)]
        assert bench.main([*common, "--without", "padded", *asked]) == 0
        parts += [str(path) for path in folder.glob("*.json")]
    assert "of rounds" in capsys.readouterr().err
    assert bench.main(["--merge", *parts, "--report", str(tmp_path / "whole")]) == 0
    assert "of 7 goals reached" in capsys.readouterr().out
    (document,) = (tmp_path / "whole").glob("own-*.json")
    read = json.loads(document.read_text())
    functions = ("gelu_tanh", "silu", "relu", "gelu")
    assert [(row["direction"], row["shape"], row["activation"]) for row in read["rows"]] == [
        *(("fwd", "long", function) for function in functions), ("fwd", "short", "gelu_tanh"),
        *(("bwd", "long", function) for function in functions),
    ]  # fmt: skip


def test_a_report_from_before_backward_had_goals_is_read(tmp_path: Path) -> None:
    """Forward rows alone: their goals, and none that nobody measured."""
    before = Path(__file__).parents[2] / "reports" / "hopper-h200.json"
    whole = merged([before])
    assert {standing.goal.direction for standing in whole.standings} == {row.direction for row in whole.result.rows}
    assert all(standing.row for standing in whole.standings)
