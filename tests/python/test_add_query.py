"""add_query=True gives attention plus the query, in values and gradients, in every layout."""

from __future__ import annotations

import pytest
import torch
from reference import offsets
from torch import Tensor
from torch.autograd import gradcheck

import gdpa

LENGTHS = [5, 0, 9, 1, 3]
TOKENS = sum(LENGTHS)


def operands(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=dtype, generator=generator, requires_grad=True) for shape in shapes]


def agree(call, query: Tensor, key: Tensor, value: Tensor) -> None:  # type: ignore[no-untyped-def]
    """call(query, key, value, add_query) has the results of the same call plus the query."""
    results = []
    for add_query in (True, False):
        output = call(query, key, value, add_query)
        output = output if add_query else output + query
        weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
        results.append([output, *torch.autograd.grad((output * weights).sum(), (query, key, value))])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("heads_k", [4, 2])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 1)])
@pytest.mark.parametrize("out_scale", [1.0, 0.0, "1/len_k"])
def test_jagged_rows(heads_k: int, window: tuple[int, int], out_scale: float | str) -> None:
    query, key, value = operands((TOKENS + 3, 4, 8), (TOKENS, heads_k, 8), (TOKENS, heads_k, 8))
    of_query = offsets(LENGTHS) + 2  # two rows before the first sequence, one after the last

    def call(q: Tensor, k: Tensor, v: Tensor, add_query: bool) -> Tensor:
        return gdpa.varlen_attention(
            q, k, v, of_query, offsets(LENGTHS), window_size=window, out_scale=out_scale, enable_gqa=heads_k != 4,
            add_query=add_query,
        )  # fmt: skip

    agree(call, query, key, value)


def test_shared_keys_and_sequences_with_gaps() -> None:
    query, key, value = operands((TOKENS + 6, 4, 8), (7, 4, 8), (7, 4, 8))
    gaps = torch.tensor([[12, 17], [0, 0], [1, 10], [19, 20], [21, 24]])

    def call(q: Tensor, k: Tensor, v: Tensor, add_query: bool) -> Tensor:
        return gdpa.varlen_attention(q, k, v, None, None, seq_offsets_q=gaps, activation="silu", add_query=add_query)

    agree(call, query, key, value)


def test_dense_batches() -> None:
    query, key, value = operands((2, 3, 4, 6, 8), (2, 3, 4, 5, 8), (2, 3, 4, 5, 8))

    def call(q: Tensor, k: Tensor, v: Tensor, add_query: bool) -> Tensor:
        return gdpa.generalized_dot_product_attention(q, k, v, is_causal=True, add_query=add_query)

    agree(call, query, key, value)


def test_gradients_are_derivatives() -> None:
    query, key, value = operands((4, 2, 3), (4, 2, 3), (4, 2, 3))
    cu = torch.tensor([0, 1, 4])
    assert gradcheck(lambda *qkv: gdpa.varlen_attention(*qkv, cu, cu, add_query=True), (query, key, value))


def test_the_query_is_rounded_once() -> None:
    query, key, value = (one.detach() for one in operands(*[(TOKENS, 4, 8)] * 3, dtype=torch.bfloat16))
    cu = offsets(LENGTHS)
    exact = gdpa.varlen_attention(query.double(), key.double(), value.double(), cu, cu) + query.double()
    added = gdpa.varlen_attention(query, key, value, cu, cu, add_query=True)
    separate = gdpa.varlen_attention(query, key, value, cu, cu) + query
    assert (added - exact).norm() < (separate - exact).norm()


def test_one_graph_and_autocast() -> None:
    query, key, value = operands(*[(TOKENS, 4, 8)] * 3, dtype=torch.float32)
    cu = offsets(LENGTHS)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return gdpa.varlen_attention(q, k, v, cu, cu, add_query=True)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(query, key, value), call(query, key, value))
    with torch.autocast("cpu", torch.bfloat16):
        assert call(query, key, value).dtype == torch.bfloat16


def test_impossible_calls_are_refused() -> None:
    rows, cu = torch.randn(TOKENS, 4, 8), offsets(LENGTHS)
    with pytest.raises(ValueError, match="add_query: expected value with the query's head_dim 8, got 6"):
        gdpa.varlen_attention(rows, rows, rows[..., :6], cu, cu, add_query=True)
    with pytest.raises(ValueError, match="add_query: expected queries of each batch entry, got one query for the"):
        gdpa.varlen_attention(rows[:3], rows, rows, None, cu, add_query=True)
