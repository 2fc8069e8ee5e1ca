"""The suite masks: its goals, the masks of its rows in FlexAttention, the scores that count, and its layouts."""

from __future__ import annotations

import pytest
import torch
from bench_cases import small_case
from torch.nn.functional import silu

from gdpa.bench import __main__ as bench
from gdpa.bench.cases import Case, cases_of_suite
from gdpa.bench.counts import kept_scores_of
from gdpa.bench.goals import goals_of_suite
from gdpa.bench.in_pytorch import mask_mod_of
from gdpa.bench.masks import mask_of_case
from gdpa.bench.shapes import chosen_cases
from gdpa.bench.systems import Gdpa, Operands

CPU = torch.device("cpu")
MASKS = ["hstu:2,3,2", "prefix:3", "intervals:3", "documents:3", "(q_idx - kv_idx <= 2) & (kv_idx <= q_idx)"]


def selected(case: Case) -> torch.Tensor:
    """(batch, queries, keys) of the longest sequences, by the mask_mod."""
    b, i, j = torch.meshgrid(
        *map(torch.arange, (len(case.lengths_q), max(case.lengths_q), max(case.lengths_k))), indexing="ij"
    )
    return mask_mod_of(mask_of_case(case, CPU), case, CPU)(b, torch.zeros_like(b), i, j).expand(b.shape)


def test_the_suite_masks_has_the_rows_that_were_promised() -> None:
    promised = {
        "causal": (0.92, 0.92),
        "window of 256": (0.65, 0.65),
        "HSTU": (0.95, 0.95),
        "two intervals": (0.9, 0.85),
        "expression of the window": (0.9, 0.9),
        "16 documents": (0.85, 0.85),
        "kv_of, 8 for each": (1.2, 1.2),
        "pages of 64": (0.9, None),
    }
    goals = list(goals_of_suite("masks"))
    told = {(shape, direction): goal["at_least"] for shape, direction, _, goal in goals if goal["of"] == "row"}
    expected = {(shape, "fwd"): goals[0] for shape, goals in promised.items()}
    expected |= {(shape, "bwd"): goals[1] for shape, goals in promised.items() if goals[1] is not None}
    assert told == expected
    assert {goal["at_least"] for *_, goal in goals if goal["of"] == "others"} == {1.5}
    for case in cases_of_suite("masks"):
        assert (case.heads, case.head_dim, case.dtype, case.activation) == (4, 128, "bfloat16", "silu")


@pytest.mark.parametrize("mask", MASKS)
def test_flex_attention_gets_the_mask_that_gdpa_computes(mask: str) -> None:
    case = small_case(mask=mask, lengths_q=(11, 11), lengths_k=(11, 11))
    operands = Operands.random(case, CPU)
    query, key, value = operands.dense.query, operands.dense.key, operands.dense.value
    scores = torch.einsum("bihd,bjhd->bhij", query, key) / case.head_dim**0.5
    keeps = selected(case)[:, None]
    assert 0 < keeps.double().mean() < 1
    expected = torch.einsum("bhij,bjhd->bihd", silu(scores).where(keeps, 0), value).flatten(0, 1)
    (output,) = Gdpa().prepare(case, operands).forward()
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("mask", MASKS)
def test_the_scores_that_count_are_those_of_the_mask(mask: str) -> None:
    case = small_case(mask=mask, lengths_q=(12, 12, 12), lengths_k=(12, 12, 12))
    assert kept_scores_of(case) == int(selected(case).sum())


def test_two_intervals_are_causal_or_prefix() -> None:
    case = small_case(mask="intervals:4", lengths_q=(12,), lengths_k=(12,))
    assert selected(case).equal(selected(small_case(mask="prefix:4", lengths_q=(12,), lengths_k=(12,))))


@pytest.mark.parametrize("layout", ["kv_of:2", "pages:16"])
def test_a_layout_gives_the_output_of_copied_keys(layout: str) -> None:
    case = small_case(layout=layout, lengths_q=(3, 5, 2, 4), lengths_k=(32, 32, 48, 48), dtype="float32")
    operands = Operands.random(case, CPU)
    torch.manual_seed(3)
    (output,) = Gdpa().prepare(case, operands).forward()
    key, value = (list(rows.split(list(case.lengths_of_keys))) for rows in (operands.key, operands.value))
    if layout.startswith("kv_of"):
        assert case.rows_k == 32 + 48
        key, value = ([rows[b // 2] for b in range(4)] for rows in (key, value))
    else:
        torch.manual_seed(3)
        pages = torch.randperm(10).split([2, 2, 3, 3])
        key, value = (
            [torch.cat([rows.unflatten(0, (-1, 16))[page] for page in of]) for of in pages]
            for rows in (operands.key, operands.value)
        )
    for query, k, v, got in zip(operands.query.split(list(case.lengths_q)), key, value,
                                output.split(list(case.lengths_q)), strict=True):  # fmt: skip
        scores = torch.einsum("ihd,jhd->hij", query, k) / case.head_dim**0.5
        torch.testing.assert_close(got, torch.einsum("hij,jhd->ihd", silu(scores), v))


def test_a_wrong_mask_is_refused_before_any_measurement() -> None:
    for mask in ("hstu:1,2", "diagonal:3", "window:-2,0"):
        with pytest.raises(ValueError, match=f"--mask.*{mask}"):
            chosen_cases(bench.parse(["shapes", "--mask", mask]))
