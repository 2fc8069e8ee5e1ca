"""Norms with gate and residual, and attention between norms, against operations of PyTorch in values and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from nn_twins import pad, unpad
from reference import offsets
from torch import Tensor

import gdpa
from gdpa.nn import functional

ROWS, COLUMNS = 11, 24


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def results(call, *inputs: Tensor) -> list[Tensor]:  # type: ignore[no-untyped-def]
    output = call(*inputs)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return [output, *torch.autograd.grad((output * weights).sum(), inputs)]


@pytest.mark.parametrize("heads", [0, 3])
@pytest.mark.parametrize("has", ["", "w", "wb", "wbg", "wr", "gr", "wbgr"])
@pytest.mark.parametrize("is_layer", [True, False])
def test_a_norm_is_the_same_computation_in_pytorch(is_layer: bool, has: str, heads: int) -> None:
    has = has if is_layer else has.replace("b", "")
    x = randn(ROWS, COLUMNS)
    others = {
        "w": randn(COLUMNS, seed=1), "b": randn(COLUMNS, seed=2),
        "g": randn(ROWS, heads, COLUMNS // heads, seed=3) if heads else randn(ROWS, COLUMNS, seed=3),
        "r": randn(ROWS, COLUMNS, seed=4),
    }  # fmt: skip
    names = list(has)

    def ours(x: Tensor, *rest: Tensor) -> Tensor:
        given = dict(zip(names, rest, strict=True))
        keywords = {"gate": given.get("g"), "residual": given.get("r")}
        if is_layer:
            return functional.layer_norm(x, given.get("w"), given.get("b"), 1e-3, **keywords)
        return functional.rms_norm(x, given.get("w"), 1e-3, **keywords)

    def plain(x: Tensor, *rest: Tensor) -> Tensor:
        given = dict(zip(names, rest, strict=True))
        shape, weight = (COLUMNS,), given.get("w")
        y = F.layer_norm(x, shape, weight, given.get("b"), 1e-3) if is_layer else F.rms_norm(x, shape, weight, 1e-3)
        y = y * given["g"].reshape(x.shape) if "g" in given else y
        return y + given["r"] if "r" in given else y

    inputs = (x, *(others[name] for name in names))
    torch.testing.assert_close(results(ours, *inputs), results(plain, *inputs))


def test_leading_dimensions_strided_gates_and_mixed_dtypes() -> None:
    x, fused = randn(2, 3, COLUMNS, dtype=torch.bfloat16), randn(2, 3, 4, 2, 6, dtype=torch.bfloat16)
    weight, bias = randn(COLUMNS, seed=1, dtype=torch.float32), randn(COLUMNS, seed=2, dtype=torch.float32)
    y = functional.layer_norm(x, weight, bias, gate=fused[..., 1, :])
    assert y.dtype == torch.bfloat16 and y.shape == x.shape
    exact = F.layer_norm(x.double(), (COLUMNS,), weight.double(), bias.double())
    torch.testing.assert_close(y.double(), exact * fused[..., 1, :].double().flatten(-2), rtol=1e-2, atol=1e-2)
    y.sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    assert fused.grad is not None and fused.grad[..., 0, :].abs().max() == 0 < fused.grad[..., 1, :].abs().max()


def test_the_operators_follow_the_rules_of_pytorch() -> None:
    vectors = randn(COLUMNS, seed=1), randn(COLUMNS, seed=2)
    rows = randn(ROWS, 3, 8, seed=3), randn(ROWS, COLUMNS, seed=4)
    torch.library.opcheck(torch.ops.gdpa.norm.default, (randn(ROWS, COLUMNS), *vectors, *rows, True, 1e-5))


def test_one_graph_with_dynamic_rows() -> None:
    def call(x: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        return functional.layer_norm(x, weight, None, gate=gate)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 5, 9):
        inputs = randn(rows, COLUMNS), randn(COLUMNS, seed=1), randn(rows, 3, 8, seed=2)
        torch.testing.assert_close(results(compiled, *inputs), results(call, *inputs))


def test_wrong_shapes_are_refused() -> None:
    x = randn(ROWS, COLUMNS)
    with pytest.raises(ValueError, match=r"weight: expected shape \(24,\)"):
        functional.layer_norm(x, randn(COLUMNS - 1))
    with pytest.raises(ValueError, match=r"residual: expected shape \(11, 24\), the shape of x, got \(10, 24\)"):
        functional.rms_norm(x, residual=x[1:])


@pytest.mark.parametrize("parts", ["qor", "qo", "or", "q", "r", ""])
def test_attention_between_norms(parts: str) -> None:
    """Q' = LayerNorm(Q), T = attention + Q', Y = RMSNorm(T) + residual, on a padded batch."""
    lengths, heads, width = [5, 0, 3, 1], 3, 8
    query, key, value = randn(9, COLUMNS), randn(4, 6, heads, width, seed=1), randn(4, 6, heads, width, seed=2)
    weight, bias, of_output = randn(COLUMNS, seed=3), randn(COLUMNS, seed=4), randn(COLUMNS, seed=5)
    given = [("qw", weight), ("qb", bias), ("o", of_output), ("r", randn(9, COLUMNS, seed=6))]
    given = [(name, one) for name, one in given if name[0] in parts]
    inputs = (query, key, value, *(one for _, one in given))

    def named(rest: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return dict(zip((name for name, _ in given), rest, strict=True))

    def ours(query: Tensor, key: Tensor, value: Tensor, *rest: Tensor) -> Tensor:
        of = named(rest)
        return functional.normed_attention(
            query, key, value, offsets(lengths), None, query_norm=(of["qw"], of["qb"]) if "qw" in of else None,
            output_norm=of.get("o"), residual=of.get("r"), activation="silu", out_scale=0.7, eps=1e-3,
        )  # fmt: skip

    def plain(query: Tensor, key: Tensor, value: Tensor, *rest: Tensor) -> Tensor:
        of = named(rest)
        rows = F.layer_norm(query, (COLUMNS,), of["qw"], of["qb"], 1e-3) if "qw" in of else query
        padded = pad(rows, lengths).unflatten(-1, (heads, width))
        scores = torch.einsum("bihd,bjhd->bhij", padded, key) * width**-0.5
        attended = torch.einsum("bhij,bjhd->bihd", F.silu(scores) * 0.7, value)
        t = unpad((attended + padded).flatten(2), lengths)
        y = F.rms_norm(t, (COLUMNS,), of["o"], 1e-3) if "o" in of else t
        return y + of["r"] if "r" in of else y

    torch.testing.assert_close(results(ours, *inputs), results(plain, *inputs))


def test_attention_between_norms_takes_rows_with_heads() -> None:
    query, cu = torch.randn(9, 3, 8), torch.tensor([0, 4, 9])
    y = functional.normed_attention(query, query, query, cu, cu, output_norm=torch.ones(24))
    flat = functional.normed_attention(query.flatten(1), query, query, cu, cu, output_norm=torch.ones(24))
    assert y.shape == query.shape
    torch.testing.assert_close(y.flatten(1), flat)
    assert gdpa.nn.functional is functional
