"""Results that are long sums, over a batch, heads, queries or keys, are as accurate on the CPU as PyTorch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gdpa


def attend(query: Tensor, key: Tensor, value: Tensor, function: Callable[[Tensor], Tensor] = F.gelu) -> Tensor:
    """Computes attention with PyTorch. Operands are (batch, length, heads, head_dim), or (length, heads, head_dim) if
    the batch shares them. The result is packed, (batch * length, heads, head_dim)."""
    q, k, v = (operand.transpose(-3, -2) for operand in (query, key, value))
    k, v = (operand.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for operand in (k, v))
    weights = function(q @ k.transpose(-1, -2) / query.shape[-1] ** 0.5)
    return (weights @ v).transpose(-3, -2).flatten(0, 1)


def gradients(call: Callable[..., Tensor], operands: list[Tensor], grad_output: Tensor) -> tuple[Tensor, ...]:
    leaves = [operand.detach().requires_grad_() for operand in operands]
    return torch.autograd.grad(call(*leaves), leaves, grad_output)


def error(result: Tensor, exact: Tensor) -> float:
    return ((result.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize(
    ("queries", "keys", "batch", "shared"),
    [
        (16, 100, 64, "query"),
        (16, 100, 500, "query"),
        (4, 20, 4000, "query"),
        (4, 6000, 3, "query"),
        (20, 16, 4000, "key"),
    ],
)
def test_sums_over_a_large_batch_lose_no_more_than_those_of_pytorch(
    queries: int, keys: int, batch: int, shared: str
) -> None:
    heads, head_dim = 2, 64
    torch.manual_seed(0)
    query_sizes = [queries] if shared == "query" else [batch, queries]
    key_sizes = [keys] if shared == "key" else [batch, keys]
    operands = [torch.randn(*sizes, heads, head_dim) for sizes in (query_sizes, key_sizes, key_sizes)]
    grad_output = torch.randn(batch * queries, heads, head_dim)
    cu_q = None if shared == "query" else torch.arange(batch + 1) * queries
    cu_k = None if shared == "key" else torch.arange(batch + 1) * keys

    def packed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (operand.flatten(0, 1) if operand.dim() == 4 else operand for operand in (query, key, value))
        return gdpa.varlen_attention(q, k, v, cu_q, cu_k)

    exact = gradients(attend, [operand.double() for operand in operands], grad_output.double())
    pytorch = gradients(attend, operands, grad_output)
    results = gradients(packed, operands, grad_output)
    for name, result, other, reference in zip(("dQ", "dK", "dV"), results, pytorch, exact, strict=True):
        assert error(result, reference) <= 1.5 * error(other, reference), name


@pytest.mark.parametrize(("length", "heads", "heads_k"), [(400, 32, 1), (3000, 2, 2)])
def test_sums_over_many_queries_and_heads_lose_no_more_than_those_of_pytorch(
    length: int, heads: int, heads_k: int
) -> None:
    head_dim = 64
    torch.manual_seed(0)
    operands = [torch.randn(1, length, count, head_dim) for count in (heads, heads_k, heads_k)]
    grad_output = torch.randn(length, heads, head_dim)
    cu_seqlens = torch.tensor([0, length])

    def packed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return gdpa.varlen_attention(query[0], key[0], value[0], cu_seqlens, cu_seqlens, enable_gqa=True)

    exact = gradients(attend, [operand.double() for operand in operands], grad_output.double())[1:]
    pytorch = gradients(attend, operands, grad_output)[1:]
    results = gradients(packed, operands, grad_output)[1:]
    for name, result, other, reference in zip(("dK", "dV"), results, pytorch, exact, strict=True):
        assert error(result, reference) <= 1.5 * error(other, reference), name


@pytest.mark.parametrize("keys", [4096, 16384])
@pytest.mark.parametrize(("activation", "function"), [("gelu", F.gelu), ("identity", torch.clone)])
def test_sums_over_many_keys_lose_no_more_than_those_of_pytorch(
    keys: int, activation: str, function: Callable[[Tensor], Tensor]
) -> None:
    queries, head_dim = 200, 64
    torch.manual_seed(0)
    operands = [torch.randn(1, length, 1, head_dim) for length in (queries, keys, keys)]
    grad_output = torch.randn(queries, 1, head_dim)

    def exact(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, function)

    def packed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        offsets = torch.tensor([0, queries]), torch.tensor([0, keys])
        return gdpa.varlen_attention(query[0], key[0], value[0], *offsets, activation=activation)

    def results(call: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        inputs = [operand.to(dtype) for operand in operands]
        return [call(*inputs), *gradients(call, inputs, grad_output.to(dtype))]

    references = results(exact, torch.float64)
    for name, result, other, reference in zip(
        ("O", "dQ", "dK", "dV"),
        results(packed, torch.float32),
        results(exact, torch.float32),
        references,
        strict=True,
    ):
        assert error(result, reference) <= 1.5 * error(other, reference), name
