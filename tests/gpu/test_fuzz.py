"""Random problems over every option, forward and backward, compared with the definition in fp64.

The results contain NaN before a call. One test has one kernel configuration (types, head dims, function) and many
problems, so that its kernels are compiled once. GDPA_GPU_PROBLEMS sets the number of problems of each test.
GDPA_DRAWN_FUNCTIONS sets the number of random functions, and GDPA_FUNCTION_SEED selects them. Each test records the
number of problems with each option.
"""

from __future__ import annotations

import collections
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from random_function import Expression, random_function, random_scale
from reference import SHARE, Problem, assert_within_promise, offsets
from torch import Tensor

import gdpa

PROBLEMS = int(os.environ.get("GDPA_GPU_PROBLEMS", "50"))

Record = Callable[[str, object], None]

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SPECIAL = "s * sigmoid(1.702 * s)"
CONFIGURATIONS = [
    *[(BF16, d, d, "gelu") for d in (8, 32, 64, 96, 128, 192, 256)],
    *[(BF16, 128, 128, f) for f in ("relu", "silu", "gelu_tanh", "sigmoid", "softplus", SPECIAL)],
    *[(BF16, *dims, "silu") for dims in ((64, 128), (128, 64), (40, 72), (192, 128), (8, 256), (256, 16), (88, 136))],
    *[(FP16, d, d, "gelu") for d in (16, 64, 128, 256)],
    *[(FP16, 128, 128, f) for f in ("relu2", "hardswish", "tanh", "leaky_relu")],
    *[(FP16, *dims, "sigmoid") for dims in ((128, 96), (24, 200))],
    *[(FP32, d, d, "gelu") for d in (8, 64, 128, 256)],
    *[(FP32, *dims, "silu") for dims in ((64, 64), (48, 104), (160, 32))],
    *[(FP32, 64, 64, f) for f in ("identity", "sigmoid", SPECIAL)],
]


def any_length(draw: random.Random) -> int:
    return draw.choice([0, 1, draw.randint(0, 70), draw.randint(0, 300), draw.choice([63, 64, 65, 127, 128, 129, 256])])


class Case:
    """One problem, its call, and the gradient of its output."""

    def __init__(
        self,
        draw: random.Random,
        dtype: torch.dtype,
        head_dim: int,
        head_dim_v: int,
        activation: str | Expression,
        lengths: list[int] | None = None,
    ) -> None:
        """Both sides have the given `lengths`. Without `lengths`, the lengths and the form of the operands are random.

        The scale is also random if the activation is a random expression.
        """
        activation, function = (activation, None) if isinstance(activation, str) else activation
        batch = draw.randint(1, 5) if lengths is None else len(lengths)
        form = draw.choice(["jagged", "jagged", "shared query", "shared key", "dense"])
        form = form if lengths is None else "jagged"
        shared_q, shared_k = form == "shared query", form == "shared key"
        one_length = shared_q or form == "dense", shared_k or form == "dense"
        lengths_q = [any_length(draw)] * batch if one_length[0] else [any_length(draw) for _ in range(batch)]
        lengths_k = [any_length(draw)] * batch if one_length[1] else [any_length(draw) for _ in range(batch)]
        if form == "jagged" and draw.random() < 0.4:
            lengths_k = lengths_q
        if lengths is not None:
            lengths_q, lengths_k = lengths, draw.sample(lengths, len(lengths))
        spare = draw.choice([0, 0, 3]) if form != "dense" else 0
        heads_k = draw.randint(1, 2)
        heads_q = heads_k * draw.randint(1, 3)
        rows_q = lengths_q[0] if shared_q else sum(lengths_q) + spare
        rows_k = lengths_k[0] if shared_k else sum(lengths_k) + spare
        self.dense = form == "dense"
        self.offsets_dtype = draw.choice([torch.int32, torch.int64])
        # Views of wider tensors: a row may begin at any element, as in a fused projection.
        margin = draw.choice([0, 0, 8, 3])

        def operand(rows: int, heads: int, width: int) -> Tensor:
            return torch.randn(rows, heads, width + margin).to(dtype)[..., margin:]

        self.problem = Problem(
            operand(rows_q, heads_q, head_dim),
            operand(rows_k, heads_k, head_dim),
            operand(rows_k, heads_k, head_dim_v),
            lengths_q,
            lengths_k,
            shared_q,
            shared_k,
            activation=activation,
            function=function,
            scale=random_scale(draw, head_dim) if function else draw.choice([None, None, 0.2, -0.5]),
            out_scale=draw.choice([1.0, 0.37, "1/len_q", "1/len_k", torch.rand(batch)]),
            window=draw.choice(
                [
                    (-1, -1),
                    (-1, -1),
                    (-1, 0),
                    (draw.randint(0, 80), draw.randint(0, 80)),
                    (20, -1),
                    (sys.maxsize, 0),
                    (draw.randint(0, 80), sys.maxsize - draw.randint(0, 80)),
                ]
            ),
        )
        self.keywords = {"accuracy": draw.choice(["fast", "exact"]), "deterministic": draw.random() < 0.4}
        # The promise for fast functions is for many scores. Only calls that are not deterministic count their scores.
        scores = heads_q * sum(q * k for q, k in zip(lengths_q, lengths_k, strict=True))
        if self.keywords["deterministic"] and scores <= 4096:
            self.keywords["accuracy"] = "exact"
        self.weights = torch.randn(rows_q * (batch if shared_q else 1), heads_q, head_dim_v).to(dtype)

    def options(self) -> Iterator[str]:
        """Yields the names of the options of this problem."""
        problem = self.problem
        drawn = {
            "dense": self.dense,
            "query shared": problem.shared_q,
            "key shared": problem.shared_k,
            "offsets of 64 bits": self.offsets_dtype == torch.int64,
            "grouped heads": problem.query.shape[1] > problem.key.shape[1],
            "window": problem.window != (-1, -1),
            "scale given": problem.scale is not None,
            "out_scale 1/len_q": isinstance(problem.out_scale, str) and problem.out_scale == "1/len_q",
            "out_scale 1/len_k": isinstance(problem.out_scale, str) and problem.out_scale == "1/len_k",
            "out_scale of each entry": isinstance(problem.out_scale, Tensor),
            "views of wider rows": not problem.query.is_contiguous(),
            "an entry without rows": 0 in problem.lengths_q or 0 in problem.lengths_k,
            "2048 rows or more": max(*problem.lengths_q, *problem.lengths_k) >= 2048,
            "a hundred entries or more": len(problem.lengths_q) >= 100,
            "deterministic": self.keywords["deterministic"] is True,
            "exact": self.keywords["accuracy"] == "exact",
            "tf32": torch.get_float32_matmul_precision() == "high",
        }
        return (name for name, is_drawn in drawn.items() if is_drawn)

    def results(self) -> list[Tensor]:
        problem = self.problem
        operands = [t.detach().requires_grad_() for t in (problem.query, problem.key, problem.value)]
        cu_q = None if problem.shared_q or self.dense else offsets(problem.lengths_q, self.offsets_dtype)
        cu_k = None if problem.shared_k or self.dense else offsets(problem.lengths_k, self.offsets_dtype)
        given = operands
        if self.dense:
            batch = len(problem.lengths_q)
            given = [t.unflatten(0, (batch, t.shape[0] // batch)) for t in operands]
        poison(problem)
        output = gdpa.varlen_attention(
            *given,
            cu_q,
            cu_k,
            activation=problem.activation,
            scale=problem.scale,
            out_scale=problem.out_scale,
            window_size=problem.window,
            enable_gqa=True,
            **self.keywords,
        )
        output = output.flatten(0, 1) if self.dense else output
        poison(problem)
        return [output.detach(), *torch.autograd.grad(output, operands, self.weights)]


def poison(problem: Problem) -> None:
    """Fills the memory that the allocator returns next with NaN, so that an unwritten element is an error."""
    sizes = [t.numel() for t in (problem.query, problem.key, problem.value)]
    batch = len(problem.lengths_q)
    dtype = problem.query.dtype
    blocks = [torch.full((size * factor,), torch.nan, dtype=dtype) for size in sizes for factor in (1, batch)]
    blocks += [torch.full((size,), torch.nan, dtype=torch.float32) for size in sizes]
    del blocks


def check(cases: Iterator[Case], record: Record, share: float | None = None) -> None:
    counts: collections.Counter[str] = collections.Counter()
    for number, case in enumerate(cases):
        try:
            assert_within_promise(case.results(), case.problem, case.weights, share)
        except AssertionError as error:
            problem = case.problem
            raise AssertionError(
                f"problem {number}: f {problem.activation}, head_dim {problem.query.shape[-1]}, "
                f"lengths {problem.lengths_q} x {problem.lengths_k}, shared {problem.shared_q} "
                f"{problem.shared_k}, dense {case.dense}, heads {problem.query.shape[1]} over {problem.key.shape[1]}, "
                f"scale {problem.scale}, out_scale {problem.out_scale}, window {problem.window}, "
                f"{case.keywords}: {error}"
            ) from error
        counts.update(["problems", *case.options()])
    for name, count in counts.items():
        record(name, count)


def named(configuration: tuple[torch.dtype, int, int, str]) -> str:
    dtype, head_dim, head_dim_v, activation = configuration
    return f"{str(dtype)[6:]}-{head_dim}-{head_dim_v}-{activation.replace(' ', '')}"


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=named)
def test_random_problems_keep_the_promise(
    configuration: tuple[torch.dtype, int, int, str], record_property: Record
) -> None:
    draw = random.Random(repr(configuration))
    torch.manual_seed(draw.randint(0, 2**31))
    check((Case(draw, *configuration) for _ in range(PROBLEMS)), record_property)


# The seed and the number of the random functions of the next test.
FUNCTION_SEED = int(os.environ.get("GDPA_FUNCTION_SEED", "1"))
DRAWN_FUNCTIONS = int(os.environ.get("GDPA_DRAWN_FUNCTIONS", "8"))
DRAWN_DTYPES = (BF16, BF16, FP16, FP32)
DRAWN_HEAD_DIMS = ((128, 128), (8, 8), (64, 64), (40, 72), (192, 192), (96, 32))
DRAWN = [
    (number, *DRAWN_HEAD_DIMS[(number + FUNCTION_SEED) % len(DRAWN_HEAD_DIMS)]) for number in range(DRAWN_FUNCTIONS)
]


@pytest.mark.parametrize(("number", "head_dim", "head_dim_v"), DRAWN)
def test_random_functions_and_scales_keep_the_promise(
    number: int, head_dim: int, head_dim_v: int, record_property: Record
) -> None:
    """Some random functions are steep for their scores, and some scales are not powers of two."""
    draw = random.Random(FUNCTION_SEED * 1000 + number)
    torch.manual_seed(draw.randint(0, 2**31))
    dtype = DRAWN_DTYPES[number % len(DRAWN_DTYPES)]
    expression = random_function(draw)
    check((Case(draw, dtype, head_dim, head_dim_v, expression) for _ in range(PROBLEMS)), record_property)


@contextmanager
def one_product_of_tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("head_dim", [16, 64, 128, 256])
def test_tf32_is_as_close_as_pytorchs_tf32(head_dim: int, record_property: Record) -> None:
    """tf32 has the fraction of fp16, so the promise of fp16 applies. PyTorch's products also use tf32.

    The lengths are not very small, because the relative error of a single score with cancellation has no bound, neither
    in PyTorch nor in gdpa.
    """
    draw = random.Random(head_dim)
    torch.manual_seed(head_dim)
    with one_product_of_tf32():
        lengths = ([draw.randint(40, 300) for _ in range(draw.randint(1, 5))] for _ in range(PROBLEMS))
        cases = (Case(draw, FP32, head_dim, head_dim, "silu", lengths=each) for each in lengths)
        check(cases, record_property, share=SHARE[FP16])


# The lengths of a few problems. The number is small because fp64 is slow for long sequences.
SHAPES = {
    "long": lambda draw: [draw.choice([2048, 2049, 3000, 4096]), draw.randint(0, 2500)],
    "tiny": lambda draw: [draw.randint(0, 4) for _ in range(draw.randint(100, 400))],
    "one long among tiny": lambda draw: [*(draw.randint(0, 3) for _ in range(60)), 2500, 1, 0, 7],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_long_and_tiny_sequences_keep_the_promise(shape: str, dtype: torch.dtype, record_property: Record) -> None:
    draw = random.Random(shape)
    torch.manual_seed(draw.randint(0, 2**31))
    check(
        (Case(draw, dtype, 64, 64, "gelu", lengths=SHAPES[shape](draw)) for _ in range(max(1, PROBLEMS // 5))),
        record_property,
    )
