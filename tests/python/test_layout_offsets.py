"""Layouts of sequences, compared with the definition in PyTorch operations, one sequence after the other, in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reference import allowed
from torch import Tensor

import gdpa

HEADS_Q, HEADS_K, HEAD_DIM = 4, 2, 16
NAN = float("nan")


def rows_of(offsets: Tensor) -> list[slice]:
    return [slice(int(begin), int(end)) for begin, end in offsets]


def operands(rows_q: int, rows_k: int) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((rows_q, HEADS_Q, HEAD_DIM), (rows_k, HEADS_K, HEAD_DIM), (rows_k, HEADS_K, HEAD_DIM))
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def definition(
    tensors: list[Tensor], queries: list[slice], keys: list[slice], outputs: list[slice], rows: int
) -> Tensor:
    """Returns the outputs of all pairs of sequences, and zeros in the other rows."""
    query, key, value = tensors
    key, value = (one.repeat_interleave(HEADS_Q // HEADS_K, dim=1) for one in (key, value))
    output = query.new_zeros(rows, HEADS_Q, HEAD_DIM)
    for of_queries, of_keys, of_output in zip(queries, keys, outputs, strict=True):
        scores = torch.einsum("ihd,jhd->hij", query[of_queries], key[of_keys]) / HEAD_DIM**0.5
        counts = allowed(scores.shape[1], scores.shape[2], (9, 0), upper_left=False)
        values = torch.where(counts, torch.nn.functional.gelu(scores), 0.0)
        output[of_output] = torch.einsum("hij,jhd->ihd", values, value[of_keys])
    return output


def poisoned(tensor: Tensor, rows: list[slice]) -> Tensor:
    """Returns the tensor with NaN in the rows that belong to no sequence."""
    result = torch.full_like(tensor, NAN)
    for one in rows:
        result[one] = tensor[one]
    return result


def check(
    query_rows: Tensor,
    key_rows: Tensor,
    kv_of: Tensor | None,
    rows: tuple[int, int],
    output: tuple[Tensor, int] | None = None,
    zeroes_output: bool = True,
) -> None:
    """`output` has the first row of each sequence in the output, and the number of rows of the output."""
    queries = rows_of(query_rows)
    keys = rows_of(key_rows if kv_of is None else key_rows[kv_of.long()])
    begins, output_rows = output if output is not None else (query_rows[:, 0], rows[0])
    outputs = [slice(int(begin), int(begin) + one.stop - one.start) for begin, one in zip(begins, queries, strict=True)]
    tensors = operands(*rows)
    plain = [tensor.clone().requires_grad_() for tensor in tensors]
    gapped = [poisoned(one, part).requires_grad_() for one, part in zip(tensors, (queries, keys, keys), strict=True)]
    computed = gdpa.varlen_attention(
        *gapped,
        None,
        None,
        seq_offsets_q=query_rows,
        seq_offsets_k=key_rows,
        kv_of=kv_of,
        enable_gqa=True,
        window_size=(9, 0),
        output_offsets=None if output is None else begins,
        output_rows=None if output is None else output_rows,
        zeroes_output=zeroes_output,
    )
    expected = definition(plain, queries, keys, outputs, output_rows)
    assert computed.shape == expected.shape
    owned = torch.zeros(output_rows, dtype=torch.bool)
    for one in outputs:
        owned[one] = True
    compared = owned if not zeroes_output else torch.ones_like(owned)
    torch.testing.assert_close(computed[compared], expected[compared])
    grad = torch.randn_like(expected)
    gradients = torch.autograd.grad(computed, gapped, poisoned(grad, outputs))
    for gradient, exact in zip(gradients, torch.autograd.grad(expected, plain, grad), strict=True):
        torch.testing.assert_close(gradient, exact)


def test_rows_of_gaps_are_neither_read_nor_left_undefined() -> None:
    check(torch.tensor([[3, 20], [20, 20], [31, 60]]), torch.tensor([[1, 30], [30, 44], [50, 77]]), None, (64, 80))


def test_sequences_may_be_in_any_order() -> None:
    check(torch.tensor([[40, 60], [0, 17], [20, 33]]), torch.tensor([[50, 77], [1, 30], [30, 44]]), None, (60, 77))


def test_gradients_of_overlapping_keys_are_summed() -> None:
    check(torch.tensor([[0, 10], [10, 40], [40, 45]]), torch.tensor([[5, 40], [0, 30], [28, 60]]), None, (45, 61))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("zeroes_output", [True, False])
def test_the_output_has_rows_of_its_own(dtype: torch.dtype, zeroes_output: bool) -> None:
    begins = torch.tensor([40, 3, 0], dtype=dtype)
    query_rows, key_rows = torch.tensor([[3, 20], [25, 60], [61, 64]]), torch.tensor([[1, 30], [30, 44], [40, 77]])
    check(query_rows, key_rows, None, (64, 80), (begins, 70), zeroes_output)
    check(query_rows, key_rows, torch.tensor([2, 0, 2]), (64, 80), (begins, 57), zeroes_output)


def test_rows_of_the_output_without_a_sequence_may_have_any_value() -> None:
    check(torch.tensor([[3, 20], [25, 60]]), torch.tensor([[1, 30], [30, 44]]), None, (64, 80), zeroes_output=False)


def test_the_output_of_a_shared_query_may_be_anywhere() -> None:
    query, key = torch.randn(4, 2, 8, requires_grad=True), torch.randn(9, 2, 8)
    lengths, begins = torch.tensor([0, 4, 9]), torch.tensor([7, 1])
    plain = gdpa.varlen_attention(query, key, key, None, lengths)
    output = gdpa.varlen_attention(query, key, key, None, lengths, output_offsets=begins, output_rows=12)
    expected = torch.zeros(12, 2, 8).index_copy(0, torch.tensor([7, 8, 9, 10, 1, 2, 3, 4]), plain)
    torch.testing.assert_close(output, expected)
    grad = torch.randn_like(output)
    results = [torch.autograd.grad(one, query, grad)[0] for one in (output, expected)]
    torch.testing.assert_close(*results)


def test_output_offsets_with_the_shape_of_the_output_permute_it() -> None:
    query = torch.randn(12, 2, 8)
    lengths = torch.tensor([0, 5, 12])
    plain = gdpa.varlen_attention(query, query, query, lengths, lengths)
    output = gdpa.varlen_attention(query, query, query, lengths, lengths, output_offsets=torch.tensor([7, 0]))
    assert torch.equal(output, torch.cat([plain[5:], plain[:5]]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output_offsets": torch.tensor([0, 4])}, "batch entries without common rows of the output, got row 4"),
        ({"output_offsets": torch.tensor([0, 6])}, "numbers from 0 to 5, for the 12 rows of the output and 7 queries"),
        ({"output_offsets": torch.tensor([-1, 4])}, "got -1 at index 0"),
        ({"output_offsets": torch.tensor([0, 5, 12])}, "output_offsets: expected rank 1 and 2 numbers"),
        ({"output_offsets": torch.tensor([0, 5]), "output_rows": 11}, "for the 11 rows of the output and 7 queries"),
        ({"output_offsets": torch.tensor([0, 5]), "output_rows": -3}, "output_rows: expected 0 or more, got -3"),
        ({"output_rows": 12}, "output_rows: expected None without output_offsets, got 12"),
        ({"zeroes_output": False}, "zeroes_output: expected seq_offsets_q or output_offsets if it is false"),
    ],
)
def test_wrong_rows_of_the_output_are_refused(arguments: dict[str, Any], message: str) -> None:
    query = torch.randn(12, 2, 8)
    lengths = torch.tensor([0, 5, 12])
    with pytest.raises(ValueError, match=message):
        gdpa.varlen_attention(query, query, query, lengths, lengths, **arguments)


def test_output_offsets_need_packed_queries() -> None:
    query = torch.randn(2, 5, 2, 8)
    with pytest.raises(ValueError, match="query: expected rank 3 with output_offsets"):
        gdpa.varlen_attention(query, query, query, None, None, output_offsets=torch.tensor([0, 5]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_batch_map_sends_several_queries_to_the_same_keys(dtype: torch.dtype) -> None:
    query_rows, key_rows = (
        torch.tensor([[0, 10], [12, 40], [40, 45], [50, 70]]),
        torch.tensor([[5, 40], [44, 60], [41, 43]]),
    )
    check(query_rows, key_rows, torch.tensor([1, 0, 1, 1], dtype=dtype), (71, 61))


def test_a_batch_map_selects_entries_of_dense_keys() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(3, 5, 2, 8), torch.randn(2, 7, 2, 8, requires_grad=True)
    kv_of = torch.tensor([1, 1, 0])
    output = gdpa.varlen_attention(query, key, key, None, None, kv_of=kv_of)
    repeated = gdpa.varlen_attention(query, key[kv_of], key[kv_of], None, None)
    torch.testing.assert_close(output, repeated)
    (gradient,) = torch.autograd.grad(output.square().sum(), key)
    (expected,) = torch.autograd.grad(repeated.square().sum(), key)
    torch.testing.assert_close(gradient, expected)


def test_a_shared_query_has_an_output_for_each_entry_of_the_map() -> None:
    query, key = torch.randn(4, 2, 8), torch.randn(9, 2, 8)
    output = gdpa.varlen_attention(
        query, key, key, None, None, seq_offsets_k=torch.tensor([[0, 4], [4, 9]]), kv_of=torch.tensor([1, 0, 1])
    )
    torch.testing.assert_close(output[:4], gdpa.varlen_attention(query, key[4:], key[4:], None, None))
    torch.testing.assert_close(output[:4], output[8:])
    torch.testing.assert_close(output[4:8], gdpa.varlen_attention(query, key[:4], key[:4], None, None))


@pytest.mark.parametrize("page_rows", [16, 48])
def test_pages_are_the_rows_of_their_table(page_rows: int) -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([70, 0, 16, 97])
    rows = torch.arange(96 // page_rows + 2) * page_rows
    table = torch.randperm(4 * len(rows)).view(4, -1).to(torch.int32)
    key, value = torch.randn(2, table.numel(), page_rows, HEADS_K, HEAD_DIM)
    query = torch.randn(4, 5, HEADS_Q, HEAD_DIM)
    output = gdpa.varlen_attention(
        query, key, value, None, None, block_table=table, seqused_k=lengths, enable_gqa=True, window_size=(40, 0)
    )
    for b, length in enumerate(lengths):
        of_entry = [one[table[b].long()].flatten(0, 1)[:length] for one in (key, value)]
        expected = gdpa.varlen_attention(query[b], *of_entry, None, None, enable_gqa=True, window_size=(40, 0))
        torch.testing.assert_close(output[b], expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seqused_k": torch.tensor([33, 1])}, "seqused_k: expected numbers from 0 to 32"),
        ({"seqused_k": None}, "seqused_k: expected rank 1 and 2 lengths"),
        ({"block_table": torch.tensor([[0, 1], [2, 3]])}, r"got 3 at index \(1, 1\)"),
        ({"block_table": None}, "seqused_k: expected a block_table with it"),
        ({"kv_of": torch.tensor([0, 1])}, "no other description of the keys"),
        ({"activation": "s * kv_row"}, "activation: expected keys in one tensor for kv_row, got keys in pages"),
        ({"mask": "kv_row > 3"}, "mask: expected keys in one tensor for kv_row, got keys in pages"),
    ],
)
def test_wrong_pages_are_refused(arguments: dict[str, Any], message: str) -> None:
    query, key = torch.randn(2, 5, 2, 8), torch.randn(3, 16, 2, 8)
    call = {"block_table": torch.tensor([[0, 1], [2, 0]]), "seqused_k": torch.tensor([20, 32])} | arguments
    with pytest.raises(ValueError, match=message):
        gdpa.varlen_attention(query, key, key, None, None, **call)


def test_offsets_are_views_of_cumulative_lengths() -> None:
    query = torch.randn(12, 2, 8)
    lengths = torch.tensor([0, 5, 12])
    rows = torch.stack([lengths[:-1], lengths[1:]]).T  # not contiguous
    output = gdpa.varlen_attention(query, query, query, None, None, seq_offsets_q=rows, seq_offsets_k=rows)
    assert torch.equal(output, gdpa.varlen_attention(query, query, query, lengths, lengths))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seq_offsets_q": torch.tensor([[0, 5], [4, 9]])}, "sequences without common queries, got row 4"),
        ({"seq_offsets_q": torch.tensor([[0, 5], [9, 8]])}, "got begin 9 and end 8 at index 1"),
        ({"seq_offsets_q": torch.tensor([[0, 5], [8, 13]])}, "got begin 8 and end 13 at index 1"),
        ({"seq_offsets_q": torch.tensor([0, 5, 9])}, r"expected shape \(batch, 2\)"),
        ({"seq_offsets_q": torch.tensor([[0, 5], [8, 9]]), "cu_seq_q": torch.tensor([0, 5, 9])}, "got both"),
        ({"seq_offsets_k": torch.tensor([[0, 5, 9]])}, r"expected shape \(batch, 2\)"),
        (
            {"kv_of": torch.tensor([0, 2])},
            "kv_of: expected numbers from 0 to 1, the entries of the keys, got 2 at index 1",
        ),
        ({"kv_of": torch.tensor([0, -1])}, "got -1 at index 1"),
        ({"kv_of": torch.tensor([0, 1, 1])}, "kv_of: expected rank 1 and 2 numbers"),
        ({"kv_of": torch.tensor([0, 1]), "seq_offsets_k": None}, "keys that the whole batch shares"),
    ],
)
def test_wrong_layouts_are_refused(arguments: dict[str, Tensor | None], message: str) -> None:
    query = torch.randn(12, 2, 8)
    rows = torch.tensor([[0, 5], [5, 12]])
    call = {"cu_seq_q": None, "cu_seq_k": None, "seq_offsets_q": rows, "seq_offsets_k": rows} | arguments
    with pytest.raises(ValueError, match=message):
        gdpa.varlen_attention(query, query, query, **call)  # type: ignore[arg-type]


def test_floating_offsets_are_a_type_error() -> None:
    query = torch.randn(12, 2, 8)
    with pytest.raises(TypeError, match="seq_offsets_q: expected dtype int32 or int64"):
        gdpa.varlen_attention(query, query, query, None, None, seq_offsets_q=torch.tensor([[0.0, 5.0]]))
