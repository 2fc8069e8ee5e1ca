"""gdpa.nn: every block agrees with its padded twin, in values and gradients, and works with PyTorch's tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import nn_twins as twins
import pytest
import torch
import torch.nn.functional as F
from reference import offsets
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gdpa

D, H, N = 12, 3, 4
LENGTHS = [5, 0, 1, 9, 3]
Make = Callable[[], nn.Module]


@dataclass(frozen=True)
class Block:
    """A block, its inputs, and its twin. `inputs` makes the dense inputs (B, ...) or the inputs of rows (T, ...)."""

    make: Make
    twin: Callable[..., Any]
    dense: tuple[tuple[int, ...], ...] = ()  # the shapes of the dense inputs without the batch
    dense_first: bool = False
    times: bool = False
    returns_rows: bool = True

    def inputs(self, lengths: Sequence[int], dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """The rows, then the dense inputs."""
        generator = torch.Generator().manual_seed(len(lengths))
        shapes = [(sum(lengths), D), *((len(lengths), *shape) for shape in self.dense)]
        return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]

    def times_of(self, lengths: Sequence[int]) -> Tensor | None:
        if not self.times:
            return None
        # Sequences are years apart, and float32 does not have the seconds of all of them.
        generator = torch.Generator().manual_seed(1)
        years = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))
        seconds = torch.randint(0, 5000, (sum(lengths),), generator=generator).sort().values
        return 1_600_000_000 + 31_536_000 * years + seconds

    def run(self, module: Callable[..., Any], inputs: Sequence[Tensor], cu: Tensor | None, times: Tensor | None) -> Any:
        rows, *dense = inputs
        keywords = {} if times is None else {"times": times}
        if cu is not None:
            keywords["cu_seqlens"] = cu
        return module(*dense, rows, **keywords) if self.dense_first else module(rows, *dense, **keywords)

    def run_twin(self, weights: twins.Weights, inputs: Sequence[Tensor], lengths: Sequence[int]) -> Any:
        rows, *dense = inputs
        if self.dense_first:
            return self.twin(weights, *dense, rows, lengths)
        if self.times:
            return self.twin(weights, rows, lengths, self.times_of(lengths))
        return self.twin(weights, rows, lengths, *dense)


def swish(s: Tensor) -> Tensor:
    return s * torch.sigmoid(1.5 * s)


def cross_of_dense(w: twins.Weights, rows: Tensor, lengths: Sequence[int], context: Tensor) -> Tensor:
    return twins.cross_attention(w, rows, lengths, context.flatten(0, 1), [context.shape[1]] * len(lengths), H)


BLOCKS = {
    "GDPAttention": Block(
        lambda: gdpa.nn.GDPAttention(D, H, activation=swish, norm=nn.LayerNorm(D), window_size=(2, 0)),
        partial(twins.self_attention, heads=H, function=swish, causal=True, left=2),
    ),
    "GDPACrossAttention": Block(lambda: gdpa.nn.GDPACrossAttention(D, H, context_dim=7), cross_of_dense, ((N, 7),)),
    "PFFN": Block(
        lambda: gdpa.nn.PFFN(D, H, activation="silu", tau=20.0),
        partial(twins.pffn, heads=H, function=F.silu, tau=20.0),
        ((N, D),),
    ),
    "PFFN with MLPs": Block(
        lambda: gdpa.nn.PFFN(D, H, context_dim=7, hidden=9),
        partial(twins.pffn, heads=H, function=F.gelu, tau=None),
        ((N, 7),),
    ),
    "PFFN shared": Block(
        lambda: gdpa.nn.PFFN(D, H, rows=N), partial(twins.pffn, context=None, heads=H, function=F.gelu, tau=None)
    ),
    "PFFN linear": Block(
        lambda: gdpa.nn.PFFN(D, H, activation="identity"), partial(twins.linear_pffn, heads=H, tau=None), ((N, D),)
    ),
    "PMA": Block(lambda: gdpa.nn.PMA(D, H, 2), partial(twins.pma, heads=H), returns_rows=False),
    "HSP": Block(lambda: gdpa.nn.HSP(D, H, 6, 2, rank=3), partial(twins.hsp, heads=H), returns_rows=False),
    "HSTULayer": Block(
        lambda: gdpa.nn.HSTULayer(D, H, value_dim=5, positions=4, time_buckets=9),
        partial(twins.hstu, heads=H, value_dim=5),
        times=True,
    ),
    "HSTULayer with a learned function": Block(
        lambda: gdpa.nn.HSTULayer(D, H, activation="a * s * sigmoid(s)", params={"a": torch.ones(H)}, positions=4),
        partial(twins.hstu, times=None, heads=H, value_dim=N),
    ),
    "HSTULayer without bias": Block(
        lambda: gdpa.nn.HSTULayer(D, H), partial(twins.hstu, times=None, heads=H, value_dim=N)
    ),
    "InterFormer": Block(
        lambda: gdpa.nn.InterFormer(D, H, 2, features=8, summary=2, queries=2, recent=3, window_size=(3, 0)),
        partial(twins.interformer, heads=H, layers=2, recent=3, left=3),
        ((8, D),),
        dense_first=True,
        returns_rows=False,
    ),
    "Kunlun": Block(
        lambda: gdpa.nn.Kunlun(D, H, 4, features=8, summary=2, seeds=6, tokens=3, window_size=(2, 0), tau=10.0),
        partial(twins.kunlun, heads=H, layers=4, tau=10.0, left=2),
        ((8, D),),
        dense_first=True,
        returns_rows=False,
    ),
}
# One block of each kind of code, for the slow tools.
KINDS = ["GDPAttention", "GDPACrossAttention", "PFFN", "PMA", "HSP", "HSTULayer", "InterFormer", "Kunlun"]
every_block = pytest.mark.parametrize("name", list(BLOCKS))
every_kind = pytest.mark.parametrize("name", KINDS)


def made(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A block with weights that are not at a special place, as zeros would be."""
    torch.manual_seed(3)
    module = BLOCKS[name].make().to(dtype)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return module


def loss_of(outputs: Any) -> Tensor:
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    dense = [one.values() if one.is_nested else one for one in outputs]
    return sum((one.double() * torch.linspace(-1, 1, one.numel()).view_as(one)).sum() for one in dense)  # type: ignore[return-value]


def results(block: Block, module: nn.Module, run: Callable[[Sequence[Tensor]], Any], inputs: Sequence[Tensor]) -> Any:
    """The outputs and the gradients of the inputs and of the weights."""
    outputs = run(inputs)
    gradients = torch.autograd.grad(loss_of(outputs), [*inputs, *module.parameters()], allow_unused=True)
    return outputs, [torch.zeros(()) if g is None else g for g in gradients]


def assert_equal(got: Any, wanted: Any, **bounds: float) -> None:
    torch.testing.assert_close(got[0], wanted[0], **bounds)
    for one, other in zip(got[1], wanted[1], strict=True):
        torch.testing.assert_close(one, other, **bounds)


@every_block
@pytest.mark.parametrize("lengths", [LENGTHS, [0, 0], [1], []], ids=["jagged", "no events", "one event", "no users"])
def test_a_block_agrees_with_its_padded_twin(name: str, lengths: list[int]) -> None:
    block, module = BLOCKS[name], made(name)
    inputs, cu, times = block.inputs(lengths), offsets(lengths), block.times_of(lengths)
    got = results(block, module, lambda x: block.run(module, x, cu, times), inputs)
    if not lengths:  # a twin pads to the longest sequence, which a batch without users does not have
        assert all(bool((g == 0).all()) for g in got[1])
        return
    weights = dict(module.named_parameters())
    wanted = results(block, module, lambda x: block.run_twin(weights, x, lengths), inputs)
    assert_equal(got, wanted, rtol=1e-7, atol=1e-9)


@every_block
def test_every_weight_has_a_gradient(name: str) -> None:
    """A weight without effect would stop DDP, and its computation would be wasted."""
    block, module = BLOCKS[name], made(name)
    loss_of(block.run(module, block.inputs(LENGTHS), offsets(LENGTHS), block.times_of(LENGTHS))).backward()
    assert not [name for name, weight in module.named_parameters() if weight.grad is None]


@every_block
def test_nested_tensors_give_the_same_numbers(name: str) -> None:
    block, module = BLOCKS[name], made(name)
    inputs, cu, times = block.inputs(LENGTHS), offsets(LENGTHS, torch.int64), block.times_of(LENGTHS)

    def nested(x: Sequence[Tensor]) -> Any:
        return block.run(module, [torch.nested.nested_tensor_from_jagged(x[0], cu), *x[1:]], None, times)

    got = results(block, module, nested, inputs)
    wanted = results(block, module, lambda x: block.run(module, x, cu, times), inputs)
    if block.returns_rows:
        assert got[0].is_nested and got[0].shape[0] == len(LENGTHS)
        got = got[0].values(), got[1]
    assert_equal(got, wanted)


@every_block
def test_a_state_dict_carries_all_numbers(name: str) -> None:
    block, module = BLOCKS[name], made(name)
    other = block.make().double()
    other.load_state_dict(module.state_dict())
    inputs, cu, times = block.inputs(LENGTHS), offsets(LENGTHS), block.times_of(LENGTHS)
    torch.testing.assert_close(block.run(other, inputs, cu, times), block.run(module, inputs, cu, times))
    assert set(module.state_dict()) == {name for name, _ in module.named_parameters()}


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in ("InterFormer", "Kunlun") else ()) for name in KINDS]
)
def test_changing_lengths_compile_once(name: str, fresh_compiler: None) -> None:
    block, module = BLOCKS[name], made(name)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for count, lengths in enumerate([LENGTHS, [7, 2, 4], [0, 20]]):
        inputs, cu, times = block.inputs(lengths), offsets(lengths), block.times_of(lengths)
        with torch._dynamo.config.patch(error_on_recompile=count > 0):
            got = results(block, module, lambda x, cu=cu, times=times: block.run(compiled, x, cu, times), inputs)
        wanted = results(block, module, lambda x, cu=cu, times=times: block.run(module, x, cu, times), inputs)
        assert_equal(got, wanted)


@every_kind
def test_autocast_computes_in_bfloat16(name: str) -> None:
    block, module = BLOCKS[name], made(name, torch.float32)
    inputs, cu, times = block.inputs(LENGTHS, torch.float32), offsets(LENGTHS), block.times_of(LENGTHS)
    wanted = results(block, module, lambda x: block.run(module, x, cu, times), inputs)
    with torch.autocast("cpu", torch.bfloat16):
        got = results(block, module, lambda x: block.run(module, x, cu, times), inputs)
    for one, other in zip(got[1], wanted[1], strict=True):
        assert one.dtype == torch.float32 or one.dim() == 0
        assert float((one - other).norm()) <= 0.1 * float(other.norm()) + 0.05


@pytest.mark.parametrize("is_shared", [True, False])
def test_autocast_does_not_round_the_rows_of_a_pffn(is_shared: bool) -> None:
    """S has fp32 numbers that bfloat16 does not have. Without values, Y is S."""
    module = gdpa.nn.PFFN(D, H, rows=6 if is_shared else None)
    for name, parameter in module.named_parameters():
        if "value" in name:
            torch.nn.init.zeros_(parameter)
    rows, cu = torch.randn(sum(LENGTHS), D, requires_grad=True), offsets(LENGTHS)
    context = None if is_shared else torch.randn(len(LENGTHS), 3, D)
    weights = torch.randn_like(rows)
    with torch.autocast("cpu", torch.bfloat16):
        output = module(rows, context, cu)
    assert output.dtype == torch.float32 and torch.equal(output, rows)
    assert torch.equal(torch.autograd.grad((output * weights).sum(), rows)[0], weights)


@every_kind
def test_checkpointing_changes_no_gradient(name: str) -> None:
    block, module = BLOCKS[name], made(name)
    inputs, cu, times = block.inputs(LENGTHS), offsets(LENGTHS), block.times_of(LENGTHS)

    def run(x: Sequence[Tensor]) -> Any:
        return checkpoint(lambda *x: block.run(module, x, cu, times), *x, use_reentrant=False)

    got = results(block, module, run, inputs)
    wanted = results(block, module, lambda x: block.run(module, x, cu, times), inputs)
    assert_equal(got, wanted)


def test_a_context_may_be_jagged() -> None:
    module = made("GDPACrossAttention")
    of_context = [2, 6, 0, 3, 1]
    rows, context = torch.randn(sum(LENGTHS), D).double(), torch.randn(sum(of_context), 7).double()
    got = module(rows, context, offsets(LENGTHS), offsets(of_context))
    wanted = twins.cross_attention(dict(module.named_parameters()), rows, LENGTHS, context, of_context, H)
    torch.testing.assert_close(got, wanted)


def test_a_function_may_have_learned_numbers_and_a_bias_of_the_call() -> None:
    module = gdpa.nn.GDPAttention(
        D, H, activation="a * s * sigmoid(b * s) + bias[b0[0], q_idx, kv_idx]",
        params={"a": torch.full((H,), 1.5), "b": torch.tensor(0.7), "b0": torch.tensor([0])},
    ).double()  # fmt: skip
    assert set(module.attend.learned) == {"a", "b"} and "attend.b0" in module.state_dict()
    bias = torch.randn(1, 9, 9, requires_grad=True)
    rows = torch.randn(sum(LENGTHS), D).double()
    module(rows, offsets(LENGTHS), params={"bias": bias}).sum().backward()
    assert module.attend.learned["a"].grad.shape == (H,)
    assert bias.grad is not None and bias.grad[0, :5, :5].abs().min() > 0


def test_rows_of_no_sequence_reach_no_other_row() -> None:
    for name in ("GDPAttention", "InterFormer", "Kunlun", "PMA"):
        block, module = BLOCKS[name], made(name)
        inputs, cu = block.inputs(LENGTHS), offsets(LENGTHS) + 2
        wanted = block.run(module, inputs, offsets(LENGTHS), None)
        rows = F.pad(inputs[0], (0, 0, 2, 3), value=7.0)
        got = block.run(module, [rows, *inputs[1:]], cu, None)
        torch.testing.assert_close(got[2:-3] if block.returns_rows else got, wanted)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gdpa.nn.GDPAttention(10, 3), "heads: expected a divisor of dim = 10, got 3"),
        (lambda: gdpa.nn.PFFN(10, 3), "heads: expected a divisor of dim = 10, got 3"),
        (lambda: made("GDPAttention")(torch.zeros(3, D).double()), "cu_seqlens: expected the offsets"),
        (lambda: made("GDPAttention")(torch.zeros(1, 3, D).double()), r"x: expected rows of shape \(T, D\)"),
        (
            lambda: made("PFFN")(torch.zeros(3, D).double(), torch.zeros(2, N, D).double(), offsets([1, 1, 1])),
            r"context: expected shape \(B, n, D\) with B = 3, the number of sequences, got \(2, 4, 12\)",
        ),
        (lambda: made("PFFN")(torch.zeros(3, D).double(), cu_seqlens=offsets([3])), "context: expected the summary"),
        (
            lambda: made("InterFormer")(torch.zeros(2, 8, D).double(), torch.zeros(3, D).double(), offsets([3])),
            "x: expected shape .* with B = 1",
        ),
        (lambda: made("HSTULayer")(torch.zeros(3, D).double(), offsets([3])), "times: expected one number for each"),
        (
            lambda: made("HSTULayer")(torch.zeros(3, D).double(), offsets([3]), torch.zeros(4)),
            r"times: expected shape \(3,\)",
        ),
        (lambda: gdpa.nn.Kunlun(D, H, 1, features=3, experts=4), "experts: expected a number from 1 to 3"),
        (lambda: made("GDPAttention")(torch.zeros(3, D).double(), offsets([4])), "cu_seqlens_q: expected"),
    ],
)
def test_a_wrong_call_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
