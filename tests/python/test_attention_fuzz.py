"""Both functions against the definition in fp64, over problems that hypothesis makes of every option."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_function import random_function, random_scale
from reference import FUNCTIONS, Problem, assert_within_promise, offsets
from sampling import examples
from torch import Tensor

import gdpa

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
HEAD_DIMS = st.sampled_from([1, 8, 16, 24, 33, 64, 128])
LENGTHS = st.one_of(st.integers(0, 3), st.integers(0, 70), st.sampled_from([63, 64, 65, 127, 128, 129]))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, dict[str, Any]]:
    """A problem of packed operands, and the keywords that only the call under test has."""
    batch = draw(st.integers(1, 4))
    form = draw(st.sampled_from(["jagged", "shared query", "shared key"]))
    shared_q, shared_k = form == "shared query", form == "shared key"
    lengths_q = [draw(LENGTHS)] * batch if shared_q else [draw(LENGTHS) for _ in range(batch)]
    lengths_k = [draw(LENGTHS)] * batch if shared_k else [draw(LENGTHS) for _ in range(batch)]
    if form == "jagged" and draw(st.booleans()):
        lengths_k = lengths_q
    spare = draw(st.sampled_from([0, 0, 3]))
    heads_k = draw(st.integers(1, 2))
    heads_q = heads_k * draw(st.integers(1, 3))
    head_dim, head_dim_v = draw(HEAD_DIMS), draw(HEAD_DIMS)
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(rows: int, heads: int, width: int) -> Tensor:
        return torch.randn(rows, heads, width, generator=generator, dtype=torch.float64).to(dtype)

    rows_q = lengths_q[0] if shared_q else sum(lengths_q) + spare
    rows_k = lengths_k[0] if shared_k else sum(lengths_k) + spare
    window = st.one_of(st.just(-1), st.integers(0, 80), st.integers(0, sys.maxsize))
    out_scales = st.sampled_from([1.0, 0.37, "1/len_q", "1/len_k", torch.rand(batch, generator=generator)])
    problem = Problem(
        normal(rows_q, heads_q, head_dim),
        normal(rows_k, heads_k, head_dim),
        normal(rows_k, heads_k, head_dim_v),
        lengths_q,
        lengths_k,
        shared_q,
        shared_k,
        activation=draw(st.sampled_from(list(FUNCTIONS))),
        scale=draw(st.sampled_from([None, 0.2, -0.5])),
        out_scale=draw(out_scales),
        window=(draw(window), draw(window)),
    )
    keywords = {
        "accuracy": draw(st.sampled_from(["fast", "exact"])),
        "deterministic": draw(st.booleans()),
        "offsets_dtype": draw(st.sampled_from([torch.int32, torch.int64])),
    }
    return problem, keywords


def varlen_results(
    problem: Problem, weights: Tensor | None, offsets_dtype: torch.dtype, **keywords: Any
) -> list[Tensor]:
    operands = [t.detach().requires_grad_() for t in (problem.query, problem.key, problem.value)]
    output = gdpa.varlen_attention(
        *operands,
        None if problem.shared_q else offsets(problem.lengths_q, offsets_dtype),
        None if problem.shared_k else offsets(problem.lengths_k, offsets_dtype),
        activation=problem.activation,
        scale=problem.scale,
        out_scale=problem.out_scale,
        window_size=problem.window,
        enable_gqa=True,
        **keywords,
    )
    return [output.detach(), *torch.autograd.grad(output, operands, weights)]


@settings(max_examples=examples(250))
@given(problems())
def test_varlen_attention_keeps_its_promise(drawn: tuple[Problem, dict[str, Any]]) -> None:
    problem, keywords = drawn
    rows = problem.query.shape[0] * (len(problem.lengths_q) if problem.shared_q else 1)
    weights = torch.randn(rows, problem.query.shape[1], problem.value.shape[-1]).to(problem.query.dtype)
    assert_within_promise(varlen_results(problem, weights, **keywords), problem, weights)


@settings(max_examples=examples(100))
@given(problems(), st.integers(0, 2**32))
def test_random_functions_and_scales_keep_the_promise(drawn: tuple[Problem, dict[str, Any]], seed: int) -> None:
    problem, keywords = drawn
    draw = random.Random(seed)
    text, function = random_function(draw)
    problem = replace(problem, activation=text, function=function, scale=random_scale(draw, problem.query.shape[-1]))
    rows = problem.query.shape[0] * (len(problem.lengths_q) if problem.shared_q else 1)
    weights = torch.randn(rows, problem.query.shape[1], problem.value.shape[-1]).to(problem.query.dtype)
    assert_within_promise(varlen_results(problem, weights, **keywords), problem, weights)


@settings(max_examples=examples(60))
@given(problems(), st.booleans())
def test_dense_attention_keeps_its_promise(drawn: tuple[Problem, dict[str, Any]], is_causal: bool) -> None:
    problem, keywords = drawn
    batch, length_q, length_k = 2, problem.lengths_q[0], problem.lengths_k[0]
    generator = torch.Generator().manual_seed(length_q)

    def normal(length: int, like: Tensor) -> Tensor:
        shape = (batch, like.shape[1], length, like.shape[2])
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(like.dtype).requires_grad_()

    def packed(dense: Tensor) -> Tensor:
        return dense.transpose(1, 2).flatten(0, 1)

    operands = normal(length_q, problem.query), normal(length_k, problem.key), normal(length_k, problem.value)
    out_scale = problem.out_scale[:1].repeat(2) if isinstance(problem.out_scale, Tensor) else problem.out_scale
    window = (-1, -1) if is_causal else problem.window
    output = gdpa.generalized_dot_product_attention(
        *operands,
        problem.activation,
        is_causal=is_causal,
        scale=problem.scale,
        out_scale=out_scale,
        window_size=window,
        enable_gqa=True,
        accuracy=keywords["accuracy"],
    )
    weights = torch.randn(output.shape, dtype=torch.float64).to(output.dtype)
    gradients = torch.autograd.grad(output, operands, weights)
    same = replace(
        problem,
        query=packed(operands[0]),
        key=packed(operands[1]),
        value=packed(operands[2]),
        lengths_q=[length_q] * batch,
        lengths_k=[length_k] * batch,
        shared_q=False,
        shared_k=False,
        out_scale=out_scale,
        window=(-1, 0) if is_causal else window,
        upper_left=is_causal,
    )
    assert_within_promise([packed(t.detach()) for t in (output, *gradients)], same, packed(weights))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_calls_give_equal_bits(dtype: torch.dtype) -> None:
    lengths = [200, 0, 1, 333]
    query, key, value = (torch.randn(534, 2, 32).to(dtype) for _ in range(3))
    problem = Problem(query, key, value, lengths, lengths, activation="silu", window=(-1, 0))
    weights = torch.randn(534, 2, 32).to(dtype)
    first = varlen_results(problem, weights, torch.int32)
    for _ in range(3):
        for one, other in zip(first, varlen_results(problem, weights, torch.int32), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_no_nan_or_infinity_crosses_to_another_sequence(poison: float) -> None:
    lengths = [5, 7, 9]
    clean = [torch.randn(21, 2, 16) for _ in range(4)]
    poisoned = [t.clone() for t in clean]
    for tensor in poisoned:
        tensor[5:12] = poison
    wanted, got = (
        varlen_results(Problem(q, k, v, lengths, lengths), weights, torch.int32)
        for q, k, v, weights in (clean, poisoned)
    )
    others = torch.tensor([i for i in range(21) if not 5 <= i < 12])
    for one, other in zip(wanted, got, strict=True):
        assert torch.equal(one[others], other[others])


def test_the_number_of_threads_is_torchs() -> None:
    query = torch.randn(40, 2, 16)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = gdpa.varlen_attention(query, query, query, offsets([40]), offsets([40]))
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(one, gdpa.varlen_attention(query, query, query, offsets([40]), offsets([40])))
