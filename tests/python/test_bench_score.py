"""The suite score: its goals, the tensors of its functions, and the same bias in FlexAttention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from bench_cases import by_name, small_case
from torch.nn.functional import silu

from gdpa.bench.cases import Case, by_shape, cases_of_suite, suites
from gdpa.bench.device import Device
from gdpa.bench.goals import goals_of_suite
from gdpa.bench.in_pytorch import bias_of, score_mod_of
from gdpa.bench.measure import Effort, measure
from gdpa.bench.report import Table
from gdpa.bench.systems import Gdpa, Operands, choose_systems, in_turn
from gdpa.bench.systems.packages import GdpaCompat
from gdpa.bench.tensors import TIMES_END, params_of, random_tensors

BIASED = {
    shape["name"].removeprefix("512/512 "): (shape["activation"][-1], shape["tensors"])
    for shape in suites()["score"]["shapes"]
    if shape["length_q"] == 512 and bias_of(shape["activation"][-1])
}
BUCKETS, TENSORS_OF_BUCKETS = BIASED["time buckets"]


def case_of(activation: str, tensors: dict[str, str], **changes: object) -> Case:
    return small_case(activation=activation, tensors=tuple(tensors.items()), **changes)


class Quiet(Device):
    """The processor, without the time that measuring its rates takes."""

    def rates(self, dtype: str, product_flops: float | None) -> None:
        return None


def test_the_suite_score_has_the_rows_that_were_promised() -> None:
    promised = {
        "parameters": (0.97, 0.97),
        "learned parameters": (0.97, 0.9),
        "functions": (0.97, 0.97),
        "table": (0.8, 0.65),
        "time buckets": (0.7, 0.6),
        "bias": (0.8, 0.6),
        "bias of each sequence": (0.75, 0.6),
    }
    told = list(goals_of_suite("score"))
    of_plain = {
        (shape, direction): goal["at_least"] for shape, direction, _, goal in told if goal["of"] in ("row", "mean")
    }
    expected = {f"{length}/{length} {what}": goals for length in (2048, 512) for what, goals in promised.items()}
    del expected["2048/2048 bias of each sequence"]
    assert of_plain == {
        (shape, direction): goal
        for shape, goals in expected.items()
        for direction, goal in zip(("fwd", "bwd"), goals, strict=True)
    }
    of_flex = [goal["at_least"] for *_, goal in told if goal["of"] == "others"]
    assert len(of_flex) == 2 * 7 and set(of_flex) == {2}
    for case in cases_of_suite("score"):
        assert (len(case.lengths_q), case.heads, case.head_dim, case.dtype) == (1152, 4, 128, "bfloat16")
        assert set(case.lengths_q) == set(case.lengths_k)


@pytest.mark.parametrize("shape", BIASED)
def test_flex_attention_gets_the_bias_that_gdpa_computes(shape: str) -> None:
    """f(s + bias) of the score_mod's s + bias is gdpa's output, and its gradients are gdpa's."""
    case = case_of(*BIASED[shape], lengths_q=(7, 7), lengths_k=(7, 7))
    operands = Operands.random(case, torch.device("cpu"))
    params = params_of(case, operands.tensors)
    dense = operands.dense
    query, key, value = (one.detach().requires_grad_() for one in (dense.query, dense.key, dense.value))
    scores = torch.einsum("bihd,bjhd->bhij", query, key) / case.head_dim**0.5
    positions = torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")
    score_mod = score_mod_of(case, params)
    assert score_mod is not None
    expected = torch.einsum("bhij,bjhd->bihd", silu(score_mod(scores, *positions)), value).flatten(0, 1)

    prepared = Gdpa().prepare(case, operands)
    (output,) = prepared.forward()
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    learned = [tensor for tensor in params.values() if tensor.requires_grad]
    assert len(learned) == 1 and len(prepared.inputs) == 4
    gradients = torch.autograd.grad(expected, [query, key, value, *learned], operands.grad_output)
    for got, wanted in zip(prepared.backward([output]), gradients, strict=True):
        bound = 1e-2 if wanted.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(got, wanted.reshape(got.shape), rtol=bound, atol=bound)


def test_softmax_of_flex_attention_has_the_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdpa.bench.systems.pytorch.compiled", lambda function: function)
    functions = ["silu", BUCKETS]
    case = case_of("silu", TENSORS_OF_BUCKETS, lengths_q=(7, 7), lengths_k=(7, 7), tensor_gradients="none")
    (system,) = in_turn([by_name("FlexAttention")], case, functions)
    assert (system.row_name, system.function) == ("FlexAttention", "softmax")
    operands = Operands.random(case, torch.device("cpu"))
    dense = operands.dense
    attend = system.attend(system.timed(case), torch.device("cpu"), operands.tensors)
    output = attend(dense.query, dense.key, dense.value)
    query, key, value = (operand.transpose(1, 2) for operand in (dense.query, dense.key, dense.value))
    scores = query @ key.mT / case.head_dim**0.5
    score_mod = score_mod_of(replace(case, activation=BUCKETS), operands.tensors)
    assert score_mod is not None
    biased = score_mod(scores, *torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij"))
    assert not torch.allclose(biased, scores)
    torch.testing.assert_close(output.transpose(1, 2), biased.softmax(-1) @ value)


def test_only_a_bias_by_index_is_a_bias() -> None:
    assert list(BIASED) == ["table", "time buckets", "bias", "bias of each sequence"]
    for text in ("silu", "a * s * sigmoid(b * s)", "silu(s + a)", "silu(a[head] * s)", "gelu; silu", "s^2"):
        assert bias_of(text) is None


def test_gradients_of_tensors_are_a_part_of_backward() -> None:
    tensors = {"a": "1.5", "b": "randn:heads"}
    for gradients, count in (("all", 2), ("none", 0), ("b", 1)):
        case = case_of("a * s * sigmoid(b * s)", tensors, tensor_gradients=gradients)
        prepared = Gdpa().prepare(case, Operands.random(case, torch.device("cpu")))
        assert len(prepared.backward(prepared.forward())) == 3 + count
    plain = case_of("silu", tensors)
    assert len(Gdpa().prepare(plain, Operands.random(plain, torch.device("cpu"))).inputs) == 3


def test_tensors_have_the_sizes_of_the_case() -> None:
    texts = {"bias": "randn:1,heads,length_q,length_k:bfloat16", "of_b": "randn:batch,3", "number": "-2",
             "t_q": "times:tokens_q", "t_k": "times:tokens_k", "long": "times:100000"}  # fmt: skip
    case = case_of("silu", texts)
    tensors = random_tensors(case, torch.Generator().manual_seed(0), torch.device("cpu"))
    shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    assert shapes == {
        "bias": (torch.bfloat16, (1, 2, 12, 12)),
        "of_b": (torch.float32, (3, 3)),
        "number": (torch.float32, ()),
        "t_q": (torch.int64, (22,)),
        "t_k": (torch.int64, (22,)),
        "long": (torch.int64, (100000,)),
    }
    assert tensors["number"] == -2 and tensors["t_q"].equal(tensors["t_k"])
    times = tensors["long"]
    assert times.min() >= 0 and times.max() < TIMES_END
    assert 0 < (times.diff() < 0).sum() < 100  # the times begin again, but rarely
    assert times.diff().abs().add(1).log2().floor().unique().numel() > 10  # differences of many sizes


def test_the_functions_of_a_shape_alternate_with_the_tensors_that_they_name() -> None:
    for case, functions in by_shape(cases_of_suite("score", 1e-9, wanted=["8", "10"])):
        small = replace(case, lengths_q=(5,), lengths_k=(5,), head_dim=8)
        result = measure(small, in_turn([Gdpa()], small, functions), ["fwd", "bwd"], Effort(0.0, 1), Quiet())
        assert not result.refusals
        assert [(row.activation, row.direction) for row in result.rows] == [
            (function, direction) for function in functions for direction in ("fwd", "bwd")
        ]


def test_a_suite_may_name_its_systems() -> None:
    def names(suite: str, kind: str, wanted: list[str] | None = None, without: tuple[str, ...] = ()) -> list[str]:
        return [system.name for system in choose_systems(wanted, without, kind, suites()[suite].get("systems"))]

    assert names("score", "cuda") == ["gdpa", "FlexAttention"]
    assert names("score", "cpu") == ["gdpa"]
    assert names("score", "cuda", ["padded"]) == ["padded"]
    assert names("score", "cuda", without=("FlexAttention",)) == ["gdpa"]
    assert "padded" in names("hopper", "cuda")
    with pytest.raises(ValueError, match=r"expected either gdpa or gdpa\.compat, not both"):
        names("compat", "cuda", ["gdpa", "gdpa.compat"])


def test_a_variant_of_compat_has_rows_of_its_own_function() -> None:
    usual, of_rab = GdpaCompat().variants(["silu", "silu(s + rab[batch, head, q_idx, kv_idx])"])
    assert (usual.row_name, usual.activation) == ("gdpa", None)
    assert (of_rab.row_name, of_rab.activation) == ("gdpa", "silu(s + rab[batch, head, q_idx, kv_idx])")


def test_tables_show_the_brackets_of_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    Table("rows", ("f",), [("silu(s + t[head, q_idx])",)], texts=1).show()
    assert "silu(s + t[head, q_idx])" in capsys.readouterr().out
