"""HSTULayer: the differences of its times, its buckets, and weights of the research code."""

from __future__ import annotations

from typing import Any

import nn_twins as twins
import pytest
import torch
import torch.nn.functional as F
from reference import offsets
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import gdpa

D, H = 12, 3
DAYS = 1157
RESEARCH = "log(max(1, abs(t))) / 0.301"


def layer_with_tables(**arguments: Any) -> gdpa.nn.HSTULayer:
    """A layer of which every bucket and every relative position has another number."""
    torch.manual_seed(0)
    layer = gdpa.nn.HSTULayer(D, H, **arguments).double()
    with torch.no_grad():
        for table in layer.attend.learned.values():
            table.normal_()
    return layer


def history(unit: int) -> tuple[Tensor, list[int]]:
    """Times since 1970 over 1,157 days, in `unit` parts of a second. Many events are 0 or 3 s apart."""
    generator = torch.Generator().manual_seed(0)
    lengths = [40, 0, 17]
    times = [1_600_000_000 + torch.randint(0, DAYS * 86_400, (n,), generator=generator).sort().values for n in lengths]
    for of_user in times:
        of_user[1::3] = of_user[0::3][: len(of_user[1::3])]
        of_user[2::3] = of_user[0::3][: len(of_user[2::3])] + 3
    return torch.cat(times) * unit, lengths


@pytest.mark.parametrize(
    ("unit", "dtype"), [(1, torch.int32), (1, torch.int64), (1000, torch.int64), (1_000_000, torch.int64)]
)
@pytest.mark.parametrize("causal", [True, False])
def test_integer_times_keep_their_differences(unit: int, dtype: torch.dtype, causal: bool) -> None:
    """Since the first event of the history, float32 has steps of 8 s."""
    times, lengths = history(unit)
    layer = layer_with_tables(time_buckets=60, causal=causal)
    rows = torch.randn(sum(lengths), D, dtype=torch.float64)
    got = layer(rows, offsets(lengths), times.to(dtype))
    weights = dict(layer.named_parameters())
    torch.testing.assert_close(got, twins.hstu(weights, rows, lengths, times, H, D // H, causal=causal))


def test_floating_times_have_the_differences_of_their_dtype() -> None:
    times = torch.tensor([0.0, 0.25, 3.5, 2.0**30], dtype=torch.float64)
    layer, rows = layer_with_tables(time_buckets=40), torch.randn(4, D, dtype=torch.float64)
    wanted = twins.hstu(dict(layer.named_parameters()), rows, [4], times, H, D // H)
    for dtype in (torch.float32, torch.float64):
        torch.testing.assert_close(layer(rows, offsets([4]), times.to(dtype)), wanted)


@pytest.mark.parametrize(
    ("dtype", "device"),
    [(torch.bfloat16, "cpu"), (torch.float16, "cpu"), (torch.int16, "cpu"), (torch.float64, "meta")],
)
def test_times_that_would_lose_digits_are_refused(dtype: torch.dtype, device: str) -> None:
    """A GPU has no times of float64. The device meta stands for it."""
    layer, rows = layer_with_tables(time_buckets=4).to(device), torch.zeros(3, D, device=device, dtype=torch.float64)
    with pytest.raises(TypeError, match="times: expected dtype int32, int64 or float32, or float64 on the CPU, got"):
        layer(rows, offsets([3]).to(device), torch.zeros(3, dtype=dtype, device=device))


def test_the_layer_computes_nothing_from_times() -> None:
    """Each operation is a launch on a GPU, where the host needs more time for a small layer than the device."""
    seen: list[Any] = []
    times = torch.arange(7)

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            flat = torch.utils._pytree.tree_leaves((args, kwargs))
            if any(one is times or (isinstance(one, Tensor) and one._base is times) for one in flat):
                seen.append(func)
            return func(*args, **(kwargs or {}))

    layer, rows = layer_with_tables(time_buckets=4), torch.randn(7, D, dtype=torch.float64)
    with torch.no_grad(), Record():
        layer(rows, offsets([3, 4]), times)
    assert seen == [torch.ops.gdpa.forward.default]


# Buckets --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bucket", "function"),
    [
        (RESEARCH, lambda t: t.abs().clamp(min=1).double().log() / 0.301),
        ("t / 3600 + 2", lambda t: t.double() / 3600 + 2),  # below 0 for events after the query
        ("where(t < 60, 0, 2 + sqrt(max(t, 0)) * pi)", lambda t: torch.where(t < 60, 0, 2 + t.sqrt() * torch.pi)),
    ],
)
def test_the_bucket_is_an_expression_of_the_difference(bucket: str, function: Any) -> None:
    times, lengths = history(1)
    layer = layer_with_tables(time_buckets=30, bucket=bucket, causal=False)
    rows = torch.randn(sum(lengths), D, dtype=torch.float64, requires_grad=True)
    inputs = [rows, layer.attend.learned["time"]]
    got = layer(rows, offsets(lengths), times)
    wanted = twins.hstu(dict(layer.named_parameters()), rows, lengths, times, H, D // H, bucket=function, causal=False)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(got.square().sum(), inputs), torch.autograd.grad(wanted.square().sum(), inputs)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bucket": "log(t"}, r"bucket: expected an expression in t.* got 'log\(t'; .*, but the text ends"),
        ({"bucket": "log(abs(s))"}, r"got 'log\(abs\(s\)\)'; read t and no other name"),
        ({"bucket": "t + h"}, "got 't \\+ h'; read t and no other name"),
        ({"bucket": "a * t"}, "got 'a \\* t'; read t and no other name"),
        ({"bucket": "3"}, "got '3'; read t and no other name"),
        ({"bucket": "t; t"}, "got 't; t'; read t and no other name"),
        ({"bucket": "logarithm(t)"}, "got 'logarithm\\(t\\)'; there is no function \"logarithm\""),
        ({"bucket": "t", "buckets_per_octave": 2.0}, "bucket: expected None with buckets_per_octave"),
        ({"bucket": "t", "time_buckets": 0}, "bucket: expected None without time buckets"),
        ({"activation": "time * s", "params": {"time": 2.0}}, "params: expected other names than time, t_query, t_key"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gdpa.nn.HSTULayer(D, H, **{"time_buckets": 4, **arguments})


def test_query_times_need_times() -> None:
    with pytest.raises(ValueError, match="query_times: expected None without times, got a tensor"):
        gdpa.nn.HSTULayer(D, H)(torch.zeros(3, D), offsets([3]), query_times=torch.arange(3))


# Arguments of a call --------------------------------------------------------------------------------------------------


def test_params_of_a_call_are_added_to_those_of_the_layer() -> None:
    layer = layer_with_tables(activation="silu(a * s + c)", params={"a": torch.ones(H)}, positions=5, time_buckets=6)
    rows, times, a = torch.randn(7, D, dtype=torch.float64), torch.arange(7) ** 2, torch.rand(H)
    wanted = layer_with_tables(activation="silu(a * s + 0.5)", params={"a": a}, positions=5, time_buckets=6)
    wanted.load_state_dict({**layer.state_dict(), "attend.learned.a": a})
    got = layer(rows, offsets([3, 4]), times, params={"a": a, "c": 0.5})
    torch.testing.assert_close(got, wanted(rows, offsets([3, 4]), times))


def test_a_mask_of_a_call_is_the_whole_mask() -> None:
    layer, rows, cu = layer_with_tables(time_buckets=6), torch.randn(7, D, dtype=torch.float64), offsets([3, 4])
    every_pair = layer_with_tables(time_buckets=6, causal=False)
    times = torch.arange(7) ** 2
    torch.testing.assert_close(layer(rows, cu, times, mask="kv_idx >= 0"), every_pair(rows, cu, times))
    torch.testing.assert_close(every_pair(rows, cu, times, mask="causal"), layer(rows, cu, times))


# Weights of the research code -----------------------------------------------------------------------------------------


def research_layer(weights: dict[str, Tensor], x: Tensor, times: Tensor, width: int) -> Tensor:
    """The layer of HSTU's research code on a padded batch (B, N, D). All heads have the same bias."""
    longest = x.shape[1]
    projected = F.silu(F.layer_norm(x, (D,), eps=1e-6) @ weights["uvqk"])
    u, v, q, k = (one.unflatten(-1, (H, width)) for one in projected.split([H * width] * 4, dim=-1))
    next_times = torch.cat([times[:, 1:], times[:, -1:]], dim=1)
    apart = next_times[:, :, None] - times[:, None, :]
    buckets = (apart.abs().clamp(min=1).double().log() / 0.301).long().clamp(max=len(weights["time"]) - 1)
    row = torch.arange(longest)
    bias = weights["time"][buckets] + weights["position"][longest - 1 - row[:, None] + row]
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k) + bias[:, None]
    p = (F.silu(scores) / longest).tril()
    attended = torch.einsum("bhnm,bmhd->bnhd", p, v).flatten(2)
    gated = u.flatten(2) * F.layer_norm(attended, (H * width,), eps=1e-6)
    return F.linear(gated, weights["out"], weights["out_bias"]) + x


def test_weights_of_the_research_code_give_its_numbers() -> None:
    batch, longest, width, buckets = 2, 20, 4, 128
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    weights = {
        "uvqk": normal(D, 4 * H * width), "out": normal(D, H * width), "out_bias": normal(D),
        "time": normal(buckets + 1), "position": normal(2 * longest - 1),
    }  # fmt: skip
    x = normal(batch, longest, D)
    times = (1_600_000_000 + torch.randint(0, DAYS * 86_400, (batch, longest), generator=generator)).sort(1).values

    layer = gdpa.nn.HSTULayer(
        D, H, head_dim=width, positions=longest, time_buckets=buckets + 1, bucket=RESEARCH, scale=1.0,
        out_scale=1 / longest,
    ).double()  # fmt: skip
    u_v_q_k = weights["uvqk"].unflatten(1, (4, H, width))
    layer.load_state_dict(
        {
            **layer.state_dict(),
            "uvqk.weight": u_v_q_k.transpose(1, 2).flatten(1).T,
            "uvqk.bias": torch.zeros(4 * H * width),
            "out.weight": weights["out"],
            "out.bias": weights["out_bias"],
            "attend.learned.time": weights["time"].expand(H, -1),
            "attend.learned.position": weights["position"][:longest].flip(0).expand(H, -1),
        }
    )
    next_times = torch.cat([times[:, 1:], times[:, -1:]], dim=1)
    got = layer(x.flatten(0, 1), offsets([longest] * batch), times.flatten(), next_times.flatten())
    torch.testing.assert_close(got.view_as(x), research_layer(weights, x, times, width))
