"""The errors of the Python functions: their types and messages. The checks are in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gdpa

QUERY = torch.randn(12, 4, 8)
OFFSETS = torch.tensor([0, 5, 12])


def call(**changes: Any) -> torch.Tensor:
    arguments: dict[str, Any] = {"query": QUERY, "key": QUERY, "value": QUERY, "cu_seq_q": OFFSETS, "cu_seq_k": OFFSETS}
    return gdpa.varlen_attention(**(arguments | changes))


VALUE_ERRORS: dict[str, dict[str, Any]] = {
    "key: expected head_dim 8, as the query's, got 6": {"key": QUERY[..., :6].contiguous()},
    "query: expected rank 3": {"query": QUERY[0]},
    "query: expected rank 4 at most, got rank 5": {"query": QUERY[None, None]},
    "query: expected a last dimension of stride 1, got stride 4": {"query": torch.randn(12, 8, 4).transpose(1, 2)},
    "cu_seqlens_q: expected 0 or more as the first number, got -1": {"cu_seq_q": torch.tensor([-1, 5, 12])},
    "cu_seqlens_q: expected numbers that never fall, got 3 after 5": {"cu_seq_q": torch.tensor([0, 5, 3])},
    "cu_seqlens_k: expected numbers up to 12, the tokens of key, got 13": {"cu_seq_k": torch.tensor([0, 5, 13])},
    "cu_seqlens_k: expected 2 batch entries": {"cu_seq_k": torch.tensor([0, 12])},
    "query: expected 2 heads, as the key's, got 4; pass enable_gqa=True": {
        "key": QUERY[:, :2],
        "value": QUERY[:, :2],
    },
    "query: expected heads in a multiple of the 3 heads": {
        "key": QUERY[:, :3],
        "value": QUERY[:, :3],
        "enable_gqa": True,
    },
    "scale: expected a finite number, got nan": {"scale": float("nan")},
    "out_scale: expected a finite number, got inf": {"out_scale": float("inf")},
    "out_scale: expected rank 1 and 2 numbers": {"out_scale": torch.ones(3)},
    "out_scale: expected numbers of sequences without gradient": {"out_scale": torch.ones(2, requires_grad=True)},
    "window: expected sides of 0 or more, or -1": {"window_size": (-2, 0)},
    f"window_left: expected a whole number of 64 bits, got {2**70}; pass another number": {"window_size": (2**70, 0)},
    f"window_right: expected a whole number of 64 bits, got {-(2**63) - 1}": {"window_size": (0, -(2**63) - 1)},
    f"output_rows: expected a whole number of 64 bits, got {2**63}": {"output_offsets": OFFSETS, "output_rows": 2**63},
    "window_size: expected two whole numbers (left, right), got 7": {"window_size": 7},
    'accuracy: expected one of "fast", "exact", got "best"': {"accuracy": "best"},
    "    gelo\n    ^": {"activation": "gelo"},
    'there is no function "GELU"\n    GELU\n    ^\nwrite gelu': {"activation": "GELU"},
    "swish\n    ^\nwrite silu": {"activation": "swish"},
    "softmax is no function of one score": {"activation": "softmax"},
    "got torch.nn.functional.softmax, which divides by a sum over the keys": {"activation": torch.nn.Softmax(-1)},
    'out_scale: expected a number, a tensor, "1/len_q" or "1/len_k", got "1/n"': {"out_scale": "1/n"},
    "    s * (1 +\n": {"activation": "s * (1 +"},
    "the parameter c has no number": {"activation": "a * tanh(c * s)", "params": {"a": 1.0}},
    'the expression has no parameter "unused"': {"activation": "a * s", "params": {"a": 1.0, "unused": 2.0}},
}

TYPE_ERRORS: dict[str, dict[str, Any]] = {
    "query: expected dtype float32, float64, bfloat16 or float16, got int32": {"query": QUERY.int()},
    "query: expected dtype float32, float64, bfloat16 or float16, got complex64": {"query": QUERY.to(torch.complex64)},
    "key: expected dtype float32, as the query's, got float64": {"key": QUERY.double()},
    "key: expected device cpu, as the query's, got meta": {"key": QUERY.to("meta")},
    # PyTorch computes only shapes if any tensor is on the device meta, and the result would have no numbers.
    **{
        f"{name}: expected device cpu, as the query's, got meta": changes
        for name, changes in {
            "cu_seqlens_q": {"cu_seq_q": OFFSETS.to("meta")},
            "cu_seqlens_k": {"cu_seq_k": OFFSETS.to("meta")},
            "kv_of": {"kv_of": torch.zeros(2, dtype=torch.int32, device="meta")},
            "output_offsets": {"output_offsets": OFFSETS[:2].to("meta")},
            "out_scale": {"out_scale": torch.ones(2, device="meta")},
            "parameter a": {"activation": "a * s", "params": {"a": torch.ones((), device="meta")}},
            "mask": {
                "mask": gdpa.mask.Mask(
                    "(first[q_row] <= kv_idx) & (kv_idx <= last[q_row])",
                    {"first": torch.zeros(12, device="meta"), "last": torch.zeros(12)},
                )
            },
        }.items()
    },
    "cu_seqlens_q: expected dtype int32 or int64, got int16": {"cu_seq_q": OFFSETS.to(torch.int16)},
    "cu_seqlens_q: expected dtype int32 or int64, got float32": {"cu_seq_q": OFFSETS.float()},
    "out_scale: expected dtype float32 or float64, got float16": {"out_scale": torch.ones(2).half()},
    "query: expected Tensor, got list": {"query": [1.0]},
    "cu_seqlens_q: expected Optional[Tensor], got list": {"cu_seq_q": [0, 5, 12]},
    "scale: expected Optional[float], got str": {"scale": "1"},
    "activation: expected a name, an expression, a function, a gdpa.Activation or a list of these, got int": {
        "activation": 3
    },
    "params: expected a number or a tensor for 'a', got str": {"activation": "a * s", "params": {"a": "2"}},
    "params: expected a dict of numbers and tensors, got list": {"activation": "a * s", "params": [2.0]},
}


@pytest.mark.parametrize(("words", "changes"), VALUE_ERRORS.items(), ids=list(VALUE_ERRORS))
def test_an_impossible_value_is_a_value_error(words: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:
        call(**changes)
    assert words in str(caught.value)
    assert "[" + "ValueError]" not in str(caught.value)


@pytest.mark.parametrize(("words", "changes"), TYPE_ERRORS.items(), ids=list(TYPE_ERRORS))
def test_a_wrong_type_is_a_type_error(words: str, changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError) as caught:
        call(**changes)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_a_dense_call_names_the_operand_that_does_not_fit(name: str) -> None:
    dense = {"query": QUERY[None], "key": QUERY[None], "value": QUERY[None]}
    with pytest.raises(ValueError, match=f"{name}: expected shape"):
        gdpa.generalized_dot_product_attention(**(dense | {name: QUERY[0]}))
    with pytest.raises(TypeError, match=f"{name}: expected Tensor, got str"):
        gdpa.generalized_dot_product_attention(**(dense | {name: "query"}))


def test_leading_dimensions_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="leading dimensions of query, key and value that broadcast"):
        gdpa.generalized_dot_product_attention(*(torch.randn(n, 2, 5, 8) for n in (2, 3, 2)))


def test_two_windows_at_once_are_refused() -> None:
    query = torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match="is_causal"):
        gdpa.generalized_dot_product_attention(query, query, query, is_causal=True, window_size=(3, 0))


def test_a_parse_error_shows_the_place_with_a_caret() -> None:
    with pytest.raises(ValueError) as caught:
        call(activation="s * sigmoid(1.702 * s")
    lines = str(caught.value).splitlines()
    caret = next(line for line in lines if line.strip() == "^")
    assert lines[lines.index(caret) - 1].strip() == "s * sigmoid(1.702 * s"


@pytest.mark.parametrize(
    "differentiate", [torch.autograd.grad, torch.autograd.functional.hessian], ids=["grad", "hessian"]
)
def test_a_second_derivative_is_refused_in_words(differentiate: Callable[..., Any]) -> None:
    query = QUERY.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="gdpa has no second derivative"):
        if differentiate is torch.autograd.functional.hessian:
            differentiate(lambda q: call(query=q).square().sum(), query)
        else:
            (gradient,) = torch.autograd.grad(call(query=query).square().sum(), query, create_graph=True)
            gradient.sum().backward()


def test_nothing_is_lost_where_torch_itself_fails() -> None:
    with pytest.raises(RuntimeError):
        call(query=torch.randn(12, 4, 8).to_sparse())
