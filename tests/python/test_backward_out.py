"""varlen_attention_backward: the gradients of varlen_attention in tensors of the caller."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reference import offsets

import gdpa

CU_Q, CU_K = offsets([3, 0, 4]), offsets([2, 3, 4])
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"activation": "silu"},
    "upper left": {"activation": "gelu", "window_size": (1, 2), "diagonal": "upper_left", "scale": 0.3},
    "row scale": {"activation": "silu", "out_scale": torch.rand(7, 1)},
    "output offsets": {"activation": "silu", "output_offsets": torch.tensor([4, 0, 0])},
    "add query": {"activation": "silu", "add_query": True},
    "mask": {"activation": "silu", "mask": gdpa.mask.prefix(torch.tensor([1, 3, 0])) | gdpa.mask.causal()},
}


def operands(requires_grad: bool = False) -> list[torch.Tensor]:
    return [torch.randn(rows, 2, 8).requires_grad_(requires_grad) for rows in (7, 9, 9)]


@pytest.mark.parametrize("name", OPTIONS)
def test_the_gradients_are_written_into_views_of_one_buffer(name: str) -> None:
    q, k, v = operands(requires_grad=True)
    output = gdpa.varlen_attention(q, k, v, CU_Q, CU_K, **OPTIONS[name])
    weights = torch.randn_like(output)
    buffer = torch.full((9, 60), float("nan"))
    views = [buffer[:rows, 1 + n * 20 : 17 + n * 20].unflatten(1, (2, 8)) for n, rows in enumerate((7, 9, 9))]
    names = ("grad_query", "grad_key", "grad_value")
    gradients = dict(zip(names, views, strict=True))
    assert gdpa.varlen_attention_backward(weights, q, k, v, CU_Q, CU_K, **gradients, **OPTIONS[name]) == {}
    for view, expected in zip(views, torch.autograd.grad(output, (q, k, v), weights), strict=True):
        assert torch.equal(view, expected)
    assert buffer.isnan().sum() == buffer.numel() - (7 + 9 + 9) * 16


def test_some_gradients_and_those_of_tensors() -> None:
    q, k, v = operands()
    table, a = torch.randn(2, 9, requires_grad=True), torch.rand(2, requires_grad=True)
    options = {"activation": "a * silu(s + table[head, abs(q_idx - kv_idx)])", "params": {"table": table, "a": a}}
    output = gdpa.varlen_attention(q, k, v, CU_Q, CU_K, **options)
    weights = torch.randn_like(output)
    grad_key = torch.empty(9, 2, 8)
    found = gdpa.varlen_attention_backward(
        weights, q, k, v, CU_Q, CU_K, grad_key=grad_key, grad_params=("table",), **options
    )
    assert list(found) == ["table"]
    expected = torch.autograd.grad(output, (table, a), weights)
    torch.testing.assert_close(found["table"], expected[0])
    both = gdpa.varlen_attention_backward(weights, q, k, v, CU_Q, CU_K, grad_params=("table", "a"), **options)
    torch.testing.assert_close(both["a"], expected[1])
    assert grad_key.ne(0).any()


def test_a_gradient_of_the_output_with_any_strides() -> None:
    q, k, v = operands(requires_grad=True)
    output = gdpa.varlen_attention(q, k, v, CU_Q, CU_K)
    weights = torch.randn(8, 2, 7).permute(2, 1, 0)
    grad_query = torch.empty(7, 2, 8)
    gdpa.varlen_attention_backward(weights, q, k, v, CU_Q, CU_K, grad_query=grad_query)
    assert torch.equal(grad_query, *torch.autograd.grad(output, q, weights))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, ValueError, "at least one gradient"),
        ({"grad_query": torch.empty(7, 2, 4)}, ValueError, "grad_query: expected shape"),
        ({"grad_query": torch.empty(7, 2, 8).double()}, TypeError, "grad_query: expected dtype float32"),
        ({"grad_query": torch.empty(7, 8, 2).transpose(1, 2)}, ValueError, "a last dimension of stride 1"),
        ({"grad_query": torch.empty(1, 2, 8).expand(7, 2, 8)}, ValueError, "an address of its own"),
        ({"grad_params": ("a",)}, ValueError, "expected names of tensors of params"),
    ],
)
def test_wrong_tensors_are_refused(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    q, k, v = operands()
    with pytest.raises(error, match=words):
        gdpa.varlen_attention_backward(torch.randn(7, 2, 8), q, k, v, CU_Q, CU_K, **arguments)


def test_compiled_code_writes_the_buffer() -> None:
    def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        buffer = torch.empty(9, 3, 2, 8)
        gradients = buffer[:7, 0], buffer[:, 1], buffer[:, 2]
        names = ("grad_query", "grad_key", "grad_value")
        gdpa.varlen_attention_backward(weights, q, k, v, CU_Q, CU_K, **dict(zip(names, gradients, strict=True)))
        return buffer[:, 1:] * 2

    arguments = (*operands(), torch.randn(7, 2, 8))
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), fused(*arguments))


@pytest.mark.parametrize("kind", ["number", "row"])
def test_opcheck_passes(kind: str) -> None:
    q, k, v = operands()
    numbers = None if kind == "number" else torch.rand(7)
    options = (0.5, 1.0, kind, numbers, -1, 2, "bottom_right")
    further = None, (), None, True, "fast", False, False, False, -1, True
    layout = CU_Q, CU_K, None, None, None, None
    problem = (q, k, v, (torch.rand(2),), *layout, "a * silu(s)", ("a",), *options, *further)
    gradients = [torch.empty_like(one) for one in (q, k, v)]
    torch.library.opcheck(
        torch.ops.gdpa.backward_out.default, (torch.randn(7, 2, 8), *problem, *gradients, 1, kind == "row"),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )  # fmt: skip
    torch.library.opcheck(torch.ops.gdpa.forward.default, problem)
    wanted = True, True, True, 1, kind == "row"
    torch.library.opcheck(torch.ops.gdpa.backward.default, (torch.randn(7, 2, 8), *problem, *wanted))


@pytest.mark.parametrize("name", ("output_rows", "zeroes_output", "bogus"))
def test_options_without_effect_on_a_gradient_are_refused(name: str) -> None:
    q, k, v = operands()
    message = rf"varlen_attention_backward\(\) got an unexpected keyword argument '{name}'"
    with pytest.raises(TypeError, match=message):
        gdpa.varlen_attention_backward(q, q, k, v, CU_Q, CU_K, grad_query=torch.empty_like(q), **{name: 7})
