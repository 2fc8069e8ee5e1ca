"""Arguments of varlen_attention that a block of gdpa.nn keeps, and arguments of a single call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import offsets
from torch import Tensor, nn

import gdpa

D, H = 12, 3
LENGTHS = [5, 0, 4]
B, T = len(LENGTHS), sum(LENGTHS)
CU = offsets(LENGTHS)
ROWS = torch.randn(T, D, generator=torch.Generator().manual_seed(1)).double()
DENSE = torch.randn(B, 8, D, generator=torch.Generator().manual_seed(2)).double()

#: Each block with options, and a call of it.
BLOCKS: dict[str, tuple[Callable[..., nn.Module], Callable[[nn.Module], Any]]] = {
    "GDPA": (gdpa.nn.GDPA, lambda block: block(*[ROWS.unflatten(1, (H, -1))] * 3, CU, CU)),
    "GDPAttention": (lambda **options: gdpa.nn.GDPAttention(D, H, **options), lambda block: block(ROWS, CU)),
    "GDPACrossAttention": (
        lambda **options: gdpa.nn.GDPACrossAttention(D, H, **options), lambda block: block(ROWS, DENSE, CU)
    ),
    "PFFN": (lambda **options: gdpa.nn.PFFN(D, H, **options), lambda block: block(ROWS, DENSE, CU)),
    "PMA": (lambda **options: gdpa.nn.PMA(D, H, 2, **options), lambda block: block(ROWS, CU)),
    "HSP": (lambda **options: gdpa.nn.HSP(D, H, 6, 2, **options), lambda block: block(ROWS, CU)),
    "HSTULayer": (lambda **options: gdpa.nn.HSTULayer(D, H, **options), lambda block: block(ROWS, CU)),
    "InterFormer": (
        lambda **options: gdpa.nn.InterFormer(D, H, 1, features=8, **options), lambda block: block(DENSE, ROWS, CU)
    ),
    "Kunlun": (
        lambda **options: gdpa.nn.Kunlun(D, H, 2, features=8, seeds=6, tokens=3, **options),
        lambda block: block(DENSE, ROWS, CU),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BLOCKS))
def test_a_tensor_of_the_options_belongs_to_the_block(name: str) -> None:
    make, call = BLOCKS[name]
    torch.manual_seed(0)
    block = make(out_scale=torch.tensor([0.5, 2.0, 3.0])).double()
    buffers = dict(block.named_buffers())
    assert buffers and all(buffer.dtype == torch.float32 for buffer in buffers.values())
    assert buffers.keys() <= block.state_dict().keys()

    copied = copy.deepcopy(block)
    torch.testing.assert_close(call(copied), call(block), rtol=0, atol=0)
    for buffer in copied.buffers():
        buffer.mul_(2)
    assert all(torch.equal(buffer, torch.tensor([0.5, 2.0, 3.0])) for buffer in block.buffers())

    block.load_state_dict(copied.state_dict())
    torch.testing.assert_close(call(block), call(copied), rtol=0, atol=0)
    assert all(tensor.is_meta for tensor in block.to("meta").state_dict().values())


def prefix_of(lengths: list[int]) -> gdpa.mask.Mask:
    return gdpa.mask.prefix(torch.tensor(lengths)) | gdpa.mask.causal()


def test_the_tensors_of_a_mask_belong_to_the_block() -> None:
    block = gdpa.nn.GDPAttention(D, H, mask=prefix_of([3, 0, 2])).double()
    wanted = block(ROWS, CU)
    assert block.state_dict()["attend.options.mask.lengths"].tolist() == [3, 0, 2]
    torch.testing.assert_close(copy.deepcopy(block)(ROWS, CU), wanted)

    other = gdpa.nn.GDPAttention(D, H, mask=prefix_of([1, 1, 1])).double()
    other.load_state_dict(block.state_dict())
    torch.testing.assert_close(other(ROWS, CU), wanted)
    assert block.to("meta").attend.options.arguments()["mask"].tensors["lengths"].is_meta


def test_a_batch_map_belongs_to_the_block() -> None:
    kv_of = torch.tensor([1, 1, 0])
    block = gdpa.nn.GDPACrossAttention(D, H, kv_of=kv_of).double()
    assert block.state_dict()["attend.options.kv_of"] is not None
    torch.testing.assert_close(block(ROWS, DENSE, CU), block(ROWS, DENSE[kv_of], CU, kv_of=torch.arange(B)))


def test_numbers_keep_their_digits_in_a_model_of_bfloat16() -> None:
    """bfloat16 rounds 1 / 200 to 0.004997, and varlen_attention refuses it."""
    scale, times = torch.full((B,), 1 / 200), torch.arange(T, dtype=torch.float32) + 4096
    mask = gdpa.mask.Mask("times[q_row] - times[kv_row] < 3", {"times": times})
    block = gdpa.nn.GDPAttention(D, H, out_scale=scale, mask=mask).to(torch.bfloat16)
    assert torch.equal(block.attend.options.out_scale, scale)
    assert torch.equal(block.attend.options.arguments()["mask"].tensors["times"], times)
    assert block(ROWS.to(torch.bfloat16), CU).dtype == torch.bfloat16


def test_a_tensor_with_a_gradient_is_a_parameter() -> None:
    given = nn.Parameter(torch.ones(T, 1, dtype=torch.float64))
    for tensor in (given, torch.ones(T, 1, dtype=torch.float64, requires_grad=True)):
        block = gdpa.nn.GDPAttention(D, H, out_scale=tensor).double()
        learned = block.get_parameter("attend.options.out_scale")
        assert learned is tensor or tensor is not given
        block(ROWS, CU).sum().backward()
        assert learned.grad is not None and learned.grad.abs().min() > 0


def test_modules_of_the_options_belong_to_the_block() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.tensor(2.0))

        def forward(self, s: Tensor) -> Tensor:
            return self.a * s

    class Near(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("width", torch.tensor([1, 2, 3]))

        def forward(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return q_idx - kv_idx < self.width[h]

    block = gdpa.nn.GDPAttention(D, H, activation=["silu", Scaled(), Scaled()], mask=Near()).double()
    assert {"attend.functions.0.a", "attend.functions.1.a", "attend.options.mask.width"} <= block.state_dict().keys()
    copied = copy.deepcopy(block)
    with torch.no_grad():
        copied.attend.functions[1].a.mul_(2)
    assert not torch.equal(copied(ROWS, CU), block(ROWS, CU))
    copied(ROWS, CU).sum().backward()
    assert copied.attend.functions[0].a.grad is not None and block.attend.functions[0].a.grad is None


def test_blocks_made_from_one_tensor_learn_apart() -> None:
    a = torch.ones(H)
    one, other = (gdpa.nn.GDPAttention(D, H, activation="a * silu(s)", params={"a": a}) for _ in range(2))
    with torch.no_grad():
        one.attend.learned["a"].add_(1)
    assert other.attend.learned["a"].tolist() == a.tolist() == [1.0] * H
    shared = nn.Parameter(a)
    assert gdpa.nn.GDPA("a * silu(s)", {"a": shared}).learned["a"] is shared


def test_a_block_with_tensors_is_compiled_and_exported() -> None:
    block = gdpa.nn.GDPAttention(D, H, out_scale=torch.tensor([0.5, 2.0, 3.0]), mask=prefix_of([3, 0, 2])).double()
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(block, (ROWS, CU))
    torch.testing.assert_close(compiled(ROWS, CU), block(ROWS, CU))
    torch.testing.assert_close(exported.module()(ROWS, CU), block(ROWS, CU))
    assert set(exported.state_dict) == set(block.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out_scale": torch.ones(B, requires_grad=True) * 2}, "out_scale: expected a tensor with a gradient of"),
        ({"mask": gdpa.mask.Mask("half[b] > j", {"half": CU[1:]})}, "half: expected a name that nn.Module"),
        (
            {"mask": gdpa.prepare_mask(gdpa.varlen_attention, *[ROWS[:, None]] * 3, CU, CU, mask=prefix_of([1, 2, 3]))},
            "mask: expected a mask that gdpa.prepare_mask has not prepared",
        ),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gdpa.nn.GDPAttention(D, H, **options)


# Arguments of a call --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GDPAttention", "HSTULayer"])
def test_a_mask_of_a_call_replaces_the_window_of_the_block(name: str) -> None:
    options = {"window_size": (-1, 0)} if name == "GDPAttention" else {}
    block = BLOCKS[name][0](**options).double()
    mask = prefix_of([3, 0, 2])
    wanted = block(ROWS, CU, mask=mask, window_size=(-1, -1))
    assert torch.equal(block(ROWS, CU, mask=mask), wanted) and not torch.equal(block(ROWS, CU), wanted)
    assert torch.equal(block(ROWS, CU, mask="causal"), block(ROWS, CU))
    assert torch.equal(block(ROWS, CU, mask=None), block(ROWS, CU))
    both = block(ROWS, CU, mask=gdpa.mask.causal() & mask)
    torch.testing.assert_close(both, block(ROWS, CU))


def test_a_window_of_a_call_replaces_the_mask_of_the_block() -> None:
    torch.manual_seed(0)
    masked = gdpa.nn.GDPAttention(D, H, mask=prefix_of([3, 0, 2])).double()
    torch.manual_seed(0)
    windowed = gdpa.nn.GDPAttention(D, H, window_size=(1, 0), diagonal="upper_left").double()
    assert torch.equal(masked(ROWS, CU, window_size=(1, 0)), windowed(ROWS, CU))
    assert torch.equal(masked(ROWS, CU, mask=None), masked(ROWS, CU))
    assert torch.equal(windowed(ROWS, CU, mask=prefix_of([3, 0, 2])), masked(ROWS, CU))


def test_params_of_a_call_are_added_to_those_of_the_block() -> None:
    block = gdpa.nn.GDPAttention(
        D,
        H,
        activation="c * silu(a * s + bias[batch, head, q_idx, kv_idx])",
        params={"a": torch.full((H,), 1.5), "c": 3.0},
    ).double()
    bias = torch.randn(B, H, 5, 5)
    a, c = torch.full((H,), 1.5), torch.tensor(2.0)
    wanted = block(ROWS, CU, params={"a": a, "bias": bias, "c": 3.0})
    torch.testing.assert_close(block(ROWS, CU, params={"bias": bias}), wanted)
    of_call = block(ROWS, CU, params={"bias": bias, "c": c})
    torch.testing.assert_close(of_call, block(ROWS, CU, params={"bias": bias, "c": 2.0}))
    assert not torch.equal(of_call, wanted)
