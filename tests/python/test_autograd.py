"""Derivatives against finite differences in fp64, and autograd's requirements of an operator."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest
import torch
from reference import offsets
from torch import Tensor

import gdpa
from gdpa import _operators

KEYWORDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"window_size": (-1, 0)},
    "window": {"window_size": (1, 2)},
    "scales": {"scale": 0.7, "out_scale": "1/len_k"},
    "out_scale by sequence": {"out_scale": torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)},
    "expression": {"activation": "a * tanh(b * s)", "params": {"a": 2.0, "b": 0.5}},
    "function": {"activation": lambda s: s * torch.sigmoid(1.702 * s)},
}


def operands(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("keywords", KEYWORDS.values(), ids=list(KEYWORDS))
def test_gradients_agree_with_finite_differences(keywords: dict[str, Any]) -> None:
    cu_q, cu_k = offsets([2, 0, 3]), offsets([3, 1, 2])

    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        return gdpa.varlen_attention(*tensors, cu_q, cu_k, enable_gqa=True, **keywords)

    assert torch.autograd.gradcheck(attend, operands((5, 2, 4), (6, 1, 4), (6, 1, 3)))


@pytest.mark.parametrize("shared", ["query", "key"])
def test_the_gradient_of_a_shared_operand_is_summed(shared: str) -> None:
    cu_q, cu_k = (None, offsets([2, 0, 3])) if shared == "query" else (offsets([2, 0, 3]), None)

    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        return gdpa.varlen_attention(*tensors, cu_q, cu_k)

    rows_q, rows_k = (4, 5) if shared == "query" else (5, 4)
    assert torch.autograd.gradcheck(attend, operands((rows_q, 1, 4), (rows_k, 1, 4), (rows_k, 1, 3)))


def test_the_dense_function_differentiates_too() -> None:
    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        return gdpa.generalized_dot_product_attention(*tensors, "silu", is_causal=True)

    assert torch.autograd.gradcheck(attend, operands((2, 1, 3, 4), (2, 1, 2, 4), (2, 1, 2, 4)))


def test_one_operand_may_play_all_roles() -> None:
    (query,) = operands((5, 1, 4))
    cu = offsets([2, 3])
    assert torch.autograd.gradcheck(lambda q: gdpa.varlen_attention(q, q, q, cu, cu), [query])


@pytest.mark.parametrize("needed", range(3))
def test_only_what_requires_a_gradient_gets_one(needed: int) -> None:
    tensors = [torch.randn(5, 1, 4) for _ in range(3)]
    tensors[needed].requires_grad_()
    gdpa.varlen_attention(*tensors, offsets([5]), offsets([5])).sum().backward()
    assert [t.grad is not None for t in tensors] == [i == needed for i in range(3)]


def test_nothing_is_recorded_without_need() -> None:
    query = torch.randn(5, 1, 4, requires_grad=True)
    with torch.no_grad():
        assert not gdpa.varlen_attention(query, query, query, offsets([5]), offsets([5])).requires_grad
    with torch.inference_mode():
        assert gdpa.varlen_attention(query, query, query, offsets([5]), offsets([5])).is_inference()


def test_a_saved_operand_that_changed_is_noticed() -> None:
    query = torch.randn(5, 1, 4, requires_grad=True)
    key = torch.randn(5, 1, 4)
    output = gdpa.varlen_attention(query, key, key, offsets([5]), offsets([5]))
    key.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_activation_checkpointing_gives_the_same_gradients() -> None:
    query = torch.randn(5, 1, 4, requires_grad=True)
    cu = offsets([5])

    def attend(q: torch.Tensor) -> torch.Tensor:
        return gdpa.varlen_attention(q, q, q, cu, cu)

    output = torch.utils.checkpoint.checkpoint(attend, query, use_reentrant=False)
    (checkpointed,) = torch.autograd.grad(output.sum(), query)
    assert torch.equal(checkpointed, torch.autograd.grad(attend(query).sum(), query)[0])


def test_forward_mode_is_refused_rather_than_answered_with_zeros() -> None:
    query, cu = torch.randn(5, 1, 4), offsets([5])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(query, torch.ones_like(query))
        with pytest.raises(RuntimeError, match="jvp"):
            gdpa.varlen_attention(dual, query, query, cu, cu)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.func.grad(lambda q: f(q).sum())(x),
        lambda f, x: torch.func.vjp(f, x),
        lambda f, x: torch.func.jvp(f, (x,), (x,)),
        lambda f, x: torch.func.jacrev(f)(x),
        lambda f, x: torch.func.vmap(torch.func.grad(lambda q: f(q).sum()))(x[None]),
        lambda f, x: torch.func.grad(lambda q: torch.func.vmap(f)(q).sum())(x[None]),
    ],
    ids=["grad", "vjp", "jvp", "jacrev", "vmap of grad", "grad of vmap"],
)
def test_the_derivatives_of_torch_func_are_refused_in_words(transform: Any) -> None:
    cu = offsets([5])
    with pytest.raises(NotImplementedError, match=r"gdpa: expected a gradient of torch\.autograd, got a transform"):
        transform(lambda q: gdpa.varlen_attention(q, q, q, cu, cu), torch.randn(5, 1, 4))


def test_a_batch_of_gradients_is_refused_in_words() -> None:
    query = torch.randn(2, 1, 5, 4, requires_grad=True)
    output = gdpa.generalized_dot_product_attention(query, query, query)
    with pytest.raises(NotImplementedError, match="expected one gradient of the output, got a batch of them"):
        torch.autograd.grad(output, query, torch.randn(3, *output.shape), is_grads_batched=True)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_jit_trace_needs_operands_without_gradient() -> None:
    query = torch.randn(2, 1, 5, 4, requires_grad=True)
    attend = gdpa.generalized_dot_product_attention
    with pytest.raises(NotImplementedError, match=r"trace under torch.no_grad\(\)"):
        torch.jit.trace(lambda q: attend(q, q, q), (query,))
    with torch.no_grad():
        traced = torch.jit.trace(lambda q: attend(q, q, q), (query,))
        torch.testing.assert_close(traced(query), attend(query, query, query))


class Noted(Tensor):
    """A subclass that notes the functions it is given to."""

    functions: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.functions.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_of_tensor_sees_the_operator_while_gradients_are_recorded() -> None:
    query = torch.randn(7, 2, 8).as_subclass(Noted).requires_grad_()
    cu = torch.tensor([0, 3, 7])
    output = gdpa.varlen_attention(query, query, query, cu, cu)
    assert torch.ops.gdpa.forward.default in Noted.functions
    assert isinstance(output, Noted)
    (gradient,) = torch.autograd.grad(output.sum(), query)
    plain = query.detach().as_subclass(Tensor).requires_grad_()
    expected = gdpa.varlen_attention(plain, plain, plain, cu, cu)
    assert torch.equal(output.as_subclass(Tensor), expected)
    assert torch.equal(gradient.as_subclass(Tensor), torch.autograd.grad(expected.sum(), plain)[0])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_of_a_recorded_call_is_the_calls_one_by_one() -> None:
    queries, cu = torch.randn(3, 7, 2, 8, requires_grad=True), torch.tensor([0, 3, 7])

    def attend(query: Tensor) -> Tensor:
        return gdpa.varlen_attention(query, query, query, cu, cu)

    together = torch.func.vmap(attend)(queries)
    one_by_one = torch.stack([attend(query) for query in queries])
    assert torch.equal(together, one_by_one)
    gradients = [torch.autograd.grad(output.square().sum(), queries)[0] for output in (together, one_by_one)]
    torch.testing.assert_close(*gradients)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_over_an_empty_dimension_is_empty() -> None:
    queries = torch.randn(2, 0, 5, 3, 8, requires_grad=True)

    def attend(query: Tensor) -> Tensor:
        return gdpa.generalized_dot_product_attention(query[None], query[None], query[None, ..., :4], "silu")[0]

    together = torch.func.vmap(attend, in_dims=1, out_dims=1)(queries)
    assert together.shape == (2, 0, 5, 3, 4)
    (gradient,) = torch.autograd.grad(together.sum(), queries)
    assert gradient.shape == queries.shape


def test_vmap_takes_its_axis_of_each_operand() -> None:
    """Each operand and tensor of the call has its batch on another axis, or none."""
    query, key = torch.randn(7, 3, 2, 8, requires_grad=True), torch.randn(7, 2, 3, 8, requires_grad=True)
    value, bias = torch.randn(7, 2, 8, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    offsets = torch.tensor([[0, 3, 7], [0, 5, 7], [0, 1, 7]])

    def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, cu: Tensor) -> Tensor:
        return gdpa.varlen_attention(query, key, value, cu, cu, activation="s + bias[head]", params={"bias": bias})

    together = torch.func.vmap(attend, in_dims=(1, 2, None, 1, 0), out_dims=2)(query, key, value, bias, offsets)
    one_by_one = [attend(query[:, n], key[:, :, n], value, bias[:, n], offsets[n]) for n in range(3)]
    torch.testing.assert_close(together, torch.stack(one_by_one, 2))
    leaves = (query, key, value, bias)
    gradients = [torch.autograd.grad(output.square().sum(), leaves) for output in (together, torch.stack(one_by_one))]
    torch.testing.assert_close(*gradients)


ALL_WANTED = [wanted for wanted in itertools.product((False, True), repeat=3) if any(wanted)]
NAMES = ("query", "key", "value")


def ids_of(wanted: tuple[bool, ...]) -> str:
    return "+".join(name for name, is_wanted in zip(NAMES, wanted, strict=True) if is_wanted)


@pytest.mark.parametrize("shared", ["neither", "query", "key"])
@pytest.mark.parametrize("wanted", ALL_WANTED, ids=ids_of)
def test_each_choice_of_gradients_agrees_with_autograd_of_plain_pytorch(wanted: tuple[bool, ...], shared: str) -> None:
    batch, length_q, length_k = 2, 5, 7
    shape_q = (length_q, 4, 8) if shared == "query" else (batch, length_q, 4, 8)
    shape_k = (length_k, 2, 8) if shared == "key" else (batch, length_k, 2, 8)
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in (shape_q, shape_k, shape_k)]
    for tensor, is_wanted in zip(tensors, wanted, strict=True):
        tensor.requires_grad_(is_wanted)
    output = gdpa.varlen_attention(*tensors, None, None, activation="silu", scale=0.3, enable_gqa=True)
    output = output.reshape(batch, length_q, 4, 8)
    query, key, value = tensors
    repeated = [operand.repeat_interleave(2, dim=-2).expand(batch, -1, -1, -1) for operand in (key, value)]
    scores = 0.3 * torch.einsum("bqhd,bkhd->bhqk", query.expand(batch, -1, -1, -1), repeated[0])
    expected = torch.einsum("bhqk,bkhd->bqhd", torch.nn.functional.silu(scores), repeated[1])
    grad_output = torch.randn_like(expected)
    inputs = [tensor for tensor in tensors if tensor.requires_grad]
    torch.testing.assert_close(
        torch.autograd.grad(output, inputs, grad_output), torch.autograd.grad(expected, inputs, grad_output)
    )


@pytest.mark.parametrize("wanted", ALL_WANTED, ids=ids_of)
def test_a_gradient_that_no_input_needs_is_none_and_has_no_memory(
    wanted: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[tuple[torch.Tensor, ...]] = []

    def recorded(*arguments: Any) -> tuple[torch.Tensor, ...]:
        computed.append(torch.ops.gdpa.backward.default(*arguments))
        return computed[-1]

    monkeypatch.setattr("gdpa._operators.backward", recorded)
    tensors = [torch.randn(2, 5, 1, 8).requires_grad_(is_wanted) for is_wanted in wanted]
    gdpa.varlen_attention(*tensors, None, None).sum().backward()
    assert [tensor.grad is not None for tensor in tensors] == list(wanted)
    assert [gradient.numel() > 0 for gradient in computed[0]] == [*wanted, False, False]


@pytest.mark.parametrize("wanted", ALL_WANTED, ids=ids_of)
def test_the_compilation_of_backward_ahead_gets_the_gradients_that_the_inputs_need(
    wanted: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[tuple[bool, ...]]] = []
    monkeypatch.setattr(_operators, "Warmup", lambda problems, options, choices: started.append(choices))
    monkeypatch.setattr(_operators, "_prefetched", set())
    # Only calls on a GPU compile ahead. No GPU is needed to see the arguments of the compilation.
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for choice in ((True, True, True), wanted, wanted):
        tensors = [torch.randn(2, 5, 1, 8).requires_grad_(is_wanted) for is_wanted in choice]
        gdpa.varlen_attention(*tensors, None, None)
    assert started == [[(*choice, 0, False)] for choice in dict.fromkeys([(True, True, True), wanted])]


def test_the_list_of_compilations_ahead_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_operators, "_prefetched", set())
    monkeypatch.setattr(_operators, "_MOST_PREFETCHED", 3)
    tensors = [torch.randn(2, 5, 1, 8, requires_grad=True) for _ in range(3)]
    for number in range(8):
        gdpa.varlen_attention(*tensors, None, None, activation=f"s + {number}")
        assert len(_operators._prefetched) == number % 3 + 1
