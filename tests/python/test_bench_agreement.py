"""The check that two systems computed the same, before their times are compared."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gdpa.bench.agreement import AGREEMENT, Disagreement, checked_difference, worst_difference

NAMES = ("output", "dQ", "dK")


def results(**changes: list[float]) -> dict[str, Tensor]:
    return {name: torch.tensor(changes.get(name, [3.0, 4.0])) for name in NAMES}


def test_the_worst_tensor_is_named_with_its_relative_difference() -> None:
    assert worst_difference(results(), results()) == (0.0, "output")
    got = results(output=[3.0, 4.5], dK=[3.0, 5.0])
    assert worst_difference(got, results()) == (pytest.approx(0.2), "dK")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("who", ["system", "gdpa", "both"])
def test_a_number_that_is_not_finite_is_no_agreement(name: str, number: float, who: str) -> None:
    broken = results(**{name: [3.0, number]})
    got, reference = (broken if who != "gdpa" else results()), (broken if who != "system" else results())
    with pytest.raises(Disagreement, match=f"shape: expected other to be within 1e-09 of gdpa, got inf in the {name}"):
        checked_difference("shape", "other", got, reference, AGREEMENT["float64"])


def test_a_result_that_is_0_agrees_with_0_alone() -> None:
    zeros = results(dQ=[0.0, 0.0])
    assert checked_difference("shape", "other", zeros, zeros, 1e-9) == 0
    with pytest.raises(Disagreement, match="got inf in the dQ"):
        checked_difference("shape", "other", results(dQ=[0.0, 1e-9]), zeros, 1e-9)


def test_a_difference_at_the_bound_agrees_and_one_above_it_does_not() -> None:
    got = results(dQ=[3.0, 4.5])
    assert checked_difference("shape", "other", got, results(), 0.1) == pytest.approx(0.1)
    with pytest.raises(Disagreement, match=r"within 0\.09 of gdpa, got 0\.1 in the dQ; no time was taken"):
        checked_difference("shape", "other", got, results(), 0.09)
