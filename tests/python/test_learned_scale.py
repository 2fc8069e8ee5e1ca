"""scale= as a tensor: one number, or one for each query head, with the gradient of a learned temperature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import offsets
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager

import gdpa

H, D = 4, 8
CU_Q, CU_K = offsets([3, 0, 4]), offsets([2, 3, 4])
DTYPE = torch.float64
SHAPES: list[tuple[int, ...]] = [(), (1,), (H,)]


def operands(dtype: torch.dtype = DTYPE) -> list[Tensor]:
    return [torch.randn(rows, H, D, dtype=dtype, requires_grad=True) for rows in (7, 9, 9)]


def number(shape: tuple[int, ...], dtype: torch.dtype = DTYPE) -> Tensor:
    return (torch.rand(shape, dtype=dtype) + 0.5).requires_grad_()


def attend(rows: list[Tensor], scale: Any, activation: Any = "silu", **options: Any) -> Tensor:
    return gdpa.varlen_attention(*rows, CU_Q, CU_K, activation=activation, scale=scale, **options)


def expected(rows: list[Tensor], scale: Tensor, functions: list[Callable[[Tensor], Tensor]]) -> Tensor:
    """The definition, in operations of PyTorch."""
    outputs = []
    for n in range(3):
        (q, k, v) = (one[cu[n] : cu[n + 1]] for one, cu in zip(rows, (CU_Q, CU_K, CU_K), strict=True))
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale.expand(H)[:, None, None]
        p = torch.stack([f(one) for f, one in zip(functions, scores, strict=True)])
        outputs.append(torch.einsum("hqk,khd->qhd", p, v))
    return torch.cat(outputs)


silu = torch.nn.functional.silu
FUNCTIONS: dict[str, tuple[Any, list[Callable[[Tensor], Tensor]]]] = {
    "name": ("silu", [silu] * H),
    "expression": ("s * s + exp2(-head) * s", [lambda s, n=n: s * s + 2.0**-n * s for n in range(H)]),
    "clause": ("tanh(a * s) with a = 2", [lambda s: torch.tanh(2 * s)] * H),
    "python": (lambda s: s * torch.sigmoid(1.5 * s), [lambda s: s * torch.sigmoid(1.5 * s)] * H),
    "score": (lambda s, b, h, i, j: s * s, [lambda s: s * s] * H),
    "list": (["silu", "s", "relu(s)^2", "tanh"], [silu, lambda s: s, lambda s: s.relu() ** 2, torch.tanh]),
    "activation": (gdpa.Activation("silu(a * s)", {"a": 0.7}), [lambda s: silu(0.7 * s)] * H),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_output_and_gradients_follow_the_definition(function: str, shape: tuple[int, ...]) -> None:
    activation, functions = FUNCTIONS[function]
    rows, scale = operands(), number(shape)
    output, exact = attend(rows, scale, activation), expected(rows, scale, functions)
    torch.testing.assert_close(output, exact)
    weights = torch.randn_like(output)
    for got, one in zip(*(torch.autograd.grad(of, [*rows, scale], weights) for of in (output, exact)), strict=True):
        torch.testing.assert_close(got, one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensor_gives_the_numbers_of_a_float(dtype: torch.dtype) -> None:
    rows = operands(dtype)
    for activation in ("gelu", "relu", "s"):
        for scale in (torch.tensor(0.3), torch.tensor(0.3, dtype=DTYPE), torch.full((H,), 0.3), torch.tensor([2])):
            given = scale if scale.dtype != torch.int64 else torch.tensor(2)
            torch.testing.assert_close(attend(rows, given, activation), attend(rows, float(given.max()), activation))


def test_a_scale_learns_with_learned_tensors_a_mask_and_numbers_of_queries() -> None:
    rows, scale = operands(), number((H,))
    a, numbers = torch.rand(H, dtype=DTYPE, requires_grad=True), torch.rand(7, 1, dtype=DTYPE, requires_grad=True)
    table = torch.rand(5, dtype=DTYPE, requires_grad=True)
    options: dict[str, Any] = {"mask": "kv_idx <= q_idx", "out_scale": numbers}
    output = attend(rows, scale, "a * silu(s + t[kv_idx])", params={"a": a, "t": table}, **options)
    exact = attend(rows, 1.0, "a * silu(c * s + t[kv_idx])", params={"a": a, "t": table, "c": scale}, **options)
    inputs = [*rows, scale, a, table, numbers]
    for got, one in zip(*(torch.autograd.grad(of.sum(), inputs) for of in (output, exact)), strict=True):
        torch.testing.assert_close(got, one)


def test_dense_and_nested_operands_and_a_query_that_the_batch_shares() -> None:
    scale = number((H,))
    dense = torch.randn(2, H, 5, D, dtype=DTYPE)
    scores = dense @ dense.mT * scale[:, None, None]
    output = gdpa.generalized_dot_product_attention(dense, dense, dense, "silu", scale=scale)
    torch.testing.assert_close(output, silu(scores) @ dense)
    nested = torch.nested.nested_tensor([one.transpose(0, 1) for one in dense], layout=torch.jagged).transpose(1, 2)
    of_nested = gdpa.generalized_dot_product_attention(nested, nested, nested, "silu", scale=scale)
    torch.testing.assert_close(of_nested.values(), output.transpose(1, 2).flatten(0, 1).transpose(0, 1))
    shared = torch.randn(3, H, D, dtype=DTYPE)
    keys = operands()[1]
    pooled = gdpa.varlen_attention(shared, keys, keys, None, CU_K, activation="silu", scale=scale)
    times = gdpa.varlen_attention(shared * scale[:, None], keys, keys, None, CU_K, activation="silu", scale=1.0)
    torch.testing.assert_close(pooled, times)


def test_backward_into_given_tensors_returns_the_gradient() -> None:
    rows, scale, a = operands(), number((1,)), number((H,))
    output = attend(rows, scale, "a * s", params={"a": a})
    weights = torch.randn_like(output)
    arguments: dict[str, Any] = {"activation": "a * s", "params": {"a": a}, "scale": scale}
    got = gdpa.varlen_attention_backward(weights, *rows, CU_Q, CU_K, **arguments, grad_params=["scale", "a"])
    of_scale, of_a = torch.autograd.grad(output, [scale, a], weights)
    torch.testing.assert_close(got, {"a": of_a, "scale": of_scale})
    arguments = {"activation": "scale * s", "params": {"scale": a}, "scale": scale, "grad_params": ["scale"]}
    with pytest.raises(ValueError, match="got 'scale'; rename the tensor of params"):
        gdpa.varlen_attention_backward(weights, *rows, CU_Q, CU_K, **arguments)


def test_a_module_learns_its_scale() -> None:
    rows, scale = operands(torch.float32), number((H,), torch.float32)
    for constant in (False, True):
        given = scale.detach() if constant else nn.Parameter(scale.detach().clone())
        module = gdpa.nn.GDPA("silu", scale=given)
        assert [name for name, _ in module.named_parameters()] == ([] if constant else ["options.scale"])
        assert "options.scale" in module.state_dict()
        output = module(*rows, CU_Q, CU_K)
        torch.testing.assert_close(output, attend(rows, scale))
        if not constant:
            output.sum().backward()
            torch.testing.assert_close(given.grad, torch.autograd.grad(attend(rows, scale).sum(), scale)[0])


@pytest.mark.parametrize("requires_grad", [False, True])
def test_compiled_code_has_one_graph_for_all_numbers(requires_grad: bool) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def counted(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return aot_eager(graph, inputs)

    compiled = torch.compile(attend, fullgraph=True, backend=counted)
    rows, of_first = operands(), 0  # PyTorch may trace the first call twice
    for value in (0.3, 0.7, 1.1):
        scale = torch.tensor(value, dtype=DTYPE, requires_grad=requires_grad)
        output, exact = compiled(rows, scale), attend(rows, scale)
        torch.testing.assert_close(output, exact)
        inputs = [*rows, scale] if requires_grad else rows
        torch.testing.assert_close(torch.autograd.grad(output.sum(), inputs), torch.autograd.grad(exact.sum(), inputs))
        of_first = of_first or len(graphs)
    assert len(graphs) == of_first


@pytest.mark.parametrize(
    ("scale", "activation", "error", "words"),
    [
        (torch.ones(3), "silu", ValueError, r"scale: expected shape \(\) or \(4,\), one number for all query heads"),
        (torch.ones(4, 1), "silu", ValueError, r"scale: expected shape \(\) or \(4,\)"),
        (torch.ones(4, dtype=torch.bool), "silu", TypeError, "scale: expected a real dtype, got bool"),
        (torch.ones((), device="meta"), "silu", TypeError, "scale: expected device cpu, as the query's, got meta"),
        (torch.ones(()), "exp2(-h)", ValueError, "activation: expected an expression that reads the score s"),
        (torch.ones(()), "silu(s", ValueError, r"    silu\(s\n          \^"),
    ],
)
def test_wrong_tensors_are_refused(scale: Tensor, activation: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        attend(operands(), scale, activation)
