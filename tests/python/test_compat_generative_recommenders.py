"""gdpa.compat.generative_recommenders against its formula in fp64, over random arguments."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from compat_checks import check_same, integers, leaves, lengths, starts
from compat_reference import generative_recommenders

from gdpa.compat import generative_recommenders as compat


class Drawn:
    """Random arguments of hstu_mha, with the same call of the reference."""

    def __init__(self, draw: random.Random, delta: bool) -> None:
        batch, heads = draw.randint(1, 4), draw.choice([1, 2, 3])
        columns, columns_v = draw.choice([4, 8]), draw.choice([4, 8, 12])
        contexts = draw.choice([0, 0, 1, 3])
        history = [contexts + one for one in lengths(draw, batch, 10)]
        has_targets = draw.random() < 0.6
        targets = [draw.randint(0, 4) if has_targets else 0 for _ in history]
        self.delta = draw.randint(1, 4) if delta else None
        if self.delta:
            history = [max(one, self.delta) for one in history]
        self.offsets = starts([one + other for one, other in zip(history, targets, strict=True)])
        rows = self.offsets[-1]
        rows_q = batch * self.delta if self.delta else rows
        self.inputs = leaves((rows_q, heads, columns), (rows, heads, columns), (rows, heads, columns_v))
        self.operands = list(self.inputs)
        self.longest = draw.choice([max(history) + 4, 7])
        self.alpha = draw.choice([0.5, 0.125, -0.25])
        self.arguments: dict[str, Any] = {}
        self.expected: dict[str, Any] = {"alpha": self.alpha, "divisor": self.longest, "delta": self.delta}
        if has_targets:
            dtype = draw.choice([torch.int32, torch.int64])
            self.arguments["num_targets"], self.expected["targets"] = integers(targets, dtype), targets
        if draw.random() < 0.5:
            self.arguments["max_attn_len"] = self.expected["window"] = draw.randint(1, 6)
        if contexts:
            self.arguments["contextual_seq_len"] = self.expected["contexts"] = contexts
        if not delta and draw.random() < 0.4:
            self.arguments["min_full_attn_seq_len"] = self.expected["full"] = draw.randint(1, 5)
        if not delta and draw.random() < 0.4:
            self.draw_scale(draw, rows)
        self.dtype = draw.choice([torch.int32, torch.int64])

    def draw_scale(self, draw: random.Random, rows: int) -> None:
        (scale,) = leaves(() if draw.random() < 0.4 else (rows,))
        if draw.random() < 0.5:
            scale = scale.detach()
        self.arguments["attn_scale"] = self.expected["scale"] = scale
        if scale.requires_grad:
            self.inputs.append(scale)

    def reference(self) -> torch.Tensor:
        return generative_recommenders(*self.operands, self.offsets, **self.expected)

    def __str__(self) -> str:
        return f"{[tuple(one.shape) for one in self.inputs]}, {self.offsets}, {self.longest}, {self.arguments}"


@pytest.mark.parametrize("part", range(4))
def test_random_calls_follow_the_formula(part: int) -> None:
    draw = random.Random(part)
    torch.manual_seed(part)
    for _ in range(125):
        drawn = Drawn(draw, delta=draw.random() < 0.3)
        function = compat.delta_hstu_mha if drawn.delta else compat.hstu_mha
        others = {"kernel": "TRITON", "enable_tma": True} if draw.random() < 0.5 else {}
        offsets = integers(drawn.offsets, drawn.dtype)
        output = function(drawn.longest, drawn.alpha, *drawn.operands, offsets, **drawn.arguments, **others)
        check_same(output, drawn.reference(), drawn.inputs, lambda drawn=drawn: str(drawn))


def test_the_other_names_compute_the_same() -> None:
    draw = random.Random(5)
    torch.manual_seed(5)
    for _ in range(120):
        drawn = Drawn(draw, delta=draw.random() < 0.5)
        if {"attn_scale", "min_full_attn_seq_len"} & set(drawn.arguments):
            continue
        expected = drawn.reference()
        arguments = (drawn.longest, drawn.alpha, *drawn.operands, integers(drawn.offsets, drawn.dtype))
        if drawn.delta:
            others = {"is_delta_q": True, "delta_size": drawn.delta}
            outputs = [
                compat.triton_cached_hstu_mha(*arguments, **drawn.arguments, enable_tma=True),
                compat.triton_cc_hstu_mha(*arguments, **drawn.arguments, **others),
            ]
        else:
            scale = torch.tensor(1.0 / drawn.longest, dtype=torch.float64)
            outputs = [
                compat.triton_hstu_mha(*arguments, **drawn.arguments, sort_by_length=True, enable_tma=True),
                compat.triton_cc_hstu_mha(*arguments, **drawn.arguments),
                compat.tlx_bw_hstu_mha_wrapper(*arguments, attn_scale=scale, **drawn.arguments, sort_by_length=True),
            ]
            inference = compat.hstu_mha_cuda(*arguments, **drawn.arguments)
            assert not inference.requires_grad
            torch.testing.assert_close(inference, expected.detach(), rtol=1e-9, atol=1e-9)
        for output in outputs:
            check_same(output, expected, drawn.inputs, lambda drawn=drawn: str(drawn))


def test_gradients_are_written_into_views_of_one_buffer() -> None:
    """As in the fused backward of STULayer, whose buffer is (T, 2 H (D_v + D))."""
    draw = random.Random(6)
    torch.manual_seed(6)
    for _ in range(80):
        drawn = Drawn(draw, delta=False)
        if {"attn_scale", "min_full_attn_seq_len"} & set(drawn.arguments):
            continue
        q, k, v = drawn.operands[:3]
        offsets = integers(drawn.offsets, drawn.dtype)
        rest = [
            drawn.arguments.get("num_targets"), drawn.arguments.get("max_attn_len", 0),
            drawn.arguments.get("contextual_seq_len", 0), None, False, 0,
        ]  # fmt: skip
        output = compat.triton_hstu_attention_fwd(drawn.longest, drawn.alpha, q, k, v, offsets, *rest)
        expected = drawn.reference()
        torch.testing.assert_close(output, expected.detach(), rtol=1e-9, atol=1e-9)
        heads, sizes = q.shape[1], [v.shape[2], v.shape[2], q.shape[2], q.shape[2]]
        buffer = torch.full((q.shape[0], heads * sum(sizes)), float("nan"), dtype=torch.float64)
        du, dv, dq, dk = (
            part.view(-1, heads, size)
            for part, size in zip(buffer.split([heads * n for n in sizes], 1), sizes, strict=True)
        )
        dout = torch.randn_like(output)
        compat.triton_hstu_attention_bwd(
            dout, q, k, v, dq, dk, dv, offsets, rest[0], drawn.longest, drawn.alpha, *rest[1:]
        )
        for one, other in zip((dq, dk, dv), torch.autograd.grad(expected, (q, k, v), dout), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        assert du.isnan().all()


def test_gradients_with_another_last_stride_are_copied() -> None:
    offsets = integers([0, 5, 12])
    q, k, v = leaves(*[(12, 2, 8)] * 3)
    gradients = [torch.empty(2, 8, 12, dtype=torch.float64).permute(2, 0, 1) for _ in range(3)]
    dout = torch.randn(12, 2, 8, dtype=torch.float64)
    compat.triton_hstu_attention_bwd(dout, q, k, v, *gradients, offsets, None, 7, 0.5, 0, 0, None, False, 0)
    expected = generative_recommenders(q, k, v, [0, 5, 12], alpha=0.5, divisor=7)
    for one, other in zip(gradients, torch.autograd.grad(expected, (q, k, v), dout), strict=True):
        torch.testing.assert_close(one, other)


def test_a_sequence_that_is_too_short_for_its_contexts_and_targets_attends_to_itself() -> None:
    """As in the PyTorch kernel of generative-recommenders, where all tokens are then one token."""
    q, k, v = torch.randn(3, 5, 1, 4, dtype=torch.float64).unbind()
    output = compat.hstu_mha(5, 1.0, q, k, v, integers([0, 5]), num_targets=integers([4]), contextual_seq_len=3)
    scores = (q * k).sum(-1, keepdim=True)
    torch.testing.assert_close(output, scores * torch.sigmoid(scores) / 5 * v)


def call(**arguments: Any) -> torch.Tensor:
    q, k, v = torch.randn(3, 12, 2, 8).unbind()
    given = {"max_seq_len": 7, "alpha": 0.5, "q": q, "k": k, "v": v, "seq_offsets": integers([0, 5, 12])}
    return compat.hstu_mha(**(given | arguments))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"causal": False}, AssertionError),
        ({"max_seq_len": 0}, AssertionError),
        ({"dropout_pr": 0.1}, AssertionError),
        ({"q": torch.randn(12, 16)}, AssertionError),
        ({"k": torch.randn(12, 2, 4)}, AssertionError),
        ({"v": torch.randn(12, 16)}, AssertionError),
        ({"v": torch.randn(11, 2, 8)}, AssertionError),
        ({"v": torch.randn(12, 1, 8)}, AssertionError),
        ({"attn_scale": torch.ones(11)}, AssertionError),
        ({"num_targets": integers([1])}, ValueError),
        ({"q": torch.randn(12, 2, 8).double(), "k": torch.randn(12, 2, 8).double()}, TypeError),
        ({"seq_offsets": integers([0, 5, 13])}, ValueError),
    ],
)
def test_errors_have_the_types_of_the_peer(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_seq_len": 0},
        {"delta_q": torch.randn(5, 2, 8)},
        {"delta_q": torch.randn(6, 16)},
        {"k": torch.randn(12, 1, 8)},
        {"k": torch.randn(12, 16)},
        {"v": torch.randn(12, 3, 8)},
        {"v": torch.randn(12, 16)},
    ],
)
def test_errors_of_delta_queries_have_the_types_of_the_peer(arguments: dict[str, Any]) -> None:
    k, v = torch.randn(2, 12, 2, 8).unbind()
    given = {
        "max_seq_len": 7, "alpha": 0.5, "delta_q": torch.randn(6, 2, 8), "k": k, "v": v,
        "seq_offsets": integers([0, 5, 12]),
    }  # fmt: skip
    with pytest.raises(AssertionError):
        compat.delta_hstu_mha(**(given | arguments))


def test_softmax_heads_are_refused() -> None:
    q, k, v = torch.randn(3, 12, 2, 8).unbind()
    with pytest.raises(NotImplementedError, match="softmax"):
        compat.triton_hstu_attention_fwd(7, 0.5, q, k, v, integers([0, 5, 12]), None, 0, 0, None, False, 2)


def test_dropout_of_a_model_in_inference_is_ignored_and_strides_are_copied() -> None:
    q, k, v = torch.randn(3, 2, 8, 12).permute(0, 3, 1, 2).unbind()
    offsets = integers([0, 5, 12])
    output = compat.hstu_mha(7, 0.5, q, k, v, offsets, dropout_pr=0.1, training=False)
    packed = [one.contiguous() for one in (q, k, v)]
    assert torch.equal(output, compat.hstu_mha(7, 0.5, *packed, offsets))
