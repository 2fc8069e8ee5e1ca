"""The goals of a suite: numbers of each kind that were computed by hand, the built-in suites, and the reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_cases import small_case

import gdpa
from gdpa.bench import __main__ as bench
from gdpa.bench import plot
from gdpa.bench.cases import Case, by_shape, cases_of_suite, suites
from gdpa.bench.counts import bytes_of, floor_tflops, flops_of
from gdpa.bench.device import Device, Rates
from gdpa.bench.goals import RateRow, frontier, goals_of_suite, standings
from gdpa.bench.measure import Effort, measure
from gdpa.bench.rates import RateReport
from gdpa.bench.report import Figure, Refused, Report, merged
from gdpa.bench.shapes import chosen_work, figures_of
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
    for module in ("cases", "goals", "rates", "shapes", "__main__"):
        monkeypatch.setattr(f"gdpa.bench.{module}.suites", lambda: {"own": OWN})


def row(**changes: Any) -> RateRow:
    """A row of gdpa on the shape long: 600 TFLOP/s where cuBLAS gives 625."""
    first = RateRow(
        system="gdpa", version="1", commit="abc", direction="fwd", device="NVIDIA H200", shape="long", dtype="bfloat16",
        activation="gelu_tanh", accuracy="fast", deterministic=False, mask="none", B=2, H_q=2, H_k=2, d=8, d_v=8, q=12,
        kv=12, fill=1.0, shared_q=False, shared_kv=False, bytes=6e9, ms=1.0, tflops=600.0, cublas_tflops=625.0,
        floor_tflops=500.0,
    )  # fmt: skip
    return replace(first, **changes)


def told(rows: list[RateRow], refusals: list[Refused] | None = None) -> dict[str, Figure]:
    """The figures by shape, function and direction."""
    return {figure.what: figure for _, figure in standings("own", rows, refusals or [])}


def test_each_kind_of_goal_by_hand(own_suite: None) -> None:
    rows = [
        row(),
        row(activation="silu", tflops=500.0),
        row(activation="relu", tflops=750.0),
        row(activation="gelu", tflops=450.0, cublas_tflops=600.0),  # another part of the run: another clock
        row(system="slow", activation="softmax", tflops=300.0),
        row(system="fast", activation="softmax", tflops=500.0),
    ]
    found = told(rows)
    assert found["long, gelu_tanh, fwd"].measured == pytest.approx(0.96)
    assert found["long, silu, fwd"].measured == pytest.approx(528)
    assert found["long, relu, fwd"].measured == pytest.approx(1.5)
    assert found["long, gelu, fwd"].measured == pytest.approx(0.75 / 0.96)
    assert [figure.reached for figure in found.values()] == [True, False, True, False]
    assert [figure.unit for figure in found.values()] == [
        "of cuBLAS", "TFLOP/s where cuBLAS gives 660", "of the fastest other, fast", "of long, gelu_tanh",
    ]  # fmt: skip


def test_the_fastest_other_is_the_one_with_the_largest_share_of_cublas(own_suite: None) -> None:
    """The clock fell between the parts of a run, so the system with the higher rate is not the faster one."""
    rows = [
        row(activation="relu", tflops=600.0, cublas_tflops=625.0),
        row(system="early", activation="softmax", tflops=520.0, cublas_tflops=650.0),  # .8
        row(system="late", activation="softmax", tflops=500.0, cublas_tflops=500.0),  # 1
    ]
    figure = told(rows)["long, relu, fwd"]
    assert figure.unit == "of the fastest other, late"
    assert figure.measured == pytest.approx(0.96)
    figure = told([replace(one, cublas_tflops=None) for one in rows])["long, relu, fwd"]
    assert figure.unit == "of the fastest other, early"
    assert figure.measured == pytest.approx(600 / 520)


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
    (figure,) = told(rows).values()
    assert figure.measured == pytest.approx((1 / 0.8 * 0.9) ** 0.5)
    assert figure.unit == "of the fastest other, geometric mean of 2 shapes"


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
    of_mean, of_others = (figure for _, figure in standings("own", rows, []))
    assert of_mean.measured == pytest.approx(1.0)  # 2 / 400 + 1 / 800 = 3 / 480
    assert of_others.measured == pytest.approx(2.0) and of_others.reached
    assert of_mean.unit == "of the mean of silu, silu, relu"
    (_, without_relu), _ = standings("own", [rows[0], *rows[2:]], [])
    assert (without_relu.measured, without_relu.unit) == (None, "no row long, relu")


def test_backward_has_goals_of_its_own(own_suite: None) -> None:
    forward = [row(), row(activation="silu", tflops=500.0)]
    backward = [
        row(direction="bwd", tflops=400.0),
        row(direction="bwd", activation="silu", tflops=300.0),
        row(direction="bwd", activation="relu", tflops=350.0),
    ]
    assert all(what.endswith(", fwd") for what in told(forward))
    found = told(backward)
    assert list(found) == ["long, silu, bwd", "long, relu, bwd"]
    assert found["long, silu, bwd"].measured == pytest.approx(0.75)  # by the row of its own direction
    assert found["long, relu, bwd"].measured == pytest.approx(0.7)  # of 500 at the floor
    assert len(told(forward + backward)) == 6


def test_backward_counts_five_products_and_reads_and_writes_each_operand_once() -> None:
    """By hand, a head of d = 128 in 16 bits: 10 FLOP for each score and column, Q, K, V and dO, and the gradients."""
    case = Case((512,) * 3, (256,) * 3, heads=1, head_dim=128, dtype="bfloat16")
    assert flops_of(case, "bwd") == 3 * 10 * 128 * 512 * 256
    assert bytes_of(case, "bwd") == 3 * 2 * 128 * (3 * 512 + 4 * 256)
    shared = replace(case, shared_kv=True)
    assert bytes_of(shared, "bwd") == 2 * 128 * (3 * 3 * 512 + 4 * 256)
    rates = Rates(product_flops=660e12, copy_bytes=4.3e12)
    assert floor_tflops(rates, case, "bwd") == pytest.approx(660)
    intensity = 10 * 512 * 256 / (2 * (3 * 512 + 4 * 256))
    timed = row(direction="bwd", bytes=bytes_of(case, "bwd"), ms=flops_of(case, "bwd") / 600e9, cublas_tflops=660.0)
    assert frontier(timed) == pytest.approx(815 / (1 + 72 / intensity))
    short = replace(case, lengths_k=(16,) * 3)
    flop_by_byte = 10 * 512 * 16 / (2 * (3 * 512 + 4 * 16))
    assert floor_tflops(rates, short, "bwd") == pytest.approx(4.3 * flop_by_byte)


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
    found = told(rows).values()
    assert [figure.unit for figure in found] == [
        "has no row", "no cuBLAS ran", "no other system ran on long", "no row long, gelu_tanh", "has no row",
        "no floor is known", "known only for an H200",
    ]  # fmt: skip
    assert not any(figure.reached or figure.measured for figure in found)


def test_only_the_shapes_of_the_run_have_goals_in_it(own_suite: None) -> None:
    assert all(what.startswith("long") for what in told([row()]))
    (figure,) = told([], [Refused("gdpa", "fwd", "fails", "short")]).values()
    assert figure.what == "short, gelu_tanh, fwd" and figure.unit == "has no row"
    assert standings("shapes", [row()], []) == []


def test_the_goals_of_the_suites_can_be_told() -> None:
    for name, suite in suites().items():
        shapes = [shape["name"] for shape in suite["shapes"]]
        assert len(set(shapes)) == len(shapes), name
        cases = cases_of_suite(name, 1e-9)
        timed = {(case.name, case.activation, direction) for case in cases for direction in case.directions}
        goals = list(goals_of_suite(name))
        with_goal, compared_with = set(), set()
        for shape, direction, function, goal in goals:
            others = {(*other, direction) for other in [goal["row"]] if goal["of"] == "row"} if "row" in goal else set()
            others |= {(*other, direction) for other in goal.get("rows", [])}
            others |= {(other, function, direction) for other in goal.get("shapes", [])}
            assert goal["at_least"] > 0 and (shape, function, direction) in timed and others <= timed
            with_goal.add((shape, function))
            compared_with |= {other[:2] for other in others}
        rows = [row(shape=shape, activation=function, direction=way) for shape, function, way in timed]
        assert all(figure.unit != "has no row" for _, figure in standings(name, rows, []))
        if goals:
            assert with_goal | compared_with == {(case.name, case.activation) for case in cases}


def test_the_suite_hopper_has_the_rows_that_were_promised() -> None:
    found = {(shape, function): goal for shape, way, function, goal in goals_of_suite("hopper") if way == "fwd"}
    assert len(found) == 57
    table = [goal["at_least"] for (shape, _), goal in found.items() if goal["of"] == "cublas" and " d " not in shape]
    assert len(table) == 33 and sum(table) == pytest.approx(28.18)
    assert found["2048/2048 d 64", "relu"] == {"of": "tflops", "at_least": 710}
    assert found["2048/2048 causal", "gelu_tanh"]["row"] == ["2048/2048", "gelu_tanh"]
    cases = {case.name: case for case in cases_of_suite("hopper")}
    pffn, pma = cases["PFFN KV 128"], cases["PMA Q 32, KV 2048"]
    assert pffn.shared_kv and sum(pffn.lengths_q) / len(pffn.lengths_q) == pytest.approx(1000, rel=0.05)
    assert pma.shared_q and {*pma.lengths_q} == {32} and sum(pma.lengths_k) / 1152 == pytest.approx(1024, rel=0.05)
    assert [len(cases[f"16384/16384 B {batch}"].lengths_q) for batch in (1, 4, 16, 64)] == [1, 4, 16, 64]
    assert len(cases["2048/2048"].lengths_q) == 1152 and cases["2048/2048 window"].window == (256, 0)


def test_the_suite_hopper_has_the_backward_rows_that_were_promised() -> None:
    found = {(shape, function): goal for shape, way, function, goal in goals_of_suite("hopper") if way == "bwd"}
    table = [goal["at_least"] for (shape, _), goal in found.items() if goal["of"] == "cublas" and " d " not in shape]
    assert len(table) == 33 and sum(table) == pytest.approx(25.93)
    narrow = [goal for (shape, _), goal in found.items() if shape.endswith(" d 64")]
    assert narrow == [{"of": "others", "at_least": 1.2}] * 6
    wide = [found[f"2048/2048 d {head_dim}", "gelu_tanh"]["at_least"] for head_dim in (96, 192, 256)]
    assert wide == [0.7, 0.6, 0.6]
    shared = [goal for (shape, _), goal in found.items() if shape.startswith(("PFFN", "PMA"))]
    assert shared == [{"of": "floor", "at_least": 0.65}] * 7
    for shape, at_least in (("causal", 0.85), ("window", 0.65), ("deterministic", 0.9)):
        goal = found[f"2048/2048 {shape}", "gelu_tanh"]
        assert (goal["of"], goal["row"], goal["at_least"]) == ("row", ["2048/2048", "gelu_tanh"], at_least)
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


class Quiet(Device):
    """The processor, without the time that measuring its rates takes."""

    def rates(self, dtype: str, product_flops: float | None) -> None:
        return None


def test_the_figures_of_a_case_are_those_that_take_turns() -> None:
    case, both = small_case(), ["fwd", "bwd"]
    assert figures_of(case, in_turn([Gdpa(), Padded()], case, ["silu", "relu"]), both, Quiet()) == 6
    assert figures_of(small_case(mask="window:2,0"), [SdpaPerSequence()], both, Quiet()) == 0


def test_an_option_chooses_among_the_directions_of_each_shape(own_suite: None) -> None:
    def directions(*options: str) -> dict[str | None, list[str]]:
        work = chosen_work(bench.parse(list(options)), [Gdpa()])
        return {case.name: directions for case, _, directions in work}

    both = ["fwd", "bwd"]
    assert directions("own") == {"long": both, "short": both, "repeated": ["bwd"]}
    assert directions("own", "--direction", "fwd") == {"long": ["fwd"], "short": ["fwd"]}
    assert directions("shapes") == {None: both}
    with pytest.raises(ValueError, match="--direction: expected a direction of these shapes; got 'fwd'"):
        directions("own", "--shapes", "repeated", "--direction", "fwd")


def report(rows: list[RateRow], **changes: Any) -> RateReport:
    return replace(RateReport("own", "NVIDIA H200", "2.11", "abc", "3 rounds", rows), **changes)


def merged_report(*paths: Path) -> Report:
    return merged(paths, {}, RateReport)


def test_reports_show_goals_beside_what_was_measured(own_suite: None, tmp_path: Path) -> None:
    rows = [row(), row(activation="silu", tflops=500.0), row(system="fast", activation="softmax", tflops=500.0)]
    written = report(rows).write(tmp_path)
    text = written[1].read_text()
    assert "## Goals: 1 of 4 reached" in text
    assert "| long, gelu_tanh, fwd | of cuBLAS | 0.96 | at least 0.9 | yes |" in text
    assert "| long, silu, fwd | TFLOP/s where cuBLAS gives 660 | 528 | at least 530 | no |" in text
    assert "| long, relu, fwd | has no row | not measured | at least 1.3 | no |" in text
    assert "| long | bfloat16 | none | 2 | 8 | 12 | 12 | 1.00 | 625 | 500 | 430 | 600.0 (0.96) |" in text
    figure = json.loads(written[0].read_text())["figures"][0]
    assert (figure["what"], figure["goal"], figure["reached"]) == ("long, gelu_tanh, fwd", 0.9, True)


def test_a_document_has_a_line_for_each_row_and_is_read_back(own_suite: None, tmp_path: Path) -> None:
    """A diff then shows which rows changed."""
    whole = report([row(), row(activation="silu")])
    whole.refusals.append(Refused("slow", "fwd", "no room", "long"))
    path = whole.write_document(tmp_path)
    lines = path.read_text().splitlines()
    assert [json.loads(line.strip(" ,"))["activation"] for line in lines if '"tflops"' in line] == ["gelu_tanh", "silu"]
    again = merged_report(path)
    assert again.as_json() == path.read_text() and again.as_markdown("x.png") == whole.as_markdown("x.png")


def test_the_picture_marks_goals_and_frontiers(own_suite: None) -> None:
    rows = [row(), row(activation="silu", tflops=500.0), row(shape="short", tflops=100.0, bytes=1e9)]
    labels = [mark.get_label() for mark in plot.Drawing(report(rows).panels()).legend()]
    assert labels[-5:] == ["cuBLAS", "floor", "frontier", "goal, not reached", "goal, reached"]
    (panel,) = report(rows).panels()
    (reached,) = panel.groups[0].bars["gdpa (gelu_tanh)"].goals
    assert reached == (pytest.approx(0.9 * 625), True)
    on_h100 = report([row(device="NVIDIA H100")]).panels()
    assert "frontier" not in [mark.get_label() for mark in plot.Drawing(on_h100).legend()]


def test_every_system_and_function_of_a_picture_has_its_own_colour() -> None:
    functions = {case.activation for case in cases_of_suite("hopper", 1.0, 0)}
    others = [system.name for system in SYSTEMS if "cuda" in system.devices and not isinstance(system, Gdpa)]
    rows = [row(activation=function) for function in functions] + [row(system=name) for name in others]
    drawing = plot.Drawing(report(rows, subject="none").panels())
    bars = [mark.get_facecolor() for mark in drawing.legend() if mark.get_label().endswith(")")]
    assert len(bars) == len(rows)
    assert len(set(bars)) == len(bars)


def test_a_picture_of_many_cases_has_several_lines_of_as_many_cases_or_one_more() -> None:
    rows = [
        row(shape=f"{i}", direction=direction) for i in range(plot.GROUPS_IN_A_LINE + 1) for direction in ("fwd", "bwd")
    ]
    half = plot.GROUPS_IN_A_LINE // 2
    lines = [line for panel in report(rows).panels() for line in panel.lines()]
    assert [len(line.groups) for line in lines] == [half, half + 1] * 2


def test_parts_of_a_run_are_merged_into_one_report(own_suite: None, tmp_path: Path) -> None:
    ours = report([row(), row(activation="gelu", tflops=500.0), row(activation="silu", tflops=1.0)], method="2 rounds")
    ours.refusals += [Refused("slow", "fwd", "no room", "long"), Refused("HSTU", "fwd", "missing", "long")]
    again = report([row(activation="silu"), row(system="slow", activation="softmax")])
    paths = [part.write_document(tmp_path / name) for name, part in (("a", ours), ("b", again))]
    whole = merged_report(*paths)
    assert [(row.system, row.activation, row.tflops) for row in whole.rows] == [
        ("gdpa", "gelu_tanh", 600.0), ("gdpa", "gelu", 500.0), ("gdpa", "silu", 600.0), ("slow", "softmax", 600.0),
    ]  # fmt: skip
    assert whole.refusals == [Refused("HSTU", "fwd", "missing", "long")]
    assert (whole.method, whole.torch) == ("2 rounds; 3 rounds", "2.11")
    assert whole.figures[3].measured == pytest.approx(500 / 600)  # across the parts
    in_order = merged_report(report([row(shape="short")]).write_document(tmp_path / "d"), paths[0]).rows
    assert [row.shape for row in in_order] == ["long", "long", "long", "short"]  # the order of the suite
    other = report([row()], device="NVIDIA A100").write_document(tmp_path / "c")
    with pytest.raises(ValueError, match="has the device 'NVIDIA H200'"):
        merged_report(paths[0], other)


def test_the_command_measures_parts_and_merges_them(
    own_suite: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["own", "--device", "cpu", "--seconds", "0", "--rounds", "1", "--systems", "gdpa", "padded"]
    parts = []
    for shape, direction in (("1", "fwd"), ("short", "fwd"), ("1", "bwd")):
        folder = tmp_path / shape / direction
        asked = ["--shapes", shape, "--direction", direction, "--report", str(folder)]
        assert bench.main([*common, "--without", "padded", *asked]) == 0
        parts += [str(path) for path in folder.glob("*.json")]
    assert "of rounds" in capsys.readouterr().err
    assert bench.main(["redraw", *parts, "--report", str(tmp_path / "whole")]) == 0
    assert "of 7 reached" in capsys.readouterr().out
    (document,) = (tmp_path / "whole").glob("own-*.json")
    read = json.loads(document.read_text())
    functions = ("gelu_tanh", "silu", "relu", "gelu")
    assert [(row["direction"], row["shape"], row["activation"]) for row in read["rows"]] == [
        *(("fwd", "long", function) for function in functions), ("fwd", "short", "gelu_tanh"),
        *(("bwd", "long", function) for function in functions),
    ]  # fmt: skip


REPORTS = sorted((Path(__file__).parents[2] / "reports").glob("*-h*.json"))


@pytest.mark.parametrize("document", REPORTS, ids=lambda path: path.stem)
def test_the_documents_and_pages_of_the_reports_are_those_of_the_writer(document: Path) -> None:
    whole = merged([document], bench.REPORTS, RateReport)
    assert document.read_text() == whole.as_json()
    page = document.with_suffix(".md")
    assert page.read_text() == whole.as_markdown(document.with_suffix(".png").name)
