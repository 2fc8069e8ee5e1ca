"""out_scale with one number for each query: the product of the output and the numbers, in every layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reference import offsets

import gdpa

LENGTHS_Q, LENGTHS_K = [3, 0, 4], [2, 3, 4]
H, D = 4, 8
DTYPE = torch.float64

# The shape of the query and of its numbers, the shape of key and value, and the layout.
LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "jagged": ((7,), (9,), {"cu_seq_q": offsets(LENGTHS_Q), "cu_seq_k": offsets(LENGTHS_K)}),
    "gaps": (
        (9,),
        (9,),
        {
            "seq_offsets_q": torch.tensor([[6, 9], [0, 1], [2, 5]]),
            "seq_offsets_k": torch.tensor([[0, 4], [2, 6], [8, 9]]),
        },
    ),
    "shared query": ((4,), (9,), {"cu_seq_k": offsets(LENGTHS_K)}),
    "shared key": ((7,), (5,), {"cu_seq_q": offsets(LENGTHS_Q)}),
    "dense": ((3, 5), (3, 6), {}),
    "dense of one": ((3, 1), (3, 6), {}),
}


def call(layout: str, dtype: torch.dtype = DTYPE, **options: Any) -> tuple[torch.Tensor, list[torch.Tensor], Any]:
    """Returns the output without numbers, the operands, and the function that computes it with numbers."""
    of_query, of_key, offsets_of = LAYOUTS[layout]
    operands = [torch.randn((*rows, H, D), dtype=dtype).requires_grad_() for rows in (of_query, of_key, of_key)]
    keywords = {"cu_seq_q": None, "cu_seq_k": None, "activation": "silu"} | offsets_of | options

    def attend(**more: Any) -> torch.Tensor:
        return gdpa.varlen_attention(*operands, **(keywords | more))

    return attend(), operands, attend


def products(output: torch.Tensor, numbers: torch.Tensor, layout: str) -> torch.Tensor:
    """Multiplies each row of the output by its number."""
    if layout == "shared query":
        return (output.unflatten(0, (3, -1)) * numbers[..., None]).flatten(0, 1)
    return output * numbers[..., None]


@pytest.mark.parametrize("is_learned", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_row_of_the_output_is_multiplied(layout: str, is_learned: bool) -> None:
    plain, operands, attend = call(layout, window_size=(2, 1))
    numbers = torch.rand((*LAYOUTS[layout][0], 1), dtype=DTYPE, requires_grad=is_learned)
    inputs = [*operands, numbers] if is_learned else operands
    output, expected = attend(out_scale=numbers), products(plain, numbers, layout)
    torch.testing.assert_close(output, expected)
    weights = torch.randn_like(output)
    actual = torch.autograd.grad(output, inputs, weights)
    for one, other in zip(actual, torch.autograd.grad(expected, inputs, weights), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_fp32_sum_is_multiplied_before_it_is_rounded(dtype: torch.dtype) -> None:
    _, operands, attend = call("jagged", dtype)
    numbers = torch.rand(7, 1) * 1e-4
    exact = [one.detach().double() for one in operands]
    cu_q, cu_k = offsets(LENGTHS_Q), offsets(LENGTHS_K)
    expected = gdpa.varlen_attention(*exact, cu_q, cu_k, activation="silu") * numbers.double()[..., None]
    bounds = {torch.float32: 1e-6, torch.bfloat16: 6e-3, torch.float16: 2e-3}
    assert (attend(out_scale=numbers).double() - expected).norm() <= bounds[dtype] * expected.norm()
    learned = attend(out_scale=numbers.requires_grad_())
    assert learned.dtype == dtype


def test_strided_numbers_are_read_where_they_lie() -> None:
    for layout in ("jagged", "dense", "dense of one"):
        _, _, attend = call(layout)
        rows = LAYOUTS[layout][0]
        wide = torch.rand((*rows, 3), dtype=DTYPE)
        assert torch.equal(attend(out_scale=wide[..., 1:2]), attend(out_scale=wide[..., 1:2].clone()))
    with pytest.raises(ValueError, match="rows of one distance"):
        call("dense")[2](out_scale=torch.rand(3, 9, 1)[:, :5])


@pytest.mark.parametrize(
    ("layout", "numbers", "error", "words"),
    [
        ("jagged", torch.ones(6, 1), ValueError, "rank 1 and 7 numbers, one for each row of the query"),
        ("jagged", torch.ones(7, 2), ValueError, "a last axis of size 1"),
        ("jagged", torch.ones(7), ValueError, "rank 1 and 3 numbers, one for each batch entry"),
        ("jagged", torch.ones(7, 1, dtype=torch.bfloat16), TypeError, "dtype float32 or float64"),
        ("jagged", torch.full((7, 1), float("nan")), ValueError, "a finite number"),
        ("dense", torch.ones(15, 1), ValueError, r"shape \(3, 5\), one number for each query"),
        ("shared query", torch.ones(12, 1), ValueError, "4 numbers, one for each row of the query"),
    ],
)
def test_wrong_numbers_are_refused(layout: str, numbers: torch.Tensor, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(layout)[2](out_scale=numbers)


def test_a_number_that_no_sequence_reads_may_be_nan() -> None:
    numbers = torch.rand(9, 1, dtype=DTYPE)
    numbers[[1, 5]] = float("nan")
    output = call("gaps")[2](out_scale=numbers)
    assert not output.isnan().any()


def test_compiled_code_and_nested_tensors() -> None:
    plain, operands, _ = call("jagged")
    numbers = torch.rand(7, 1, dtype=DTYPE)
    cu_q, cu_k = offsets(LENGTHS_Q), offsets(LENGTHS_K)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return gdpa.varlen_attention(q, k, v, cu_q, cu_k, activation="silu", out_scale=r)

    torch.testing.assert_close(compiled(*operands, numbers), products(plain, numbers, "jagged"))
    rows = [torch.randn(length, H, D, dtype=DTYPE) for length in (3, 4)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged).transpose(1, 2)
    output = gdpa.generalized_dot_product_attention(nested, nested, nested, "silu", out_scale=numbers)
    without = gdpa.generalized_dot_product_attention(nested, nested, nested, "silu")
    torch.testing.assert_close(output.values().transpose(0, 1), without.values().transpose(0, 1) * numbers[..., None])
    dense = torch.randn(2, H, 5, D)
    of_rows = torch.rand(2, 5, 1)
    output = gdpa.generalized_dot_product_attention(dense, dense, dense, "silu", out_scale=of_rows)
    without = gdpa.generalized_dot_product_attention(dense, dense, dense, "silu")
    torch.testing.assert_close(output, without * of_rows[:, None])
