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
    "output offsets": (
        (7,),
        (9,),
        {
            "cu_seq_q": offsets(LENGTHS_Q),
            "cu_seq_k": offsets(LENGTHS_K),
            "output_offsets": torch.tensor([6, 5, 1]),
            "output_rows": 10,
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
    if layout == "output offsets":  # three rows of sequence 0 from row 6 on, and four rows of sequence 2 from row 1 on
        numbers = torch.cat((torch.zeros_like(numbers[:1]), numbers[3:], numbers[:1] * 0, numbers[:3], numbers[:1] * 0))
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


@pytest.mark.parametrize("is_learned", [False, True])
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
        ("jagged", torch.ones(3, 1), ValueError, "rank 1 and 7 numbers, one for each row of the query"),
    ],
)
def test_wrong_numbers_are_refused(
    layout: str, numbers: torch.Tensor, error: type[Exception], words: str, is_learned: bool
) -> None:
    if is_learned and numbers.dim() == 1:
        words = "numbers of sequences without gradient"
    with pytest.raises(error, match=words):
        call(layout)[2](out_scale=numbers.clone().requires_grad_(is_learned))


def test_the_query_is_not_added_with_numbers_of_queries() -> None:
    for is_learned in (False, True):
        with pytest.raises(ValueError, match="add_query: expected an out_scale without a number for each query"):
            call("jagged")[2](out_scale=torch.ones(7, 1, requires_grad=is_learned), add_query=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_learned_numbers_give_the_bits_of_constant_ones(layout: str, dtype: torch.dtype) -> None:
    _, _, attend = call(layout, dtype)
    numbers = torch.rand(*LAYOUTS[layout][0], 1)
    learned = numbers.clone().requires_grad_()
    output = attend(out_scale=learned)
    assert torch.equal(output, attend(out_scale=numbers))
    output.sum().backward()
    assert learned.grad is not None and (learned.grad.shape, learned.grad.dtype) == (numbers.shape, torch.float32)


def test_a_number_of_0_has_a_gradient() -> None:
    plain, _, attend = call("jagged")
    numbers = torch.zeros(7, 1, dtype=DTYPE, requires_grad=True)
    attend(out_scale=numbers).sum().backward()
    torch.testing.assert_close(numbers.grad, plain.detach().sum((1, 2))[:, None])


def test_numbers_learn_with_a_list_of_functions_learned_tensors_and_a_mask() -> None:
    functions = ["a * silu(s)", "silu(s + t[q_idx])", "gelu", "s"]
    params = {"a": torch.rand(H, dtype=DTYPE, requires_grad=True), "t": torch.rand(7, dtype=DTYPE, requires_grad=True)}
    plain, operands, attend = call("jagged", activation=functions, params=params, mask="kv_idx <= q_idx")
    numbers = torch.rand(7, 1, dtype=DTYPE, requires_grad=True)
    output, expected = attend(out_scale=numbers), products(plain, numbers, "jagged")
    inputs, weights = [*operands, *params.values(), numbers], torch.randn_like(output)
    actual = torch.autograd.grad(output, inputs, weights)
    for one, other in zip(actual, torch.autograd.grad(expected, inputs, weights), strict=True):
        torch.testing.assert_close(one, other)


def test_a_function_with_numbers_of_queries_reads_at_most_seven_tensors() -> None:
    names = [f"a{n}" for n in range(8)]
    params = {name: torch.rand(()) for name in names}
    with pytest.raises(ValueError, match="out_scale: expected one number for each row of the query with a function of"):
        call("jagged", activation=" + ".join((*names, "s")), params=params)[2](out_scale=torch.ones(7, 1))


def test_backward_into_given_tensors_returns_the_gradient_of_the_numbers() -> None:
    _, operands, attend = call("dense")
    numbers = torch.rand(3, 5, 1, dtype=DTYPE, requires_grad=True)
    output = attend(out_scale=numbers)
    weights, arguments = torch.randn_like(output), (*operands, None, None)
    gradients = gdpa.varlen_attention_backward(
        weights, *arguments, activation="silu", out_scale=numbers, grad_params=["out_scale"]
    )
    torch.testing.assert_close(gradients, {"out_scale": torch.autograd.grad(output, numbers, weights)[0]})
    with pytest.raises(ValueError, match="grad_params: expected names of tensors of params"):
        gdpa.varlen_attention_backward(weights, *arguments, activation="silu", grad_params=["out_scale"])


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
    numbers.requires_grad_()
    output, expected = compiled(*operands, numbers), products(plain, numbers, "jagged")
    actual = torch.autograd.grad(output.sum(), [*operands, numbers])
    torch.testing.assert_close(actual, torch.autograd.grad(expected.sum(), [*operands, numbers]))
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
