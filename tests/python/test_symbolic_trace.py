"""torch.fx.symbolic_trace records each function of gdpa and gdpa.compat as one call, however it was imported."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import gdpa
from gdpa.compat import generative_recommenders, hstu, hstu_attn, hstu_attn_interface, meta
from gdpa.compat.generative_recommenders import hstu_mha
from gdpa.compat.hstu import hstu_attn_varlen_func
from gdpa.compat.meta import generalized_dot_product_attention as meta_attention

MODULES = (gdpa.nn.functional, generative_recommenders, hstu, hstu_attn, hstu_attn_interface, meta)
FUNCTIONS = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in MODULES
    for name in module.__all__
    if inspect.isfunction(getattr(module, name)) and getattr(module, name) is not hstu.quantize_for_block_scale
} | {
    f"gdpa.{function.__name__}": function
    for function in (gdpa.varlen_attention, gdpa.varlen_attention_backward, gdpa.generalized_dot_product_attention)
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_a_call_with_proxies_is_one_node(function: Callable[..., Any]) -> None:
    """A function that ran during the trace would read shapes, which proxies do not have."""
    tracer = fx.Tracer()
    tracer.graph = fx.Graph(tracer_cls=fx.Tracer)
    required = [one.name for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    given = [tracer.create_proxy("placeholder", name, (), {}) for name in required]
    result = function(*given)
    assert isinstance(result, fx.Proxy)
    assert result.node.op == "call_function" and result.node.target is function
    assert len(tracer.graph.nodes) == len(given) + 1


def of_gdpa(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
    return gdpa.varlen_attention(q, key=k, value=v, cu_seq_q=cu, cu_seq_k=cu, activation="silu", window_size=(-1, 0))


def of_recommenders(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
    return hstu_mha(9, 0.25, q, k, v, cu)


def of_hstu(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
    return hstu_attn_varlen_func(q, k, v, cu, cu, None, None, 9, 9, -1, None, None, window_size=(-1, 0), alpha=0.25)


def of_meta(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
    return meta_attention(q, k, v, cu, cu, 9, 9, activation="gelu")


class Layer(torch.nn.Module):
    """A model that calls an attention function, and has operations before and after it."""

    def __init__(self, attention: Callable[..., Tensor]) -> None:
        super().__init__()
        self.attention = attention
        self.qkv = torch.nn.Linear(16, 3 * 16)

    def forward(self, rows: Tensor, cu: Tensor) -> Tensor:
        q, k, v = torch.chunk(self.qkv(rows).reshape(-1, 2, 24), 3, dim=-1)
        return self.attention(q, k, v, cu).flatten(1) + rows


@pytest.mark.parametrize("attention", [of_gdpa, of_recommenders, of_hstu, of_meta])
def test_a_traced_model_computes_the_same_for_every_batch(attention: Callable[..., Tensor]) -> None:
    model = Layer(attention)
    traced = fx.symbolic_trace(model)
    for offsets in ([0, 5, 12], [0, 9], [0, 0, 3]):
        rows, cu = torch.randn(offsets[-1], 16, requires_grad=True), torch.tensor(offsets, dtype=torch.int32)
        got, wanted = traced(rows, cu), model(rows, cu)
        torch.testing.assert_close(got, wanted)
        inputs = [rows, *model.parameters()]
        torch.testing.assert_close(
            torch.autograd.grad(got.square().sum(), inputs), torch.autograd.grad(wanted.square().sum(), inputs)
        )


def test_a_call_that_writes_gradients_is_not_removed_as_unused() -> None:
    def write(grad: Tensor, q: Tensor, cu: Tensor, into: Tensor) -> Tensor:
        gdpa.varlen_attention_backward(grad, q, q, q, cu, cu, grad_query=into)
        return into

    traced = fx.symbolic_trace(write)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    grad, q = torch.randn(2, 7, 2, 8).unbind()
    cu, into, wanted = torch.tensor([0, 7]), torch.full_like(q, torch.nan), torch.full_like(q, torch.nan)
    torch.testing.assert_close(traced(grad, q, cu, into), write(grad, q, cu, wanted))
