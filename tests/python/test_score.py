"""Functions that read positions and tensors of the call: results and the gradients of all tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from score_reference import LENGTHS_K, LENGTHS_Q, Call, Score, one_sequence, starts
from torch import Tensor
from torch.nn.functional import gelu, silu

import gdpa

LAYOUTS = ("jagged", "dense", "shared query", "shared key")
WINDOWS = {"all": (-1, -1), "causal": (-1, 0), "window": (2, 1)}


@dataclass
class Case:
    text: str
    tensors: Callable[[Call], dict[str, Tensor]]
    reference: Callable[..., Score]  # of the call and its tensors


def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_()


def indices(*shape: int, below: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(below, shape, dtype=dtype)


def per_token(call: Call, t_q: Tensor, t_k: Tensor, b: int, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
    return t_q[call.first_q[b] + i], t_k[call.first_k[b] + j]


def time_bucket(call: Call, t_q: Tensor, t_k: Tensor, b: int, i: Tensor, j: Tensor) -> Tensor:
    of_query, of_key = per_token(call, t_q, t_k, b, i, j)
    return torch.clamp(torch.floor(torch.log2(1 + (of_query - of_key).abs())), 0, 63).long()


CASES = {
    "slopes": Case(
        "a * s * sigmoid(b * s)",
        lambda call: {"a": numbers(), "b": numbers(call.heads)},
        lambda call, a, b: lambda s, _, h, i, j: a * s * torch.sigmoid(b[h] * s),
    ),
    "table of distances": Case(
        "silu(s + table[head, clamp(q_idx - kv_idx, 0, 127)])",
        lambda call: {"table": numbers(call.heads, 128)},
        lambda call, table: lambda s, b, h, i, j: silu(s + table[h, torch.clamp(i - j, 0, 127)]),
    ),
    "dense bias": Case(
        "silu(s + bias[batch, head, q_idx, kv_idx])",
        lambda call: {"bias": numbers(4, call.heads, 5, 6)},
        lambda call, bias: lambda s, b, h, i, j: silu(s + bias[b, h, i, j]),
    ),
    "bias for all heads and queries": Case(
        "silu(s + bias[batch, head, q_idx, kv_idx])",
        lambda call: {"bias": numbers(4, 1, 1, 6)},
        lambda call, bias: lambda s, b, h, i, j: silu(s + bias[b, 0, 0, j]),
    ),
    "bias for all sequences": Case(
        "silu(s + bias[0, head, q_idx, kv_idx])",
        lambda call: {"bias": numbers(1, call.heads, 5, 1)},
        lambda call, bias: lambda s, b, h, i, j: silu(s + bias[0, h, i, 0 * j]),
    ),
    "time buckets": Case(
        "silu(s + w[head, clamp(floor(log2(1 + abs(t_q[q_row] - t_k[kv_row]))), 0, 63)])",
        lambda call: {
            "w": numbers(call.heads, 64),
            "t_q": 1e3 * numbers(call.tokens_q).detach(),
            "t_k": 1e3 * numbers(call.tokens_k).detach(),
        },
        lambda call, w, t_q, t_k: lambda s, b, h, i, j: silu(s + w[h, time_bucket(call, t_q, t_k, b, i, j)]),
    ),
    "numbers per token": Case(
        "tanh(s + t_q[q_row]) * t_k[kv_row]",
        lambda call: {"t_q": numbers(call.tokens_q), "t_k": numbers(call.tokens_k)},
        lambda call, t_q, t_k: (
            lambda s, b, h, i, j: (
                torch.tanh(s + per_token(call, t_q, t_k, b, i, j)[0]) * per_token(call, t_q, t_k, b, i, j)[1]
            )
        ),
    ),
    "numbers per sequence and position": Case(
        "gelu(s + t_q[batch, q_idx]) * t_k[batch, kv_idx]",
        lambda call: {"t_q": numbers(4, 5), "t_k": numbers(4, 6)},
        lambda call, t_q, t_k: lambda s, b, h, i, j: gelu(s + t_q[b, i]) * t_k[b, j],
    ),
    "an index in a tensor": Case(
        "gelu(s) * table[head, bucket[q_idx, kv_idx]] + group[batch] * s",
        lambda call: {
            "table": numbers(call.heads, 7),
            "bucket": indices(5, 6, below=7),
            "group": indices(4, below=3, dtype=torch.int32),
        },
        lambda call, table, bucket, group: lambda s, b, h, i, j: gelu(s) * table[h, bucket[i, j]] + group[b] * s,
    ),
    "one tensor read twice": Case(
        "silu(s * scale[head, 0] + scale[head, 1] * len_q / len_k)",
        lambda call: {"scale": numbers(call.heads, 2)},
        lambda call, scale: (
            lambda s, b, h, i, j: silu(s * scale[h, 0] + scale[h, 1] * call.lengths_q[b] / call.lengths_k[b])
        ),
    ),
    "one function for each head": Case(
        "silu; s * a; tanh(s + table[q_idx, kv_idx]); table[kv_idx, q_idx] * relu(s)",
        lambda call: {"a": numbers(), "table": numbers(7, 7)},
        lambda call, a, table: (
            lambda s, b, h, i, j: torch.stack(
                [silu(s[0]), s[1] * a, torch.tanh(s[2] + table[i, j]), table[j, i] * torch.relu(s[3])]
            )
        ),
    ),
    "the head without a tensor": Case(
        "silu(s - exp2(-2 * (head + 1)) * abs(q_idx - kv_idx))",
        lambda call: {},
        lambda call: lambda s, b, h, i, j: silu(s - torch.exp2(-2.0 * (h + 1)) * (i - j).abs()),
    ),
}


def assert_same_gradients(output: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(output, expected)
    weights = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad(output, inputs, weights, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(expected, inputs, weights, allow_unused=True, materialize_grads=True),
    )


@pytest.mark.parametrize("window", WINDOWS.values(), ids=list(WINDOWS))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_a_text_computes_the_definition_and_its_gradients(name: str, layout: str, window: tuple[int, int]) -> None:
    case, call = CASES[name], Call(layout)
    tensors = case.tensors(call)
    output = gdpa.varlen_attention(
        *call.operands, call.cu_q, call.cu_k, activation=case.text, params=tensors, window_size=window, enable_gqa=True
    )
    score = case.reference(call, **tensors)
    inputs = [*call.operands, *[tensor for tensor in tensors.values() if tensor.requires_grad]]
    assert_same_gradients(output.reshape(-1, call.heads, 4), call.expected(score, window), inputs)


def captured(*shape: int) -> Tensor:
    return numbers(*shape)


TABLE, TABLES, BIAS, SLOPE, NUMBER = captured(4, 128), captured(4, 3, 9), captured(4, 4, 5, 6), captured(4), captured()
BUCKET, EARLIEST, TIMES = indices(5, 6, below=9), torch.tensor(2), 10 * torch.rand(4, 6, dtype=torch.float64)


class Relative(torch.nn.Module):
    """A score function with its own table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(4, 9, dtype=torch.float64))

    def forward(self, s: Tensor, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Tensor:
        return silu(s + self.table[h, (q_idx - kv_idx + 4).clamp(0, 8)])


RELATIVE = Relative()

FUNCTIONS: dict[str, tuple[Any, list[Tensor]]] = {
    "a table": (lambda s, b, h, i, j: silu(s + TABLE[h, torch.clamp(i - j, 0, 127)]), [TABLE]),
    "a dense bias": (lambda s, b, h, i, j: s * torch.sigmoid(s) + BIAS[b, h, i, j], [BIAS]),
    "constant indices": (lambda s, b, h, i, j: s * TABLES[h, 1, -1] + TABLES[0, -2, i], [TABLES]),
    "a slope": (lambda s, b, h, i, j: s - SLOPE[h] * (i - j).abs(), [SLOPE]),
    "a number": (lambda s, b, h, i, j: torch.maximum(NUMBER * s, s - NUMBER) + s.clamp(max=NUMBER), [NUMBER]),
    "a derived tensor": (lambda s, b, h, i, j: silu(s + TABLE.exp()[h, abs(i - j)]), [TABLE]),
    "a slice of a tensor": (lambda s, b, h, i, j: silu(s + TABLES[:, 1][h, j]), [TABLES]),
    "an index tensor": (lambda s, b, h, i, j: silu(s + TABLES[h, 2, BUCKET[i, j]]), [TABLES]),
    "a whole number": (lambda s, b, h, i, j: torch.where(j < EARLIEST, s * NUMBER, torch.tanh(s)), [NUMBER]),
    "buckets": (
        lambda s, b, h, i, j: s + TABLE[h, torch.log2(1 + (TIMES[b, i] - TIMES[b, j]).abs()).long()],
        [TABLE],
    ),
    "truncation": (
        lambda s, b, h, i, j: s + TABLE[h, (TIMES[b, i] - TIMES[b, j]).to(torch.int32) + 20],
        [TABLE],
    ),
    "division": (lambda s, b, h, i, j: s * TABLE[h, i // 2 * 7 + j % 3] + (i - j) // 2 + (i - j) % 3, [TABLE]),
    "torch's division": (
        lambda s, b, h, i, j: s * torch.div(i - j, 2, rounding_mode="trunc") + torch.remainder(j, 4) + TABLE[h, i],
        [TABLE],
    ),
    "conditions": (
        lambda s, b, h, i, j: torch.where((i >= j) & ((i - j) <= 2) | (h == 1), silu(s), TABLE[h, j] * s),
        [TABLE],
    ),
    "a module": (RELATIVE, [RELATIVE.table]),
    "a bound method": (RELATIVE.forward, [RELATIVE.table]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_python_function_may_index_tensors_that_it_captures(name: str) -> None:
    function, tensors = FUNCTIONS[name]
    call = Call("dense")
    output = gdpa.varlen_attention(*call.operands, None, None, activation=function, enable_gqa=True)
    assert_same_gradients(output.flatten(0, 1), call.expected(function), [*call.operands, *tensors])


def test_the_indices_of_a_tensor_may_come_one_after_the_other() -> None:
    call = Call("jagged")
    output = gdpa.varlen_attention(
        *call.operands, call.cu_q, call.cu_k, activation=lambda s, b, h, i, j: silu(s + TABLES[h][2][j]),
        enable_gqa=True,
    )  # fmt: skip
    expected = call.expected(lambda s, b, h, i, j: silu(s + TABLES[h, 2, j]))
    assert_same_gradients(output, expected, [*call.operands, TABLES])


def test_a_default_argument_may_be_a_tensor_and_further_arguments_come_from_params() -> None:
    def score(s: Tensor, b: Any, h: Any, q_idx: Any, kv_idx: Any, w: Any, *, table: Tensor = TABLE) -> Tensor:
        return silu(w[h] * s + table[h, kv_idx])

    call, w = Call("jagged"), numbers(4)
    output = gdpa.varlen_attention(
        *call.operands, call.cu_q, call.cu_k, activation=score, params={"w": w}, enable_gqa=True
    )
    expected = call.expected(lambda s, b, h, i, j: score(s, b, h, i, j, w))
    assert_same_gradients(output, expected, [*call.operands, w, TABLE])


def test_a_function_of_the_score_may_use_captured_numbers() -> None:
    call = Call("jagged")
    output = gdpa.varlen_attention(
        *call.operands, call.cu_q, call.cu_k, activation=lambda s: NUMBER * silu(s - NUMBER), enable_gqa=True
    )
    expected = call.expected(lambda s, b, h, i, j: NUMBER * silu(s - NUMBER))
    assert_same_gradients(output, expected, [*call.operands, NUMBER])


def test_a_rebound_tensor_is_never_stale() -> None:
    call = Call("jagged")
    tables = {"now": torch.zeros(4, 7, dtype=torch.float64)}
    table = tables["now"]

    def score(s: Tensor, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        return s + table[h, i] + tables["now"][h, j]

    for _ in range(3):
        output = gdpa.varlen_attention(*call.operands, call.cu_q, call.cu_k, activation=score, enable_gqa=True)
        torch.testing.assert_close(output, call.expected(score))
        table, tables["now"] = torch.randn(2, 4, 7, dtype=torch.float64).unbind()


def test_generated_names_do_not_hide_names_of_params() -> None:
    call, captured0 = Call("jagged"), numbers(4)

    def score(s: Tensor, b: Any, h: Any, i: Any, j: Any, captured0: Any) -> Tensor:
        return captured0[h] * s + SLOPE[h] + TABLE[h, i]

    output = gdpa.varlen_attention(
        *call.operands, call.cu_q, call.cu_k, activation=score, params={"captured0": captured0}, enable_gqa=True
    )
    torch.testing.assert_close(output, call.expected(lambda s, b, h, i, j: score(s, b, h, i, j, captured0)))


def test_a_nested_tensor_has_packed_tokens() -> None:
    case, call = CASES["time buckets"], Call("jagged")
    tensors = case.tensors(call)
    offsets = torch.tensor(starts(LENGTHS_Q)), torch.tensor(starts(LENGTHS_K)), torch.tensor(starts(LENGTHS_K))
    nested = [
        torch.nested.nested_tensor_from_jagged(tensor, of_tensor).transpose(1, 2)
        for tensor, of_tensor in zip(call.operands, offsets, strict=True)
    ]
    output = gdpa.generalized_dot_product_attention(*nested, case.text, params=tensors, enable_gqa=True)
    expected = call.expected(case.reference(call, **tensors))
    assert_same_gradients(output.transpose(1, 2).values(), expected, [*call.operands, tensors["w"]])


@pytest.mark.parametrize("is_causal", [False, True])
def test_dense_attention_takes_a_score_function(is_causal: bool) -> None:
    call = Call("dense")
    operands = [tensor.transpose(1, 2) for tensor in call.operands]

    def score(s: Tensor, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Tensor:
        return silu(s + BIAS[b, h, q_idx, kv_idx])

    def causal(s: Tensor, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        return torch.where(j <= i, score(s, b, h, i, j), 0.0) if is_causal else score(s, b, h, i, j)

    output = gdpa.generalized_dot_product_attention(*operands, score, is_causal=is_causal, enable_gqa=True)
    assert_same_gradients(output.transpose(1, 2).flatten(0, 1), call.expected(causal), [*call.operands, BIAS])


def test_nan_of_one_sequence_reaches_no_other_sequence() -> None:
    call = Call("jagged")
    bias = torch.randn(4, 4, 5, 6, dtype=torch.float64)
    bias[3] = float("nan")
    bias[2, :, 4:] = float("nan")  # sequence 2 has no keys
    bias.requires_grad_()
    output = gdpa.varlen_attention(
        *call.operands, call.cu_q, call.cu_k, activation="silu(s + bias[batch, head, q_idx, kv_idx])",
        params={"bias": bias},
        enable_gqa=True,
    )  # fmt: skip
    first, last = starts(LENGTHS_Q)[3], starts(LENGTHS_K)[3]
    assert output[first:].isnan().all()
    assert output[:first].isfinite().all()
    output.sum().backward()
    query, key, value = call.operands
    assert query.grad is not None and key.grad is not None and value.grad is not None and bias.grad is not None
    assert all(bool(grad.isfinite().all()) for grad in (query.grad[:first], key.grad[:last], value.grad[:last]))
    assert bias.grad[:3].isfinite().all()


def test_gradcheck_passes_for_tensors_that_are_read() -> None:
    call = Call("jagged")
    table, times = numbers(4, 6), numbers(call.tokens_k)

    def attention(query: Tensor, key: Tensor, value: Tensor, table: Tensor, times: Tensor) -> Tensor:
        return gdpa.varlen_attention(
            query, key, value, call.cu_q, call.cu_k,
            activation="silu(s * times[kv_row] + table[head, abs(q_idx - kv_idx)])",
            params={"table": table, "times": times}, enable_gqa=True,
        )  # fmt: skip

    assert torch.autograd.gradcheck(attention, (*call.operands, table, times))


def test_deterministic_gradients_have_the_same_bits() -> None:
    query, key, value = (torch.randn(300, 4, 16, requires_grad=True) for _ in range(3))
    cu = torch.tensor([0, 120, 300])
    table = torch.randn(4, 128, requires_grad=True)

    def gradient() -> Tensor:
        output = gdpa.varlen_attention(
            query, key, value, cu, cu, activation=CASES["table of distances"].text, params={"table": table},
            deterministic=True,
        )  # fmt: skip
        return torch.autograd.grad(output.square().sum(), table)[0]

    first = gradient()
    assert all(torch.equal(gradient(), first) for _ in range(3))


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("of_table", DTYPES, ids=str)
@pytest.mark.parametrize("of_query", DTYPES, ids=str)
def test_a_tensor_that_is_read_keeps_its_type(of_query: torch.dtype, of_table: torch.dtype) -> None:
    call = Call("jagged", of_query)
    table = numbers(4, 9, dtype=of_table)
    output = gdpa.varlen_attention(
        *call.operands, call.cu_q, call.cu_k, activation="silu(s + table[head, abs(q_idx - kv_idx)])",
        params={"table": table},
        enable_gqa=True,
    )  # fmt: skip
    exact = Call("jagged")
    exact.operands = [tensor.detach().double() for tensor in call.operands]
    table_exact = table.detach().double().requires_grad_()
    expected = exact.expected(lambda s, b, h, i, j: silu(s + table_exact[h, (i - j).abs()]))
    (grad,) = torch.autograd.grad(output, table, torch.ones_like(output))
    (grad_expected,) = torch.autograd.grad(expected.sum(), table_exact)
    assert grad.dtype == of_table
    coarse = max((of_query, of_table), key=lambda dtype: torch.finfo(dtype).eps)
    tolerance = 4 * torch.finfo(coarse).eps
    assert (output.double() - expected).norm() <= tolerance * expected.norm()
    assert (grad.double() - grad_expected).norm() <= tolerance * grad_expected.norm()


def test_tensors_keep_their_type_under_autocast() -> None:
    call = Call("jagged", torch.float32)
    table = torch.full((4, 9), 1.001, requires_grad=True)  # bfloat16 would round it to 1
    with torch.autocast("cpu", torch.bfloat16):
        output = gdpa.varlen_attention(
            *call.operands, call.cu_q, call.cu_k, activation="1e3 * (table[head, q_idx] - 1) * s",
            params={"table": table},
            enable_gqa=True,
        )  # fmt: skip
    assert output.dtype == torch.bfloat16
    assert output.abs().max() > 0.1
    output.float().sum().backward()
    assert table.grad is not None
    assert table.grad.dtype == torch.float32


def test_only_wanted_gradients_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[tuple[Tensor, ...]] = []

    def recorded(*arguments: Any) -> tuple[Tensor, ...]:
        computed.append(torch.ops.gdpa.backward.default(*arguments))
        return computed[-1]

    monkeypatch.setattr("gdpa._operators.backward", recorded)
    call = Call("jagged")
    operands = [tensor.detach() for tensor in call.operands]
    a, table, times = numbers(), numbers(4, 9), numbers(call.tokens_k)
    gdpa.varlen_attention(
        *operands, call.cu_q, call.cu_k, activation="a * s + table[head, q_idx] * times[kv_row]",
        params={"a": a, "table": table.detach(), "times": times}, enable_gqa=True,
    ).sum().backward()  # fmt: skip
    assert table.grad is None
    assert a.grad is not None and times.grad is not None
    assert [gradient.numel() for gradient in computed[0]] == [0, 0, 0, 1 + call.tokens_k, 0]


def test_a_name_with_a_number_hides_a_position() -> None:
    call = Call("jagged")
    output = gdpa.varlen_attention(
        *call.operands, call.cu_q, call.cu_k, activation="a * tanh(b * s) with a = 2, b = 0.5", enable_gqa=True
    )
    torch.testing.assert_close(output, call.expected(lambda s, b, h, i, j: 2 * torch.tanh(0.5 * s)))


def test_vmap_takes_one_slice_of_each_tensor() -> None:
    call, tables = Call("jagged"), torch.randn(3, 4, 9, dtype=torch.float64)
    operands = [tensor.detach() for tensor in call.operands]

    def attention(table: Tensor) -> Tensor:
        return gdpa.varlen_attention(
            *operands, call.cu_q, call.cu_k, activation="silu(s + table[head, q_idx])", params={"table": table},
            enable_gqa=True,
        )  # fmt: skip

    together = torch.func.vmap(attention)(tables)
    torch.testing.assert_close(together, torch.stack([attention(table) for table in tables]))


# torch.compile and torch.export ---------------------------------------------------------------------------------------


def test_an_empty_batch_has_no_numbers_of_rows() -> None:
    rows, table = torch.zeros(0, 2, 4), torch.ones(2, requires_grad=True)
    for cu in (torch.tensor([0]), torch.tensor([0, 0, 0])):
        output = gdpa.varlen_attention(
            rows, rows, rows, cu, cu, activation="silu(s + table[head] * (t[q_row] - t[kv_row]))",
            params={"t": torch.zeros(0, dtype=torch.int64), "table": table},
        )  # fmt: skip
        assert output.shape == (0, 2, 4) and torch.autograd.grad(output.sum(), table)[0].eq(0).all()


def test_a_captured_tensor_that_is_indexed_and_not_used_is_no_tensor_of_the_call() -> None:
    call = Call("jagged")

    def score(s: Tensor, b: Any, h: Any, q: Any, k: Any) -> Tensor:
        _ = TABLES[h, 0, k]
        return silu(s)

    output = gdpa.varlen_attention(*call.operands, call.cu_q, call.cu_k, activation=score, enable_gqa=True)
    torch.testing.assert_close(output, call.expected(lambda s, *place: silu(s)))


class Attention(torch.nn.Module):
    """A layer whose score function is made in each call and uses tensors of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(4, 9))
        self.slope = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cu: Tensor, times: Tensor) -> Tensor:
        def score(s: Tensor, b: Any, h: Any, q_idx: Any, kv_idx: Any, q_row: Any, kv_row: Any) -> Tensor:
            return silu(self.slope * s + self.table[h, (q_idx - kv_idx).abs()]) + times[q_row] - times[kv_row]

        return gdpa.varlen_attention(query, key, value, cu, cu, activation=score)


class WithParams(Attention):
    """The same layer with a text and params."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cu: Tensor, times: Tensor) -> Tensor:
        return gdpa.varlen_attention(
            query, key, value, cu, cu,
            activation="silu(slope * s + table[head, abs(q_idx - kv_idx)]) + times[q_row] - times[kv_row]",
            params={"slope": self.slope, "table": self.table, "times": times},
        )  # fmt: skip


class Masked(Attention):
    """A layer whose mask function uses a tensor of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("widths", torch.tensor([1, 2, 3, 4]))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cu: Tensor, times: Tensor) -> Tensor:
        def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return (kv_idx <= q_idx) & (q_idx - kv_idx < self.widths[h])

        return gdpa.varlen_attention(
            query, key, value, cu, cu, activation="silu(slope * s)", params={"slope": self.slope}, mask=mask
        )


def arguments_of(lengths: list[int]) -> list[Tensor]:
    tokens = sum(lengths)
    return [*torch.randn(3, tokens, 4, 8).unbind(), torch.tensor(starts(lengths)), torch.rand(tokens)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layer", [Attention, WithParams])
def test_torch_compile_makes_one_graph_with_gradients(layer: type[torch.nn.Module], dynamic: bool) -> None:
    torch.compiler.reset()
    module = layer()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for lengths in ([3, 5], [4, 0, 2]):
        query, *arguments = arguments_of(lengths)
        query.requires_grad_()
        inputs = [query, *module.parameters()]
        output, expected = compiled(query, *arguments), module(query, *arguments)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(
            torch.autograd.grad(output.square().sum(), inputs), torch.autograd.grad(expected.square().sum(), inputs)
        )


def test_torch_compile_sees_a_rebound_tensor() -> None:
    torch.compiler.reset()
    table = torch.zeros(4, 9)
    query, key, value, cu, _ = arguments_of([3, 5])

    def score(s: Tensor, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        return s + table[h, (i - j).abs()]

    def attention() -> Tensor:
        return gdpa.varlen_attention(query, key, value, cu, cu, activation=score)

    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(), attention())
        table = torch.randn(4, 9)


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("layer", [Attention, WithParams, Masked])
def test_torch_export_keeps_tensors_as_parameters(layer: type[torch.nn.Module], strict: bool) -> None:
    module, arguments = layer(), arguments_of([3, 5])
    exported = torch.export.export(module, tuple(arguments), strict=strict).module()
    torch.testing.assert_close(exported(*arguments), module(*arguments))
    with torch.no_grad():
        for tensor in (*module.parameters(), *exported.parameters()):
            tensor.mul_(2)
    torch.testing.assert_close(exported(*arguments), module(*arguments))


# Errors ---------------------------------------------------------------------------------------------------------------

ROWS = torch.randn(5, 4, 8)
ERRORS: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "a tensor that is not given": (
        ValueError, "no tensor is given for table", {"activation": "s + table[head, q_idx]"}
    ),
    "a number that is read by index": (
        ValueError, "table is a number and has no axes", {"activation": "s + table[head]", "params": {"table": 2.0}}
    ),
    "too few axes": (
        ValueError, r"parameter table: expected rank 2, one axis for each index in .* got rank 1 with shape \(4,\)",
        {"activation": "s + table[head, q_idx]", "params": {"table": torch.ones(4)}},
    ),
    "too many axes": (
        ValueError, "parameter table: expected rank 4 at most, got rank 5",
        {"activation": "s + table[head, q_idx]", "params": {"table": torch.ones(1, 1, 1, 1, 1)}},
    ),
    "no elements": (
        ValueError, "parameter table: expected at least one element",
        {"activation": "s + table[head, q_idx]", "params": {"table": torch.ones(4, 0)}},
    ),
    "a dtype": (
        TypeError, "parameter table: expected dtype float32, bfloat16, float16, int32 or int64, got uint8",
        {"activation": "s + table[head, q_idx]", "params": {"table": torch.ones(4, 4, dtype=torch.uint8)}},
    ),
    "a device": (
        TypeError, "parameter table: expected device cpu, as the query's, got meta",
        {"activation": "s + table[head, q_idx]", "params": {"table": torch.ones(4, 4, device="meta")}},
    ),
    "a name in the text and in params": (
        ValueError, "parameter a is given twice", {"activation": "a * s with a = 2", "params": {"a": torch.ones(())}}
    ),
    "an index with a fraction": (
        ValueError, "is no integer; round it with floor",
        {"activation": "s + t[q_idx / 2]", "params": {"t": torch.ones(4)}},
    ),
    "an index of a floating dtype": (
        TypeError, "parameter t: expected dtype int32 or int64, because it is an index",
        {"activation": "s + w[t[q_idx]]", "params": {"t": torch.ones(9), "w": torch.ones(4)}},
    ),
    "an index that depends on the score": (
        ValueError, "depends on the score", {"activation": "t[floor(s)]", "params": {"t": torch.ones(4)}}
    ),
    "a nested tensor": (
        TypeError, r"expected a dense tensor for 't', got a nested one; pass its .values\(\)",
        {
            "activation": "s + t[q_idx]",
            "params": {"t": torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)},
        },
    ),
    "a captured tensor without an index": (
        ValueError, r"with an index for each axis, got shape \(4,\); index it",
        {"activation": lambda s: s * ROWS[0, :, 0]},
    ),
    "too few indices of a captured tensor": (
        ValueError, r"expected 3 indices, one for each axis of the captured tensor of shape \(5, 4, 8\), got 1",
        {"activation": lambda s, b, h, i, j: s + ROWS[i]},
    ),
    "a slice with a position": (
        ValueError, "expected positions and whole numbers as indices, got slice",
        {"activation": lambda s, b, h, i, j: s + ROWS[i, :, 0]},
    ),
    "a captured index with a fraction": (
        ValueError, "is no integer; round it with floor", {"activation": lambda s, b, h, i, j: s + ROWS[i / 2, 0, 0]}
    ),
    "a negative index of a tensor of unknown size": (
        ValueError, "expected an index of at least 0, got -1",
        {"activation": lambda s, t: s + t[-1], "params": {"t": torch.ones(4)}},
    ),
    "a position as a name": (
        ValueError, "expected other names than batch, head, q_idx, kv_idx, q_row, kv_row for a function of positions",
        {"activation": lambda s, b, h, q, k, *, head: s, "params": {"head": torch.ones(4)}},
    ),
    "a position without the others": (
        ValueError, r"got a function of \(s, b\); pass params=\{'b': 2.0\}, or give it all five arguments",
        {"activation": lambda s, b: s * torch.sigmoid(b * s)},
    ),
    "a conversion to a narrow type": (
        ValueError, r"got Tensor.to\(torch.int8\)", {"activation": lambda s, b, h, i, j: s + i.to(torch.int8)}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_what_was_expected(name: str) -> None:
    error, message, arguments = ERRORS[name]
    with pytest.raises(error, match=message):
        gdpa.varlen_attention(ROWS, ROWS, ROWS, None, None, **arguments)


def test_the_reference_and_gdpa_agree_on_a_sequence_by_hand() -> None:
    one = torch.ones(2, 1, 1, dtype=torch.float64)
    bias = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    output = gdpa.varlen_attention(
        one, one, one, None, None, activation="s + bias[q_idx, kv_idx]", params={"bias": bias}
    )
    assert output.flatten().tolist() == [5.0, 9.0]
    assert torch.equal(output, one_sequence(lambda s, b, h, i, j: s + bias[i, j], 0, one, one, one))
