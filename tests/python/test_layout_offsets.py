"""Sequences with a begin and an end, and batch maps, compared with a loop of calls for one sequence each."""

from __future__ import annotations

import pytest
import torch
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


def one_by_one(query: Tensor, key: Tensor, value: Tensor, queries: list[slice], keys: list[slice]) -> Tensor:
    """Returns the outputs of all pairs of sequences, and zeros in the other rows."""
    output = torch.zeros_like(query)
    for of_queries, of_keys in zip(queries, keys, strict=True):
        one = gdpa.varlen_attention(
            query[of_queries], key[of_keys], value[of_keys], None, None, enable_gqa=True, window_size=(9, 0)
        )
        output = torch.cat([output[: of_queries.start], one, output[of_queries.stop :]])
    return output


def poisoned(tensor: Tensor, rows: list[slice]) -> Tensor:
    """Returns the tensor with NaN in the rows that belong to no sequence."""
    result = torch.full_like(tensor, NAN)
    for one in rows:
        result[one] = tensor[one]
    return result


def check(query_rows: Tensor, key_rows: Tensor, kv_of: Tensor | None, rows: tuple[int, int]) -> None:
    queries = rows_of(query_rows)
    keys = rows_of(key_rows if kv_of is None else key_rows[kv_of.long()])
    tensors = operands(*rows)
    plain = [tensor.clone().requires_grad_() for tensor in tensors]
    gapped = [poisoned(one, part).requires_grad_() for one, part in zip(tensors, (queries, keys, keys), strict=True)]
    output = gdpa.varlen_attention(
        *gapped,
        None,
        None,
        seq_offsets_q=query_rows,
        seq_offsets_k=key_rows,
        kv_of=kv_of,
        enable_gqa=True,
        window_size=(9, 0),
    )
    expected = one_by_one(plain[0], plain[1], plain[2], queries, keys)
    torch.testing.assert_close(output, expected)
    grad = torch.randn_like(output)
    gradients = torch.autograd.grad(output, gapped, poisoned(grad, queries))
    for gradient, exact in zip(gradients, torch.autograd.grad(expected, plain, grad), strict=True):
        torch.testing.assert_close(gradient, exact)


def test_rows_of_gaps_are_neither_read_nor_left_undefined() -> None:
    check(torch.tensor([[3, 20], [20, 20], [31, 60]]), torch.tensor([[1, 30], [30, 44], [50, 77]]), None, (64, 80))


def test_sequences_may_be_in_any_order() -> None:
    check(torch.tensor([[40, 60], [0, 17], [20, 33]]), torch.tensor([[50, 77], [1, 30], [30, 44]]), None, (60, 77))


def test_gradients_of_overlapping_keys_are_summed() -> None:
    check(torch.tensor([[0, 10], [10, 40], [40, 45]]), torch.tensor([[5, 40], [0, 30], [28, 60]]), None, (45, 61))


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
    ],
)
def test_wrong_pages_are_refused(arguments: dict[str, Tensor | None], message: str) -> None:
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
