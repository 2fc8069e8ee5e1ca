"""The forms in which operands may come: views, dense with leading dimensions, nested, shared; and their gradients."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from reference import Problem, assert_within_promise, offsets
from torch import Tensor

import gdpa

LENGTHS = [5, 0, 12, 1]
TOTAL = sum(LENGTHS)
OFFSETS = offsets(LENGTHS)


def gradients_of(output: Tensor, weights: Tensor, *operands: Tensor) -> list[Tensor]:
    return [output.detach(), *torch.autograd.grad(output, operands, weights)]


def assert_equal(got: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_views_of_a_fused_projection_need_no_copy() -> None:
    fused = torch.randn(TOTAL, 3, 2, 16, requires_grad=True)
    weights = torch.randn(TOTAL, 2, 16)
    output = gdpa.varlen_attention(*fused.unbind(1), OFFSETS, OFFSETS)
    (gradient,) = torch.autograd.grad(output, fused, weights)
    apart = [t.detach().contiguous() for t in fused.unbind(1)]
    assert_within_promise([output.detach(), *gradient.unbind(1)], Problem(*apart, LENGTHS, LENGTHS), weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("first", [0, 1, 3, 8])
@pytest.mark.parametrize("widths", [(16, 16, 16), (24, 24, 5)], ids=str)
def test_query_key_and_value_may_be_anywhere_in_the_last_axis_of_one_tensor(
    dtype: torch.dtype, first: int, widths: tuple[int, int, int]
) -> None:
    """The columns are unused | Q | K | V | unused."""
    fused = torch.randn(TOTAL, 2, first + sum(widths) + 2).to(dtype).requires_grad_()
    weights = torch.randn(TOTAL, 2, widths[2]).to(dtype)
    _, *views, _ = fused.split([first, *widths, 2], dim=-1)
    output = gdpa.varlen_attention(*views, OFFSETS, OFFSETS)
    (gradient,) = torch.autograd.grad(output, fused, weights)
    before, *of_views, after = gradient.split([first, *widths, 2], dim=-1)
    apart = [view.detach().contiguous() for view in views]
    assert_within_promise([output.detach(), *of_views], Problem(*apart, LENGTHS, LENGTHS), weights)
    assert not before.any()
    assert not after.any()


@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("heads_first", [True, False])
def test_key_and_value_may_be_anywhere_in_the_last_axis_of_one_tensor(first: int, heads_first: bool) -> None:
    """The columns are unused | K of all heads | V of all heads, or for each head unused | K | V."""
    width, width_v, heads = 16, 24, 2
    query = torch.randn(TOTAL, heads, width, requires_grad=True)
    weights = torch.randn(TOTAL, heads, width_v)
    if heads_first:
        fused = torch.randn(TOTAL, heads, first + width + width_v, requires_grad=True)
        views = list(fused.split([first, width, width_v], dim=-1))[1:]
    else:
        fused = torch.randn(TOTAL, first + heads * (width + width_v), requires_grad=True)
        _, *parts = fused.split([first, heads * width, heads * width_v], dim=-1)
        views = [part.unflatten(1, (heads, -1)) for part in parts]
    output = gdpa.varlen_attention(query, *views, OFFSETS, OFFSETS)
    of_query, gradient = torch.autograd.grad(output, (query, fused), weights)
    # The same views of the gradient.
    of_views = [gradient.as_strided(view.shape, view.stride(), view.storage_offset()) for view in views]
    apart = [query.detach(), *(view.detach().contiguous() for view in views)]
    assert_within_promise([output.detach(), of_query, *of_views], Problem(*apart, LENGTHS, LENGTHS), weights)
    assert not gradient[..., :first].any()


@pytest.mark.parametrize("first", [0, 1, 8])
def test_gradients_may_be_views_of_one_tensor_at_any_place_of_its_last_axis(first: int) -> None:
    query, key, value = (torch.randn(TOTAL, 2, 16, requires_grad=True) for _ in range(3))
    weights = torch.randn(TOTAL, 2, 16)
    gradient = torch.full((TOTAL, 2, first + 3 * 16 + 1), float("nan"))
    before, *views, after = gradient.split([first, 16, 16, 16, 1], dim=-1)
    names = ("grad_query", "grad_key", "grad_value")
    gdpa.varlen_attention_backward(weights, query, key, value, OFFSETS, OFFSETS, **dict(zip(names, views, strict=True)))
    output = gdpa.varlen_attention(query, key, value, OFFSETS, OFFSETS)
    for view, expected in zip(views, torch.autograd.grad(output, (query, key, value), weights), strict=True):
        assert torch.equal(view, expected)
    assert before.isnan().all()
    assert after.isnan().all()


def test_heads_may_come_before_rows() -> None:
    operands = [torch.randn(2, TOTAL, 16, requires_grad=True) for _ in range(3)]
    weights = torch.randn(TOTAL, 2, 16)
    output = gdpa.varlen_attention(*(t.transpose(0, 1) for t in operands), OFFSETS, OFFSETS)
    got = gradients_of(output, weights, *operands)
    packed = [t.detach().transpose(0, 1).contiguous() for t in operands]
    problem = Problem(*packed, LENGTHS, LENGTHS)
    assert_within_promise([got[0], *(t.transpose(0, 1) for t in got[1:])], problem, weights)


@pytest.mark.parametrize("expand", [lambda g: g.sum(), lambda g: g.transpose(1, 2).contiguous().transpose(1, 2).sum()])
def test_a_gradient_of_the_output_may_have_any_strides(expand: object) -> None:
    operands = [torch.randn(TOTAL, 2, 16, requires_grad=True) for _ in range(3)]
    gradients = torch.autograd.grad(expand(gdpa.varlen_attention(*operands, OFFSETS, OFFSETS)), operands)  # type: ignore[operator]
    weights = torch.ones(TOTAL, 2, 16)
    assert_equal(
        list(gradients), gradients_of(gdpa.varlen_attention(*operands, OFFSETS, OFFSETS), weights, *operands)[1:]
    )


def test_a_dense_side_beside_a_jagged_one_has_one_length_for_all() -> None:
    query = torch.randn(TOTAL, 2, 16)
    key, value = torch.randn(len(LENGTHS), 6, 2, 16), torch.randn(len(LENGTHS), 6, 2, 8)
    output = gdpa.varlen_attention(query, key, value, OFFSETS, None)
    packed = gdpa.varlen_attention(query, key.flatten(0, 1), value.flatten(0, 1), OFFSETS, offsets([6] * len(LENGTHS)))
    torch.testing.assert_close(output, packed)


def test_a_batch_without_sequences_gives_no_rows_and_no_gradient() -> None:
    query = torch.randn(0, 2, 16, requires_grad=True)
    shared = torch.randn(4, 2, 16, requires_grad=True)
    output = gdpa.varlen_attention(query, shared, shared, offsets([]), None)
    assert output.shape == (0, 2, 16)
    output.sum().backward()
    assert shared.grad is not None
    assert not shared.grad.any()


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 1, 2)])
def test_leading_dimensions_are_the_batch(leading: tuple[int, ...]) -> None:
    operands = [torch.randn(*leading, 2, 7, 16, requires_grad=True) for _ in range(3)]
    output = gdpa.generalized_dot_product_attention(*operands, "silu")
    assert output.shape == (*leading, 2, 7, 16)
    flat = [t.reshape(-1, 2, 7, 16) for t in operands]
    torch.testing.assert_close(output.reshape(-1, 2, 7, 16), gdpa.generalized_dot_product_attention(*flat, "silu"))
    output.sum().backward()
    assert all(t.grad is not None and t.grad.shape == t.shape for t in operands)


def test_leading_dimensions_broadcast_and_the_gradient_is_summed() -> None:
    query = torch.randn(3, 2, 2, 7, 16, requires_grad=True)
    shared = torch.randn(2, 9, 16, requires_grad=True)
    output = gdpa.generalized_dot_product_attention(query, shared, shared, "gelu")
    repeated = shared.expand(3, 2, 2, 9, 16).contiguous()
    wanted = gdpa.generalized_dot_product_attention(query, repeated, repeated, "gelu")
    weights = torch.randn_like(output)
    assert_equal(gradients_of(output, weights, query, shared), gradients_of(wanted, weights, query, shared))


@pytest.mark.parametrize("who_expands", ["caller", "gdpa"])
def test_an_expanded_operand_is_not_copied(who_expands: str) -> None:
    key = torch.randn(2, 64, 16)
    if who_expands == "caller":
        key = key.expand(1000, 2, 64, 16)
    query = torch.randn(1000, 2, 1, 16)
    with torch.profiler.profile(profile_memory=True) as profile:
        gdpa.generalized_dot_product_attention(query, key, key)
    allocated = sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())
    assert allocated < 2 * query.numel() * query.element_size()


def test_is_causal_counts_from_the_upper_left_and_window_size_from_the_bottom_right() -> None:
    query, key = torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 5, 8)
    value = torch.eye(5)[None, None]
    rows = gdpa.generalized_dot_product_attention(query, key, value, "1 + s", is_causal=True)[0, 0]
    assert rows.tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    rows = gdpa.generalized_dot_product_attention(query, key, value, "1 + s", window_size=(-1, 0))[0, 0]
    assert rows.tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


def nested(lengths: list[int], heads: int, width: int) -> tuple[Tensor, Tensor]:
    """Rows that require a gradient, and the (batch, heads, ragged, width) view of them."""
    rows = torch.randn(sum(lengths), heads, width, requires_grad=True)
    return rows, torch.nested.nested_tensor_from_jagged(rows, offsets(lengths, torch.int64)).transpose(1, 2)


def test_nested_tensors_go_in_and_come_out() -> None:
    rows, query = nested(LENGTHS, 2, 16)
    output = gdpa.generalized_dot_product_attention(query, query, query, "silu", window_size=(-1, 0))
    assert output.is_nested
    assert output.layout == torch.jagged
    wanted = gdpa.varlen_attention(rows, rows, rows, OFFSETS, OFFSETS, activation="silu", window_size=(-1, 0))
    got = (output + query).transpose(1, 2).values() - rows
    torch.testing.assert_close(got, wanted)
    weights = torch.randn_like(wanted)
    assert_equal([torch.autograd.grad(got, rows, weights)[0]], [torch.autograd.grad(wanted, rows, weights)[0]])


def test_nested_query_and_key_may_have_lengths_of_their_own() -> None:
    rows_q, query = nested([3, 4], 2, 16)
    rows_k, key = nested([5, 1], 2, 16)
    output = gdpa.generalized_dot_product_attention(query, key, key)
    wanted = gdpa.varlen_attention(rows_q, rows_k, rows_k, offsets([3, 4]), offsets([5, 1]))
    torch.testing.assert_close(output.transpose(1, 2).values(), wanted)


def test_nested_values_with_other_lengths_than_the_keys_are_refused() -> None:
    _, query = nested([3, 4], 2, 16)
    rows, key = nested([5, 1], 2, 16)
    _, value = nested([1, 5], 2, 16)
    with pytest.raises(ValueError, match=r"value: expected the lengths of the key's sequences, \[5, 1\], got \[1, 5\]"):
        gdpa.generalized_dot_product_attention(query, key, value)
    same = torch.nested.nested_tensor_from_jagged(rows, offsets([5, 1], torch.int64)).transpose(1, 2)
    assert gdpa.generalized_dot_product_attention(query, key, same).is_nested, "equal offsets in another tensor"


def test_nested_tensors_of_another_kind_are_refused() -> None:
    _, query = nested([3, 4], 2, 16)
    dense = torch.randn(2, 2, 4, 16)
    with pytest.raises(TypeError, match="key: expected a nested tensor"):
        gdpa.generalized_dot_product_attention(query, dense, dense)
    with pytest.raises(TypeError, match="key: expected a dense tensor"):
        gdpa.generalized_dot_product_attention(dense, query, query)
    with pytest.raises(ValueError, match="transpose"):
        gdpa.generalized_dot_product_attention(*[query.transpose(1, 2)] * 3)
    holes = torch.nested.narrow(torch.randn(2, 5, 2, 16), 1, torch.tensor([0, 1]), torch.tensor([3, 2]), torch.jagged)
    with pytest.raises(ValueError, match="holes"):
        gdpa.generalized_dot_product_attention(*[holes.transpose(1, 2)] * 3)


def test_values_of_either_type_scale_each_sequence() -> None:
    query = torch.randn(TOTAL, 2, 16)
    numbers = torch.tensor([0.5, 1.0, -2.0, 0.0])
    one = gdpa.varlen_attention(query, query, query, OFFSETS, OFFSETS, out_scale=numbers)
    other = gdpa.varlen_attention(query, query, query, OFFSETS, OFFSETS, out_scale=numbers.double())
    plain = gdpa.varlen_attention(query, query, query, OFFSETS, OFFSETS)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(one, plain * numbers.repeat_interleave(torch.tensor(LENGTHS))[:, None, None])


@pytest.mark.parametrize("side", [sys.maxsize, sys.maxsize - 1, 2**62, 2**33])
@pytest.mark.parametrize("window", [("side", 0), (0, "side"), ("side", "side"), (-1, "side")])
def test_a_side_of_a_window_beyond_every_length_is_no_bound(window: tuple[Any, Any], side: int) -> None:
    operands = [torch.randn(TOTAL, 2, 16, requires_grad=True) for _ in range(3)]

    def results(bound: int) -> list[Tensor]:
        left, right = (bound if one == "side" else one for one in window)
        output = gdpa.varlen_attention(*operands, OFFSETS, OFFSETS, window_size=(left, right))
        return gradients_of(output, torch.ones_like(output), *operands)

    assert_equal(results(side), results(-1))


def test_rows_before_the_first_offset_belong_to_no_sequence() -> None:
    operands = [torch.randn(TOTAL, 2, 16, requires_grad=True) for _ in range(3)]
    shifted = OFFSETS[1:]  # begins at 5
    output = gdpa.varlen_attention(*operands, shifted, shifted, activation="sigmoid")
    inner = [operand[LENGTHS[0] :].detach().requires_grad_() for operand in operands]
    alone = gdpa.varlen_attention(*inner, shifted - LENGTHS[0], shifted - LENGTHS[0], activation="sigmoid")
    results = gradients_of(output, torch.ones_like(output), *operands)
    assert_equal([result[LENGTHS[0] :] for result in results], gradients_of(alone, torch.ones_like(alone), *inner))
    for result in results:
        assert not result[: LENGTHS[0]].any()
