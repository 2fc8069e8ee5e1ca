"""torch.compile and torch.export: one graph, no recompilation when lengths or numbers change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pytest
import torch
import torch._dynamo
from reference import offsets
from torch import Tensor

import gdpa
from gdpa._attention import _torch_allows_tf32
from gdpa._text import names_of_reads

LENGTHS = [[3, 4], [5, 0], [1, 1], [40, 2], [0, 17]]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def swish(s: Tensor) -> Tensor:
    return s * torch.sigmoid(1.702 * s)


ACTIVATIONS: dict[str, dict[str, Any]] = {
    "name": {"activation": "silu"},
    "expression": {"activation": "s * sigmoid(1.702 * s)"},
    "function": {"activation": swish},
    "Activation": {"activation": gdpa.Activation(swish)},
    "parameters": {"activation": "s * sigmoid(b * s)", "params": {"b": 1.702}},
    "function with parameters": {"activation": lambda s, b: s * torch.sigmoid(b * s), "params": {"b": 1.702}},
}


@pytest.mark.parametrize("keywords", ACTIVATIONS.values(), ids=list(ACTIVATIONS))
def test_changing_lengths_do_not_recompile(keywords: dict[str, Any]) -> None:
    def loss(query: Tensor, key: Tensor, value: Tensor, cu: Tensor) -> Tensor:
        return gdpa.varlen_attention(2 * query, key, value, cu, cu, window_size=(-1, 0), **keywords).square().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for count, lengths in enumerate(LENGTHS):
        operands = [torch.randn(sum(lengths), 2, 8, requires_grad=True) for _ in range(3)]
        cu = offsets(lengths)
        with torch._dynamo.config.patch(error_on_recompile=count > 0):
            got = compiled(*operands, cu)
            gradients = torch.autograd.grad(got, operands)
        wanted = loss(*operands, cu)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(gradients, torch.autograd.grad(wanted, operands))


def activation_of(form: str, heads: int, table: Tensor, slope: Tensor) -> dict[str, Any]:
    """Keywords of a call whose function reads both tensors, made anew for each step."""

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.nn.functional.silu(slope * s + table[h, torch.clamp(i - j, 0, 7)])

    text = "silu(slope * s + table[head, clamp(q_idx - kv_idx, 0, 7)])"
    params = {"table": table, "slope": slope}
    return {
        "score_mod": {"activation": score},
        "params": {"activation": text, "params": params},
        "list": {"activation": [text, "slope * s"] * (heads // 2), "params": params},
    }[form]


@pytest.mark.parametrize("form", ["score_mod", "params", "list"])
def test_an_optimiser_step_compiles_nothing(form: str) -> None:
    """New numbers of the tensors, and another batch of the same shapes, use the graph of the first step."""
    table = torch.nn.Parameter(torch.zeros(4, 8))
    slope = torch.nn.Parameter(torch.ones(()))
    optimiser = torch.optim.SGD([table, slope], lr=1e-4)

    def loss(query: Tensor, key: Tensor, value: Tensor, cu: Tensor) -> Tensor:
        keywords = activation_of(form, 4, table, slope)
        return gdpa.varlen_attention(query, key, value, cu, cu, **keywords).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    for step in range(20):
        arguments = [*torch.randn(3, 12, 4, 8).unbind(), offsets([step % 5, 6, 6 - step % 5])]
        optimiser.zero_grad()
        got = compiled(*arguments)
        torch.testing.assert_close(got, loss(*arguments))
        got.backward()
        optimiser.step()
    assert table.grad is not None and slope.grad is not None
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert torch._dynamo.utils.counters["aot_autograd"]["total"] == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("ask", "arguments"), [(_torch_allows_tf32, ()), (names_of_reads, ("s * table[head]",))])
def test_what_only_the_host_can_answer_is_a_constant_of_the_graph(
    ask: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    compiled = torch.compile(lambda x: (x + 1, ask(*arguments)), fullgraph=True, backend="eager")
    assert compiled(torch.ones(2))[1] == ask(*arguments)


def test_the_default_backend_runs_it() -> None:
    def attend(query: Tensor, cu: Tensor) -> Tensor:
        return gdpa.varlen_attention(query + 1, query, query, cu, cu, activation=swish).relu()

    query, cu = torch.randn(7, 2, 8, requires_grad=True), offsets([3, 4])
    got = torch.compile(attend, fullgraph=True, dynamic=True)(query, cu)
    torch.testing.assert_close(got, attend(query, cu))
    torch.testing.assert_close(
        torch.autograd.grad(got.sum(), query), torch.autograd.grad(attend(query, cu).sum(), query)
    )


@pytest.mark.parametrize("shared", ["query", "key"])
def test_shared_operands_compile(shared: str) -> None:
    def attend(query: Tensor, key: Tensor, cu: Tensor) -> Tensor:
        cu_q, cu_k = (None, cu) if shared == "query" else (cu, None)
        return gdpa.varlen_attention(query, key, key, cu_q, cu_k, out_scale="1/len_k")

    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    for count, lengths in enumerate([[3, 4], [5, 6, 7], [2, 2, 2, 2]]):
        rows_q, rows_k = (4, sum(lengths)) if shared == "query" else (sum(lengths), 4)
        query, key = torch.randn(rows_q, 2, 8), torch.randn(rows_k, 2, 8)
        with torch._dynamo.config.patch(error_on_recompile=count > 0):
            got = compiled(query, key, offsets(lengths))
        torch.testing.assert_close(got, attend(query, key, offsets(lengths)))


def test_the_dense_function_compiles() -> None:
    def attend(query: Tensor, key: Tensor) -> Tensor:
        return gdpa.generalized_dot_product_attention(query, key, key, "relu2", is_causal=True)

    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    for count, (length_q, length_k) in enumerate([(5, 7), (6, 9), (30, 4)]):
        query, key = torch.randn(2, 3, length_q, 8), torch.randn(2, 3, length_k, 8)
        with torch._dynamo.config.patch(error_on_recompile=count > 0):
            got = compiled(query, key)
        torch.testing.assert_close(got, attend(query, key))
        assert got.stride() == attend(query, key).stride()


def test_an_error_keeps_its_type_and_its_words_in_compiled_code() -> None:
    def attend(query: Tensor, cu: Tensor) -> Tensor:
        return gdpa.varlen_attention(query, query, query, cu, cu)

    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    with pytest.raises(ValueError, match=r"^cu_seqlens_q: expected numbers that never fall, got 2 after 5"):
        compiled(torch.randn(7, 2, 8), torch.tensor([0, 5, 2]))


class Model(torch.nn.Module):
    def forward(self, query: Tensor, cu: Tensor) -> Tensor:
        return gdpa.varlen_attention(query, query, query, cu, cu, activation=swish)


def test_compiled_code_refuses_a_text_with_the_error_of_the_operator() -> None:
    compiled = torch.compile(gdpa.varlen_attention, fullgraph=True, backend="eager")
    query, cu = torch.randn(5, 2, 8), offsets([2, 3])
    with pytest.raises(ValueError, match=r"^activation: expected .* but the text ends"):
        compiled(query, query, query, cu, cu, activation="silu(a * s", params={"a": torch.ones(())})


def test_a_saved_program_keeps_the_names_of_the_tensors_of_the_function_and_of_the_mask() -> None:
    class Attend(torch.nn.Module):
        def forward(self, q: Tensor, cu: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
            mask, params = gdpa.mask.prefix(lengths), {"table": table}
            return gdpa.varlen_attention(
                q, q, q, cu, cu, activation="silu(s + table[kv_idx])", params=params, mask=mask
            )

    arguments = torch.randn(5, 2, 8), offsets([2, 3]), torch.randn(3), torch.tensor([1, 2])
    file = BytesIO()
    torch.export.save(torch.export.export(Attend(), arguments), file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(*arguments), Attend()(*arguments))


def test_an_exported_program_takes_other_lengths() -> None:
    total, batch = torch.export.Dim("total", min=2, max=1 << 20), torch.export.Dim("batch", min=2, max=1 << 10)
    program = torch.export.export(
        Model(), (torch.randn(7, 2, 8), offsets([3, 4])), dynamic_shapes=({0: total}, {0: batch})
    )
    assert any("gdpa.forward" in str(node.target) for node in program.graph.nodes)
    query, cu = torch.randn(23, 2, 8), offsets([3, 0, 20])
    torch.testing.assert_close(program.module()(query, cu), Model()(query, cu))
