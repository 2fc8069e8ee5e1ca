"""A tensor with a gradient in place of a number is refused by name, because the gradient would be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gdpa
from gdpa.compat import generative_recommenders, hstu, meta

ROWS = torch.randn(12, 4, 8)
OPERANDS = (ROWS, ROWS, ROWS, torch.tensor([0, 5, 12]))
DENSE = torch.randn(2, 4, 5, 8)
TARGETS = torch.tensor([1, 2])


def varlen(**options: Any) -> Tensor:
    return gdpa.varlen_attention(*OPERANDS, OPERANDS[3], activation="silu", **options)


def of_hstu(**options: Any) -> Tensor:
    lengths = {"max_seqlen_q": 7, "max_seqlen_k": 7, "scaling_seqlen": -1, "num_contexts": None, "num_targets": None}
    return hstu.hstu_attn_varlen_func(
        *OPERANDS, OPERANDS[3], None, None, **{"window_size": (-1, 0), **lengths, **options}
    )


def recommend(max_seq_len: Any = 7, **options: Any) -> Tensor:
    return generative_recommenders.hstu_mha(max_seq_len, 0.5, *OPERANDS, **options)


def of_meta(**options: Any) -> Tensor:
    return meta.generalized_dot_product_attention(*OPERANDS, OPERANDS[3], 7, 7, **options)


def layer_norm(**options: Any) -> Tensor:
    return gdpa.nn.functional.layer_norm(ROWS, **options)


# The name in the message, the function, and the argument if it has another name or form.
CALLS: list[tuple[str, Callable[..., Any], Callable[[Tensor], dict[str, Any]] | None]] = [
    ("window_size", varlen, lambda number: {"window_size": (number, 0)}),
    ("window_size", varlen, lambda number: {"window_size": (-1, number)}),
    ("out_scale", varlen, None),
    ("output_rows", varlen, lambda number: {"output_rows": number, "output_offsets": torch.tensor([0, 5])}),
    (
        "window_size",
        gdpa.generalized_dot_product_attention,
        lambda number: {"query": DENSE, "key": DENSE, "value": DENSE, "window_size": (number, 0)},
    ),
    ("left", gdpa.mask.window, lambda number: {"left": number, "right": 0}),
    ("right", gdpa.mask.window, lambda number: {"left": -1, "right": number}),
    ("window", gdpa.mask.hstu, None),
    ("target_group_size", gdpa.mask.hstu, lambda number: {"targets": TARGETS, "target_group_size": number}),
    ("keys", gdpa.mask.intervals, lambda number: {"bounds": torch.zeros(12, 5, 2, dtype=torch.int64), "keys": number}),
    ("eps", layer_norm, None),
    ("eps", gdpa.nn.functional.rms_norm, lambda number: {"x": ROWS, "eps": number}),
    ("tau", gdpa.nn.PFFN, lambda number: {"dim": 32, "heads": 4, "tau": number}),
    ("eps", gdpa.nn.HSTULayer, lambda number: {"dim": 32, "heads": 4, "eps": number}),
    ("qk_scale", of_meta, None),
    ("window_size", of_meta, None),
    ("out_scale", recommend, lambda number: {"max_seq_len": number}),
    ("max_attn_len", recommend, None),
    ("contextual_seq_len", recommend, None),
    ("min_full_attn_seq_len", recommend, lambda number: {"max_attn_len": 2, "min_full_attn_seq_len": number}),
    ("max_seqlen_q", of_hstu, None),
    ("max_seqlen_k", of_hstu, None),
    ("scaling_seqlen", of_hstu, None),
    ("target_group_size", of_hstu, lambda number: {"num_targets": TARGETS, "target_group_size": number}),
    ("left", of_hstu, lambda number: {"window_size": (number, 0)}),
]


@pytest.mark.parametrize(("name", "function", "argument"), CALLS)
def test_a_number_with_a_gradient_is_refused(
    name: str, function: Callable[..., Any], argument: Callable[[Tensor], dict[str, Any]] | None
) -> None:
    number = torch.tensor(2.0, requires_grad=True)
    with pytest.raises(ValueError, match=f"^{name}: expected a number, got a tensor that requires a gradient"):
        function(**({name: number} if argument is None else argument(number)))


def test_an_activation_keeps_no_tensor_with_a_gradient() -> None:
    number = torch.tensor(2.0, requires_grad=True)
    with pytest.raises(TypeError, match="params: expected a number for 'a', got Tensor"):
        gdpa.Activation("a * s", {"a": number})  # type: ignore[dict-item]


def test_the_factor_of_scores_of_the_functions_for_hstu_learns() -> None:
    rab = torch.randn(2, 4, 7, 7)

    def with_bias(alpha: Any) -> Tensor:
        return of_hstu(alpha=alpha, rab=rab).sum()

    def without_bias(alpha: Any) -> Tensor:
        return of_hstu(alpha=alpha).sum()

    def recommended(alpha: Any) -> Tensor:
        return generative_recommenders.hstu_mha(7, alpha, *OPERANDS).sum()

    step = 1e-2
    for function in (with_bias, without_bias, recommended):
        alpha = torch.tensor(0.5, requires_grad=True)
        (gradient,) = torch.autograd.grad(function(alpha), alpha)
        slope = (function(0.5 + step) - function(0.5 - step)) / (2 * step)
        torch.testing.assert_close(gradient, slope, rtol=1e-2, atol=1e-2)
