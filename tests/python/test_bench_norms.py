"""The benchmark of norms around attention: its forms compute the same, and its report has the goal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from bench_cases import fields

from gdpa.bench import __main__ as bench
from gdpa.bench import norms
from gdpa.bench.agreement import Disagreement
from gdpa.bench.cases import Case
from gdpa.bench.device import Device
from gdpa.bench.measure import Effort, Result
from gdpa.bench.norms import (
    COMPILED,
    FUSED,
    UNFUSED,
    WHOLE,
    Computation,
    Form,
    FormRow,
    Inputs,
    NormsReport,
    case_on,
    forms_of,
    measure_norms,
)

CPU = torch.device("cpu")
SMALL = Case((5, 1, 3), (4, 4, 4), heads=2, head_dim=8, dtype="float64", activation="gelu_tanh", name="small")


def rows_of(case: Case, forms: list[Form]) -> tuple[list[FormRow], Result]:
    result = measure_norms(case, forms, Effort(0.0, 1), Device(), lambda done, text: None)
    return result.rows, result


@pytest.mark.parametrize("form", ["fused", "unfused"])
def test_the_whole_is_two_norms_around_attention(form: str) -> None:
    """Q' = LayerNorm(Q), T = attention(Q') + Q', Y = RMSNorm(T) + residual, one sequence at a time."""
    inputs = Inputs.random(SMALL, CPU)
    (output,) = getattr(Computation(SMALL, CPU), form)(inputs)
    parts = []
    for b, (query, residual) in enumerate(zip(inputs.query.split([5, 1, 3]), inputs.residual.split([5, 1, 3]))):  # noqa: B905
        normed = F.layer_norm(query, (16,), inputs.weight, inputs.bias).unflatten(-1, (2, 8))
        scores = torch.einsum("ihd,jhd->hij", normed, inputs.key[b]) * 8**-0.5
        attended = torch.einsum("hij,jhd->ihd", F.gelu(scores, approximate="tanh"), inputs.value[b]) / 4
        parts.append(F.rms_norm((attended + normed).flatten(1), (16,), inputs.output_weight, 1e-5) + residual)
    torch.testing.assert_close(output, torch.cat(parts))


def test_the_parts_have_the_operations_of_the_whole() -> None:
    """Attention between the norms gives the whole, so the parts leave nothing out."""
    inputs, computation = Inputs.random(SMALL, CPU), Computation(SMALL, CPU)
    for whole, norms_alone, add_query in (
        (computation.fused, computation.fused_norms, True),
        (computation.unfused, computation.unfused_norms, False),
    ):
        _, normed = norms_alone(inputs)
        (attended,) = computation.attention(inputs._replace(query=normed), add_query)
        output, _ = norms_alone(inputs._replace(attended=attended))
        torch.testing.assert_close(output, whole(inputs)[0])


def test_every_form_is_compiled_as_one_graph() -> None:
    inputs = Inputs.random(SMALL, CPU)
    compiled = [form for form in forms_of(SMALL, CPU, compile=True) if form.is_compiled]
    assert len(compiled) == 3 and all(form.name.endswith(COMPILED) for form in compiled)
    for form in compiled:
        one_graph = torch.compile(form.compute, dynamic=False, fullgraph=True, backend="aot_eager")
        for got, expected in zip(one_graph(inputs), form.compute(inputs), strict=True):
            torch.testing.assert_close(got, expected)


def test_rows_compare_a_form_with_the_fused_form_of_its_part() -> None:
    rows, result = rows_of(SMALL, forms_of(SMALL, CPU, compile=False))
    assert not result.refusals
    assert [row.direction for row in rows] == [WHOLE] * 2 + ["norms"] * 2 + ["attention"] * 2
    assert [row.system for row in rows] == [FUSED, UNFUSED] * 3
    assert all((row.times_fused == 1) == (row.system == FUSED) for row in rows)
    fused, unfused, *_ = rows
    assert (fused.B, fused.tokens, fused.kv, fused.passes) == (3, 9, 4, 16)
    assert fused.tb_per_second == pytest.approx(16 * 9 * 16 * 8 / (fused.ms * 1e-3) * 1e-12)
    assert fused.difference is None and unfused.difference is not None and unfused.difference < 1e-12


def test_forms_with_different_results_are_not_timed() -> None:
    fused, unfused, *_ = forms_of(SMALL, CPU, compile=False)
    wrong = replace(unfused, compute=lambda *inputs: tuple(1.01 * one for one in unfused.compute(*inputs)))
    with pytest.raises(Disagreement, match="small: expected PyTorch's norms to be within 1e-09 of gdpa"):
        rows_of(SMALL, [fused, wrong])


def test_a_form_that_fails_is_listed_with_its_reason() -> None:
    def fail(*_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        raise RuntimeError("no kernel")

    fused, unfused, *_ = forms_of(SMALL, CPU, compile=False)
    rows, result = rows_of(SMALL, [fused, replace(unfused, compute=fail)])
    assert [row.system for row in rows] == [FUSED]
    assert [(one.system, one.reason) for one in result.refusals] == [(UNFUSED, "RuntimeError: no kernel")]


def test_the_goal_is_the_ratio_to_the_compiled_sequence() -> None:
    rows, result = rows_of(SMALL, forms_of(SMALL, CPU, compile=False))
    fused = replace(rows[0], ms=2.0)
    unfused = replace(rows[1], ms=9.0)
    compiled = replace(unfused, system=UNFUSED + COMPILED, ms=2.6)
    report = NormsReport("norms", "gpu", "torch", "commit", "method", [fused, unfused, compiled], result.refusals)
    (goal,) = report.figures
    assert (goal.measured, goal.goal, goal.reached) == (1.3, 1.25, True)
    (missing,) = replace(report, rows=[fused, unfused]).figures
    assert missing.measured is None and not missing.reached


def test_the_case_is_that_of_the_goal_and_may_be_scaled() -> None:
    case = case_on("cuda")
    assert (len(case.lengths_q), set(case.lengths_k), case.heads, case.head_dim) == (768, {128}, 4, 128)
    assert min(case.lengths_q) >= 1 and max(case.lengths_q) <= 2048 and case.dtype == "bfloat16"
    assert case.rows_q == pytest.approx(768 * 1024, rel=0.05)
    assert len(case_on("cuda", 0.25).lengths_q) == 192


def test_the_command_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["norms", "--device", "cpu", "--seconds", "0", "--rounds", "1", "--scale-batch", "0.5"]
    assert bench.main([*arguments, "--report", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "times fused" in printed.out and "not measured" in printed.out and "1 cases, " in printed.err
    (document,), (page,), (picture,) = (list(tmp_path.glob(f"norms-*.{end}")) for end in ("json", "md", "png"))
    read = json.loads(document.read_text())
    assert len(read["rows"]) == 6 and all(list(row) == fields(FormRow) for row in read["rows"])
    assert read["figures"][0]["goal"] == 1.25 and not read["figures"][0]["reached"]
    assert f"]({picture.name})" in page.read_text() and picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_ends_with_1_where_results_disagree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unfused = Computation.unfused
    monkeypatch.setattr(
        norms.Computation, "unfused", lambda *inputs: tuple(2 * one for one in unfused(*inputs))
    )  # fmt: skip
    assert bench.main(["norms", "--device", "cpu", "--seconds", "0", "--rounds", "1"]) == 1
    assert "expected PyTorch's norms to be within" in capsys.readouterr().err
