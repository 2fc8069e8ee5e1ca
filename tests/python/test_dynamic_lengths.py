"""Compiled code with an out_scale of 1 / n, as in functions that divide by the longest length: one graph for all n."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager

import gdpa
from gdpa._library import Problem
from gdpa.compat import generative_recommenders, hstu, hstu_attn, hstu_attn_interface, meta

H, D = 2, 8
CU = torch.tensor([0, 5, 12], dtype=torch.int32)
TARGETS = torch.tensor([1, 2])
BIAS = torch.randn(2, H, 16, 16)
PAGES = {
    "kv_cache": torch.randn(4, 2, 16, H, D), "page_offsets": torch.tensor([0, 1, 2]), "page_ids": torch.tensor([0, 1]),
    "last_page_lens": torch.tensor([8, 9]),
}  # fmt: skip
CAUSAL = {"window_size": (-1, 0)}


def of_hstu(q: Tensor, n: int, scaling: int = -1, targets: Tensor | None = None, **options: Any) -> Tensor:
    return hstu.hstu_attn_varlen_func(q, q, q, CU, CU, None, None, n, n, scaling, None, targets, **(CAUSAL | options))


def dense(q: Tensor, n: int) -> Tensor:
    rows = q.view(2, 6, H, D).transpose(1, 2)
    return gdpa.generalized_dot_product_attention(rows, rows, rows, "silu", out_scale=1 / n)


FUNCTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "packed": lambda q, n: gdpa.varlen_attention(q, q, q, CU, CU, activation="silu", out_scale=1 / n),
    "shared query": lambda q, n: gdpa.varlen_attention(q[:3], q, q, None, CU, activation="silu", out_scale=1 / n),
    "dense": dense,
    "recommenders": lambda q, n: generative_recommenders.hstu_mha(n, 0.5, q, q, q, CU),
    "recommenders, targets": lambda q, n: generative_recommenders.hstu_mha(
        n, 0.5, q, q, q, CU, num_targets=TARGETS, max_attn_len=3
    ),
    "recommenders, delta": lambda q, n: generative_recommenders.delta_hstu_mha(n, 0.5, q[:4], q, q, CU),
    "hstu": of_hstu,
    "hstu, window": lambda q, n: of_hstu(q, n, window_size=(3, 0)),
    "hstu, scaling_seqlen": lambda q, n: of_hstu(q, 16, n),
    "hstu, targets": lambda q, n: of_hstu(q, n, targets=TARGETS),
    "hstu, bias": lambda q, n: of_hstu(q, n, alpha=0.5, rab=BIAS[:, :, :n, :n]),
    "hstu, intervals": lambda q, n: of_hstu(q, n, window_size=(-1, -1), func=torch.full((1, 9, 12), 5)),
    "hstu, pages": lambda q, n: of_hstu(q.detach(), n, **PAGES),
    "hstu_attn": lambda q, n: hstu_attn.hstu_attn_varlen_func(q, q, q, CU, CU, n, n, window_size=(-1, 0)),
    "hstu_attn_interface": lambda q, n: hstu_attn_interface.hstu_attn_varlen_func(q, q, q, CU, CU, n, n, **CAUSAL),
    "meta": lambda q, n: meta.generalized_dot_product_attention(q, q, q, CU, CU, n, n, qk_scale=1 / n),
    "fbgemm::hstu_varlen_fwd_90": lambda q, n: torch.ops.fbgemm.hstu_varlen_fwd_90(
        q, q, q, CU, CU, None, None, n, n, -1, None, None, 1, -1, 0, 0.5
    )[0],
    "hstu::hstu_mha": lambda q, n: torch.ops.hstu.hstu_mha(
        n, 0.5, q, q, q, CU, True, None, None, 0, 0, 0, None, None, None, False, False
    ),
}


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    for package in ("hstu", "hammer"):
        gdpa.compat.install(package)


@pytest.fixture(autouse=True)
def without_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counted:
    """A backend that counts the graphs. It runs them as they are, or divided into forward and backward."""

    def __init__(self, divides: bool = False) -> None:
        self.graphs = 0
        self.divides = divides

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        self.graphs += 1
        return aot_eager(graph, inputs) if self.divides else graph


def check(compiled: Callable[..., Tensor], function: Callable[..., Tensor], query: Tensor, n: Any) -> None:
    output, expected = compiled(query, n), function(query, n)
    torch.testing.assert_close(output, expected)
    if output.requires_grad:
        both = (torch.autograd.grad(one.square().sum(), query)[0] for one in (output, expected))
        torch.testing.assert_close(*both)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph_serves_every_length_after_the_first(name: str) -> None:
    backend, query = Counted(), torch.randn(12, H, D, requires_grad=True)
    compiled = torch.compile(FUNCTIONS[name], backend=backend, fullgraph=True)
    graphs = []
    for n in (16, 9, 7, 11, 13):
        check(compiled, FUNCTIONS[name], query, n)
        graphs.append(backend.graphs)
    assert graphs == [1, 2, 2, 2, 2], "the first number is a constant, and the second graph is for all others"


@pytest.mark.parametrize("name", ["packed", "hstu"])
def test_one_graph_serves_every_length_with_dynamic_shapes(name: str) -> None:
    backend, query = Counted(divides=True), torch.randn(12, H, D, requires_grad=True)
    compiled = torch.compile(FUNCTIONS[name], backend=backend, fullgraph=True, dynamic=True)
    graphs = []
    for n in (16, 9, 7):
        check(compiled, FUNCTIONS[name], query, n)
        graphs.append(backend.graphs)
    assert graphs == [graphs[0]] * 3


def test_one_graph_serves_every_marked_length() -> None:
    def function(query: Tensor, padded: Tensor) -> Tensor:
        return gdpa.varlen_attention(query, query, query, CU, CU, activation="silu", out_scale=1 / padded.shape[1])

    backend, query = Counted(), torch.randn(12, H, D, requires_grad=True)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for n in (16, 9, 7):
        padded = torch.empty(2, n)
        torch._dynamo.mark_dynamic(padded, 1)
        check(compiled, function, query, padded)
    assert backend.graphs == 1


def test_one_graph_serves_every_float() -> None:
    def function(query: Tensor, factor: float) -> Tensor:
        return gdpa.varlen_attention(query, query, query, CU, CU, activation="silu", out_scale=factor)

    backend, query = Counted(), torch.randn(12, H, D, requires_grad=True)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    graphs = []
    for factor in (0.5, 0.25, 0.7, 1.3):
        check(compiled, function, query, factor)
        graphs.append(backend.graphs)
    assert graphs == [1, 2, 2, 2]


def test_a_constant_stays_a_number_of_the_graph() -> None:
    def function(query: Tensor) -> Tensor:
        return gdpa.varlen_attention(query, query, query, CU, CU, activation="silu", out_scale=0.25)

    found = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        found.extend(Problem(*node.args) for node in graph.graph.nodes if "gdpa.forward" in str(node.target))
        return graph

    torch.compile(function, backend=backend, fullgraph=True)(torch.randn(12, H, D))
    (given,) = found
    assert (given.out_scale, given.out_scale_kind, given.out_scale_numbers) == (0.25, "number", None)


def test_an_exported_program_takes_every_length() -> None:
    class Module(torch.nn.Module):
        def forward(self, query: Tensor, padded: Tensor) -> Tensor:
            return gdpa.varlen_attention(query, query, query, CU, CU, activation="silu", out_scale=1 / padded.shape[1])

    query = torch.randn(12, H, D)
    shapes = {"query": None, "padded": {1: torch.export.Dim("n", min=2)}}
    program = torch.export.export(Module(), (query, torch.empty(2, 16)), dynamic_shapes=shapes).module()
    for n in (16, 9):
        torch.testing.assert_close(program(query, torch.empty(2, n)), Module()(query, torch.empty(2, n)))
