"""Learned parameters of the function: tensors that are passed with the call, and their gradients."""

import random
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from random_function import random_function
from torch import Tensor
from torch.nn.functional import silu

import gdpa

FUNCTIONS: dict[str, tuple[str, Callable[..., Tensor], tuple[str, ...]]] = {
    "swish": ("a * s * sigmoid(b * s)", lambda s, a, b: a * s * torch.sigmoid(b * s), ("a", "b")),
    "one of two": ("a * silu(s + b)", lambda s, a, b: a * silu(s + b), ("a", "b")),
    "bump": ("s * exp(-c * s * s)", lambda s, c: s * torch.exp(-c * s * s), ("c",)),
    "homogeneous": ("a * relu(s)", lambda s, a: a * torch.relu(s), ("a",)),
    "only a parameter": ("a", lambda s, a: a + 0 * s, ("a",)),
    "power": ("abs(s)^p", lambda s, p: s.abs() ** p, ("p",)),
    "bounds": ("clamp(s, -a, a)", lambda s, a: torch.maximum(torch.minimum(s, a), -a), ("a",)),
}
HEADS = 4


def definition(
    f: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, params: list[Tensor], causal: bool
) -> Tensor:
    """The definition for operands of shape (length, heads, head_dim), with PyTorch's operations."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
    p = f(scores, *(param.expand(HEADS)[:, None, None] for param in params))
    if causal:
        rows, columns = torch.arange(query.shape[0])[:, None], torch.arange(key.shape[0])
        p = torch.where(columns <= rows + key.shape[0] - query.shape[0], p, 0.0)
    return torch.einsum("hqk,khd->qhd", p, value)


def operands(dtype: torch.dtype, length_q: int = 37, length_k: int = 41) -> list[Tensor]:
    shapes = [(length_q, HEADS, 16), (length_k, 2, 16), (length_k, 2, 24)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def numbers(names: tuple[str, ...], dtype: torch.dtype, per_head: bool) -> dict[str, Tensor]:
    shape = (HEADS,) if per_head else ()
    return {name: (torch.rand(shape, dtype=dtype) + 0.5).requires_grad_() for name in names}


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_outputs_and_all_gradients_follow_the_definition(name: str, causal: bool, per_head: bool) -> None:
    text, f, names = FUNCTIONS[name]
    tensors = operands(torch.float64)
    params = numbers(names, torch.float64, per_head)
    cu_q, cu_k = torch.tensor([0, 37]), torch.tensor([0, 41])
    window = (-1, 0) if causal else (-1, -1)
    output = gdpa.varlen_attention(
        *tensors, cu_q, cu_k, activation=text, params=params, window_size=window, enable_gqa=True
    )
    expected = definition(f, *tensors, list(params.values()), causal)
    torch.testing.assert_close(output, expected)
    inputs = [*tensors, *params.values()]
    grad_output = torch.randn_like(output)
    torch.testing.assert_close(
        torch.autograd.grad(output, inputs, grad_output, allow_unused=True),
        torch.autograd.grad(expected, inputs, grad_output, allow_unused=True),
    )


def test_numbers_of_a_tensor_equal_numbers_of_the_text() -> None:
    tensors = operands(torch.float32)
    params = {"a": torch.tensor(2.0), "b": torch.tensor(0.5)}
    text = "a * s * sigmoid(b * s)"
    cu_q, cu_k = torch.tensor([0, 37]), torch.tensor([0, 41])
    of_tensors = gdpa.varlen_attention(*tensors, cu_q, cu_k, activation=text, params=params, enable_gqa=True)
    mixed = {"a": 2.0, "b": params["b"]}
    of_both = gdpa.varlen_attention(*tensors, cu_q, cu_k, activation=text, params=mixed, enable_gqa=True)
    of_text = gdpa.varlen_attention(*tensors, cu_q, cu_k, activation=f"{text} with a = 2, b = 0.5", enable_gqa=True)
    torch.testing.assert_close(of_tensors, of_text)
    torch.testing.assert_close(of_both, of_text)


def test_a_text_may_have_several_lines() -> None:
    rows = torch.randn(5, HEADS, 8)
    of_lines = gdpa.varlen_attention(
        rows, rows, rows, None, None, activation="a *\n silu(s)", params={"a": torch.tensor(2.0)}
    )
    torch.testing.assert_close(of_lines, 2 * gdpa.varlen_attention(rows, rows, rows, None, None, activation="silu"))
    torch.testing.assert_close(gdpa.varlen_attention(rows, rows, rows, None, None, activation="2 *\nsilu(s)"), of_lines)


def test_a_python_function_takes_tensors() -> None:
    tensors = operands(torch.float64)
    slope = torch.rand(HEADS, dtype=torch.float64, requires_grad=True)
    cu_q, cu_k = torch.tensor([0, 37]), torch.tensor([0, 41])

    def leaky(s: Tensor, slope: Any) -> Tensor:
        return torch.where(s > 0, s, slope * s)

    output = gdpa.varlen_attention(*tensors, cu_q, cu_k, activation=leaky, params={"slope": slope}, enable_gqa=True)
    expected = definition(lambda s, a: torch.where(s > 0, s, a * s), *tensors, [slope], False)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(torch.autograd.grad(output.sum(), slope), torch.autograd.grad(expected.sum(), slope))


def test_gradcheck_passes_for_all_inputs() -> None:
    tensors = operands(torch.float64, 5, 6)
    params = numbers(("a", "b"), torch.float64, per_head=True)
    cu_q, cu_k = torch.tensor([0, 2, 5]), torch.tensor([0, 4, 6])

    def attention(*inputs: Tensor) -> Tensor:
        return gdpa.varlen_attention(
            *inputs[:3], cu_q, cu_k, activation="a * silu(b * s)", params={"a": inputs[3], "b": inputs[4]},
            enable_gqa=True,
        )  # fmt: skip

    assert torch.autograd.gradcheck(attention, (*tensors, *params.values()))


@pytest.mark.parametrize("form", ["shared query", "shared key", "dense"])
def test_gradients_sum_over_a_shared_operand_and_the_batch(form: str) -> None:
    cu = torch.tensor([0, 3, 3, 10])
    params = numbers(("a", "b"), torch.float64, per_head=True)

    def rows(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    query, key, cu_q, cu_k = {
        "shared query": (rows(4, HEADS, 8), rows(10, HEADS, 8), None, cu),
        "shared key": (rows(10, HEADS, 8), rows(5, HEADS, 8), cu, None),
        "dense": (rows(3, 4, HEADS, 8), rows(3, 5, HEADS, 8), None, None),
    }[form]
    value = torch.randn_like(key)
    output = gdpa.varlen_attention(query, key, value, cu_q, cu_k, activation="a * silu(b * s)", params=params)
    weights = torch.randn_like(output)
    computed = torch.autograd.grad((output * weights).sum(), list(params.values()))

    total = torch.zeros((), dtype=torch.float64)
    row = 0
    for b in range(3):
        one_q = query[cu[b] : cu[b + 1]] if form == "shared key" else query[b] if form == "dense" else query
        one_k, one_v = (
            tensor[cu[b] : cu[b + 1]] if form == "shared query" else tensor[b] if form == "dense" else tensor
            for tensor in (key, value)
        )
        expected = definition(lambda s, a, b: a * silu(b * s), one_q, one_k, one_v, list(params.values()), False)
        part = weights[b] if form == "dense" else weights[row : row + len(expected)]
        row += len(expected)
        total = total + (expected * part).sum()
    torch.testing.assert_close(computed, torch.autograd.grad(total, list(params.values())))


def test_torch_compile_makes_one_graph() -> None:
    tensors = operands(torch.float32)
    params = numbers(("a", "b"), torch.float32, per_head=True)
    cu_q, cu_k = torch.tensor([0, 37]), torch.tensor([0, 41])

    def attention(query: Tensor, key: Tensor, value: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return gdpa.varlen_attention(
            query, key, value, cu_q, cu_k, activation="a * silu(b * s)", params={"a": a, "b": b}, enable_gqa=True
        )

    inputs = [*tensors, *params.values()]
    output = torch.compile(attention, fullgraph=True, backend="aot_eager")(*inputs)
    expected = attention(*inputs)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(torch.autograd.grad(output.sum(), inputs), torch.autograd.grad(expected.sum(), inputs))


def test_parameters_keep_their_type_under_autocast() -> None:
    tensors = operands(torch.float32)
    a = torch.tensor(1.001, requires_grad=True)  # bfloat16 would round it to 1
    cu_q, cu_k = torch.tensor([0, 37]), torch.tensor([0, 41])
    with torch.autocast("cpu", torch.bfloat16):
        output = gdpa.varlen_attention(
            *tensors, cu_q, cu_k, activation="1e3 * (a - 1) * s", params={"a": a}, enable_gqa=True
        )
    assert output.dtype == torch.bfloat16
    assert output.abs().max() > 0.1
    output.float().sum().backward()
    assert a.grad is not None
    assert a.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("message", "error", "activation", "params"),
    [
        ('has no parameter "c"', ValueError, "a * s", {"a": torch.ones(()), "c": torch.ones(())}),
        ("parameter c has no number", ValueError, "a * s + c", {"a": torch.ones(())}),
        ("is given twice", ValueError, "a * s with a = 2", {"a": torch.ones(())}),
        (r"parameter a: expected shape \(\) or \(4\)", ValueError, "a * s", {"a": torch.ones(3)}),
        (
            "parameter a: expected dtype float32 or float64, got int64",
            TypeError,
            "a * s",
            {"a": torch.ones(4, dtype=torch.int64)},
        ),
        ("expected device cpu", TypeError, "a * s", {"a": torch.ones(4, device="meta")}),
        ("at most 8 parameters", ValueError, "+".join("abcdfghij") + "+s", {c: torch.ones(()) for c in "abcdfghij"}),
    ],
)
def test_a_wrong_parameter_is_refused(
    message: str, error: type[Exception], activation: str, params: dict[str, Tensor]
) -> None:
    rows = torch.randn(5, HEADS, 8)
    with pytest.raises(error, match=message):
        gdpa.varlen_attention(rows, rows, rows, None, None, activation=activation, params=params)


def test_a_second_derivative_is_refused() -> None:
    rows = torch.randn(5, HEADS, 8, requires_grad=True)
    a = torch.ones((), requires_grad=True)
    output = gdpa.varlen_attention(rows, rows, rows, None, None, activation="a * gelu(s)", params={"a": a})
    (gradient,) = torch.autograd.grad(output.sum(), a, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        gradient.backward()


@pytest.mark.parametrize("batch", range(8))
def test_random_functions_with_learned_parameters_follow_the_definition(batch: int) -> None:
    seed = random.randrange(10**9)
    draw = random.Random(seed)
    for _ in range(25):
        text, g = random_function(draw)
        inside = re.sub(r"\bs\b", "(b * s + c)", text)
        per_head = [draw.random() < 0.5 for _ in range(3)]
        params = {
            name: (torch.randn(HEADS if each else (), dtype=torch.float64) + 1).requires_grad_()
            for name, each in zip("abc", per_head, strict=True)
        }
        lengths_q = [draw.choice([0, 1, draw.randint(2, 40)]) for _ in range(3)]
        lengths_k = [draw.choice([0, 1, draw.randint(2, 40)]) for _ in range(3)]
        cu_q, cu_k = (torch.tensor([0, *accumulate(lengths)]) for lengths in (lengths_q, lengths_k))
        causal = draw.random() < 0.5
        tensors = operands(torch.float64, sum(lengths_q), sum(lengths_k))
        output = gdpa.varlen_attention(
            *tensors, cu_q, cu_k, activation=f"a * ({inside})", params=params,
            window_size=(-1, 0 if causal else -1), enable_gqa=True,
        )  # fmt: skip
        query, key, value = tensors
        expected = torch.cat(
            [
                definition(
                    lambda s, a, b, c, g=g: a * g(b * s + c),  # type: ignore[misc]
                    query[cu_q[i] : cu_q[i + 1]],
                    key[cu_k[i] : cu_k[i + 1]],
                    value[cu_k[i] : cu_k[i + 1]],
                    list(params.values()),
                    causal,
                )
                for i in range(3)
            ]
        )
        grad_output = torch.randn_like(expected)
        inputs = [*tensors, *params.values()]
        for one, other in zip(
            [output, *torch.autograd.grad(output, inputs, grad_output)],
            [expected, *torch.autograd.grad(expected, inputs, grad_output)],
            strict=True,
        ):
            assert (one - other).norm() <= 1e-9 * (other.norm() + 0.1), f"seed {seed}: {text}, {params}"
