"""Checks that run on every process of a gloo group. test_distributed.py starts the processes."""

from __future__ import annotations

import copy
import itertools
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from reference import offsets
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor import init_device_mesh as mesh_of
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

import gdpa
from gdpa.distributed import ContextPlan, PairBalancedSampler, context_parallel_attention
from gdpa.train import data
from gdpa.train.model import Sizes
from gdpa.train.parallel import Ranks
from gdpa.train.run import Run, Settings

D, H = 16, 4
LENGTHS = [5, 0, 9, 1, 3, 7, 2, 4]


def whole(tensor: Any) -> Tensor:
    """The full tensor, or its gradient, as a plain tensor."""
    if not isinstance(tensor, DTensor):
        return tensor
    return tensor.full_tensor()


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def results(
    operands: Sequence[Tensor], params: dict[str, Tensor], call: Callable[..., Tensor]
) -> tuple[list[Tensor], Tensor]:
    """The output and all gradients as plain tensors, and the output as it is."""
    tensors = [one.detach().requires_grad_() for one in operands]
    learned = {name: one.detach().requires_grad_() for name, one in params.items()}
    output = call(*tensors, learned or None)
    full = whole(output)
    (full * torch.linspace(-1, 1, full.numel(), dtype=full.dtype).view_as(full)).sum().backward()
    gradients = [whole(one.grad) for one in (*tensors, *learned.values())]
    return [full.detach(), *gradients], output


FUNCTIONS: dict[str, dict[str, Tensor]] = {
    "silu": {},
    "silu(g * s)": {"g": torch.tensor(0.3, dtype=torch.float64)},
    "a * silu(s)": {"a": randn(H)},
    "silu(s + table[head, clamp(q_idx - kv_idx, 0, 5)])": {"table": randn(H, 6)},
    "silu(a * s + table[head, clamp(q_idx - kv_idx, 0, 5)]) * g": {
        "a": randn(H),
        "table": randn(H, 6),
        "g": randn(1)[0],
    },
    "silu(s + bias[0, head, q_idx, kv_idx])": {"bias": randn(1, H, 9, 9)},
    "silu(s + large[head, 0])": {"large": randn(2 * H, 1)},
    "silu(s * exp2(-head))": {},
}


def sharded_heads_rows_and_replicas_give_the_same_numbers() -> None:
    world = dist.get_world_size()
    mesh, cu = mesh_of("cpu", (world,)), offsets(LENGTHS)
    operands = [randn(sum(LENGTHS), H, 8, seed=n) for n in range(3)]
    expected = {Shard(1): Shard(1), Replicate(): Replicate(), Shard(0): Shard(1)}
    for (place, of_output), (text, params) in itertools.product(expected.items(), FUNCTIONS.items()):

        def call(q: Tensor, k: Tensor, v: Tensor, learned: Any, text: str = text) -> Tensor:
            offset = distribute_tensor(cu, mesh, [Replicate()]) if isinstance(q, DTensor) else cu
            return gdpa.varlen_attention(q, k, v, offset, offset, activation=text, params=learned, out_scale="1/len_k")

        wanted, _ = results(operands, params, call)
        got, output = results([distribute_tensor(one, mesh, [place]) for one in operands], params, call)
        torch.testing.assert_close(got, wanted, msg=lambda m, where=(place, text): f"{where}: {m}")
        is_local = "exp2" in text or "large" in text  # a rank does not know the numbers of its heads
        assert output.placements == ((Replicate() if is_local else of_output),), (place, text, output.placements)


def learned_numbers_of_queries_have_the_sums_of_all_ranks() -> None:
    mesh, cu = mesh_of("cpu", (dist.get_world_size(),)), offsets(LENGTHS)
    rows, packed, dense = sum(LENGTHS), randn(sum(LENGTHS), H, 8), randn(8, 6, H, 8)
    layouts: list[tuple[list[Tensor], Tensor | None, Any, Any]] = [
        ([packed] * 3, cu, randn(rows, 1), Shard(1)),
        ([packed] * 3, cu, randn(rows, 1), Replicate()),
        ([dense] * 3, None, randn(8, 6, 1), Shard(0)),
        ([dense[0], dense, dense], None, randn(6, 1), Replicate()),
    ]
    for operands, offset, numbers, place in layouts:

        def call(q: Tensor, k: Tensor, v: Tensor, learned: Any, offset: Tensor | None = offset) -> Tensor:
            return gdpa.varlen_attention(q, k, v, offset, offset, activation="silu", out_scale=learned["r"])

        places = [Replicate() if one.dim() == 3 and offset is None else place for one in operands]
        sharded = [distribute_tensor(one, mesh, [where]) for one, where in zip(operands, places, strict=True)]
        got, output = results(sharded, {"r": numbers}, call)
        torch.testing.assert_close(got, results(operands, {"r": numbers}, call)[0])
        assert output.placements == (place,)


def plain_offsets_are_the_same_on_all_ranks() -> None:
    mesh, cu = mesh_of("cpu", (dist.get_world_size(),)), offsets(LENGTHS)
    operands = [randn(sum(LENGTHS), H, 8, seed=n) for n in range(3)]
    got = gdpa.varlen_attention(*(distribute_tensor(one, mesh, [Shard(1)]) for one in operands), cu, cu)
    torch.testing.assert_close(whole(got), gdpa.varlen_attention(*operands, cu, cu))
    assert got.placements == (Shard(1),)


def grouped_heads_and_shared_operands_are_sharded() -> None:
    world = dist.get_world_size()
    mesh, cu = mesh_of("cpu", (world,)), offsets(LENGTHS)
    for of_query, of_key in ((8, 4), (8, 2)):
        operands = [randn(sum(LENGTHS), n, 8) for n in (of_query, of_key, of_key)]

        def call(q: Tensor, k: Tensor, v: Tensor, _: Any) -> Tensor:
            return gdpa.varlen_attention(q, k, v, cu, cu, enable_gqa=True)

        got, output = results([distribute_tensor(one, mesh, [Shard(1)]) for one in operands], {}, call)
        torch.testing.assert_close(got, results(operands, {}, call)[0])
        assert output.placements[0].is_shard() == (of_key % world == 0)

    learned, rows = randn(3, H, 8), randn(sum(LENGTHS), H, 8, seed=1)

    def pool(q: Tensor, k: Tensor, v: Tensor, _: Any) -> Tensor:
        return gdpa.varlen_attention(q, k, v, None, cu)

    got, output = results([distribute_tensor(one, mesh, [Shard(1)]) for one in (learned, rows, rows)], {}, pool)
    torch.testing.assert_close(got, results([learned, rows, rows], {}, pool)[0])
    assert output.placements == (Shard(1),) and output.shape[0] == 3 * len(LENGTHS)


def a_dense_batch_is_sharded() -> None:
    mesh = mesh_of("cpu", (dist.get_world_size(),))
    params = {"bias": randn(8, 1, 6, 6), "a": randn(H)}
    operands = [randn(8, H, 6, 8, seed=n) for n in range(3)]

    def call(q: Tensor, k: Tensor, v: Tensor, learned: Any) -> Tensor:
        bias = params["bias"]
        if isinstance(q, DTensor):
            bias = distribute_tensor(bias, mesh, [Shard(0)])
        text = "a * silu(s + bias[batch, 0, q_idx, kv_idx])"
        return gdpa.generalized_dot_product_attention(
            q, k, v, text, params={"a": learned["a"], "bias": bias}, out_scale=torch.linspace(1, 2, 8)
        )

    given = {"a": params["a"]}
    got, output = results([distribute_tensor(one, mesh, [Shard(0)]) for one in operands], given, call)
    torch.testing.assert_close(got, results(operands, given, call)[0])
    assert output.placements == (Shard(0),)

    # Numbers of tokens are an axis of B * L rows, which is divided with the batch.
    times = torch.rand(8 * 6, dtype=torch.float64)
    rows = [one.transpose(1, 2).contiguous() for one in operands]

    def timed(q: Tensor, k: Tensor, v: Tensor, _: Any) -> Tensor:
        given = distribute_tensor(times, mesh, [Replicate()]) if isinstance(q, DTensor) else times
        return gdpa.varlen_attention(
            q, k, v, None, None, activation="silu(s + t[q_idx] - t[kv_idx])", params={"t": given}
        )

    got, output = results([distribute_tensor(one, mesh, [Shard(0)]) for one in rows], {}, timed)
    torch.testing.assert_close(got, results(rows, {}, timed)[0])
    assert output.placements == (Shard(0),)

    # A batch that cannot be divided evenly is not sharded.
    odd = [one[:7] for one in rows]
    got, output = results(
        [distribute_tensor(one, mesh, [Shard(0)]) for one in odd], {}, lambda q, k, v, _: attend(q, k, v)
    )
    torch.testing.assert_close(got, results(odd, {}, lambda q, k, v, _: attend(q, k, v))[0])
    assert output.placements != (Shard(0),)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return gdpa.varlen_attention(q, k, v, None, None)


def part_of(lengths: Sequence[int], rank: int, world: int) -> tuple[list[int], slice]:
    """The sequences of a rank, and their rows in the joined batch."""
    bounds = [len(lengths) * n // world for n in range(world + 1)]
    first, last = bounds[rank], bounds[rank + 1]
    begin = sum(lengths[:first])
    return list(lengths[first:last]), slice(begin, begin + sum(lengths[first:last]))


def a_jagged_batch_is_sharded_with_its_offsets() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = mesh_of("cpu", (world,))
    lengths, rows = part_of(LENGTHS, rank, world)
    operands = [randn(sum(LENGTHS), H, 8, seed=n) for n in range(3)]
    size = (sum(LENGTHS), H, 8)

    def sharded(one: Tensor) -> DTensor:
        local = one[rows].clone()
        return DTensor.from_local(local, mesh, [Shard(0)], shape=torch.Size(size), stride=(H * 8, 8, 1))

    cu = offsets(lengths)
    joined = DTensor.from_local(cu, mesh, [Shard(0)], shape=torch.Size([len(LENGTHS) + world]), stride=(1,))
    factor = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    tensors = [sharded(one).requires_grad_() for one in operands]
    output = gdpa.varlen_attention(
        *tensors, joined, joined, activation="a * silu(s)", params={"a": factor}, window_size=(-1, 0)
    )
    assert output.placements == (Shard(0),)
    output.to_local().square().sum().backward()
    plain = [one.clone().requires_grad_() for one in operands]
    whole_factor = factor.detach().clone().requires_grad_()
    wanted = gdpa.varlen_attention(
        *plain, offsets(LENGTHS), offsets(LENGTHS), activation="a * silu(s)", params={"a": whole_factor},
        window_size=(-1, 0),
    )  # fmt: skip
    wanted.square().sum().backward()
    torch.testing.assert_close(output.to_local(), wanted[rows])
    for one, other in zip(tensors, plain, strict=True):
        torch.testing.assert_close(one.grad.to_local(), other.grad[rows])
    torch.testing.assert_close(factor.grad, whole_factor.grad)


def refused(call: Callable[[], Any], message: str) -> None:
    """The call fails on every rank with this message."""
    try:
        call()
    except ValueError as error:
        assert re.search(message, str(error)), f"{message!r} is not in {error}"
    else:
        raise AssertionError(f"nothing was refused: {message}")


def impossible_placements_are_refused() -> None:
    mesh = mesh_of("cpu", (dist.get_world_size(),))
    cu = offsets(LENGTHS)
    rows = randn(sum(LENGTHS), H, 8)
    by_rows, whole_rows = distribute_tensor(rows, mesh, [Shard(0)]), distribute_tensor(rows, mesh, [Replicate()])
    of_shard = DTensor.from_local(cu, mesh, [Shard(0)])
    refused(lambda: gdpa.varlen_attention(by_rows, by_rows, by_rows, cu, cu), "expected a DTensor, as the rows are")
    whole = (whole_rows, whole_rows, whole_rows, cu, cu)
    refused(
        lambda: gdpa.varlen_attention(*whole, activation="table[head"), "^activation: expected .* but the text ends"
    )
    refused(
        lambda: gdpa.varlen_attention(whole_rows, whole_rows, whole_rows, of_shard, of_shard),
        r"cu_seqlens_q: expected Shard\(0\) for the rows of all jagged operands",
    )
    refused(
        lambda: gdpa.varlen_attention(by_rows, by_rows, by_rows, of_shard, of_shard, activation="s * batch"),
        "expected a function that uses batch, q_row and kv_row only as an index",
    )
    refused(
        lambda: gdpa.varlen_attention(whole_rows, by_rows, by_rows, None, of_shard),
        "expected a query with offsets or of rank 4",
    )
    refused(
        lambda: gdpa.varlen_attention(by_rows, by_rows, by_rows, of_shard, of_shard, out_scale=torch.ones(8)),
        r"out_scale: expected S\(0\), the numbers of each rank's own sequences",
    )
    bias = {"bias": torch.zeros(8, 9, dtype=torch.float64)}
    refused(
        lambda: gdpa.varlen_attention(
            by_rows, by_rows, by_rows, of_shard, of_shard, activation="s + bias[batch, q_idx]", params=bias
        ),
        r"parameter bias: expected S\(0\), the numbers of each",
    )


def tensor_parallelism_shards_heads() -> None:
    mesh = mesh_of("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    blocks = {
        "GDPAttention": (gdpa.nn.GDPAttention(D, H, norm=nn.LayerNorm(D)), ["qkv"], "out"),
        "GDPACrossAttention": (gdpa.nn.GDPACrossAttention(D, H), ["query", "key_value"], "out"),
    }
    for name, (block, columns, rows) in blocks.items():
        block = block.double()
        inputs = [randn(sum(LENGTHS), D)] + ([randn(len(LENGTHS), 3, D)] if "Cross" in name else [])
        wanted = block(*inputs, cu_seqlens=offsets(LENGTHS))
        wanted.square().sum().backward()
        parallel = copy.deepcopy(block)
        parallel.zero_grad()
        plan: dict[str, Any] = {one: ColwiseParallel() for one in columns}
        parallelize_module(parallel, mesh, {**plan, rows: RowwiseParallel()})
        got = parallel(*inputs, cu_seqlens=offsets(LENGTHS))
        got.square().sum().backward()
        torch.testing.assert_close(got, wanted)
        for one, other in zip(parallel.named_parameters(), block.parameters(), strict=True):
            torch.testing.assert_close(
                whole(one[1].grad), other.grad, msg=lambda m, where=(name, one[0]): f"{where}: {m}"
            )


def a_layer_of_dtensors_shards_heads_and_tables() -> None:
    mesh = mesh_of("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    layer = gdpa.nn.HSTULayer(D, H, positions=5).double()
    rows = randn(sum(LENGTHS), D)
    wanted = layer(rows, offsets(LENGTHS))
    wanted.square().sum().backward()
    parallel = copy.deepcopy(layer)
    parallel.zero_grad()
    columns, of_rows = ColwiseParallel(use_local_output=False), RowwiseParallel(use_local_output=False)
    parallelize_module(parallel, mesh, {"uvqk": columns, "out": of_rows})
    distribute_module(parallel, mesh)
    got = parallel(distribute_tensor(rows, mesh, [Replicate()]), offsets(LENGTHS))
    got.square().sum().backward()
    torch.testing.assert_close(whole(got), wanted)
    for one, other in zip(parallel.named_parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(whole(one[1].grad), other.grad, msg=lambda m, one=one: f"{one[0]}: {m}")


class Model(nn.Module):
    """Blocks of each kind, with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = gdpa.nn.GDPAttention(D, H, norm=nn.LayerNorm(D), window_size=(-1, 0), out_scale=0.1)
        self.hstu = gdpa.nn.HSTULayer(D, H, positions=5, out_scale=0.1)
        self.pool = gdpa.nn.PMA(D, H, 2)

    def forward(self, rows: Tensor, cu: Tensor) -> Tensor:
        rows = checkpoint(self.attention, rows, cu, use_reentrant=False)
        return self.pool(self.hstu(rows, cu), cu)


def data_parallelism_gives_the_gradients_of_the_joined_batch() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Model().double()
    rows = randn(sum(LENGTHS), D)
    model(rows, offsets(LENGTHS)).square().sum().backward()
    # Rank 0 has most sequences, and the last rank has none.
    sequences = PairBalancedSampler(LENGTHS, len(LENGTHS), world - 1).divided(range(len(LENGTHS)))[rank % (world - 1)]
    sequences = [] if rank == world - 1 else sequences
    begins = offsets(LENGTHS, torch.int64).tolist()
    mine = [rows[begins[n] : begins[n + 1]] for n in sequences]
    batch = torch.cat([rows[:0], *mine]), offsets([LENGTHS[n] for n in sequences])
    for kind in ("ddp", "fsdp", "fsdp, compiled") if world == 2 else ("ddp", "fsdp"):
        parallel: Any = copy.deepcopy(model)
        parallel.zero_grad()
        if kind == "ddp":
            parallel = DDP(parallel)
        else:
            for block in parallel.children():
                fully_shard(block)
            fully_shard(parallel)
        run = torch.compile(parallel, dynamic=True, backend="aot_eager") if kind == "fsdp, compiled" else parallel
        run(*batch).square().sum().backward()
        for (name, weight), other in zip(parallel.named_parameters(), model.parameters(), strict=True):
            got = whole(weight.grad) * world  # the mean over the ranks
            torch.testing.assert_close(got, other.grad, msg=lambda m, where=(kind, name): f"{where}: {m}")


def context_parallelism_gives_the_numbers_of_one_device() -> None:
    shapes: list[tuple[list[int], list[int] | None, int]] = [
        (LENGTHS, None, 2), ([40], None, 0), ([5, 9, 3], [2, 14, 3], 0), ([5, 9, 3], [2, 4, 0], 0), ([1], None, 0),
        ([0, 0], None, 0), ([], None, 0),
    ]  # fmt: skip
    windows = [(-1, -1), (-1, 0), (3, 0)]
    # Every combination of shapes, windows and modes has one of these kinds, in turn.
    kinds = itertools.cycle([(1.0, 1, 1), ("1/len_k", 2, 1), ("1/len_q", None, 2), (1.0, None, 2)])
    for (of_q, of_k, extra), window, mode in itertools.product(shapes, windows, ("queries", "keys")):
        if mode == "keys" and window[1] == 0 and of_k == [2, 14, 3]:
            continue  # refused; see below
        for scale, groups, group_size in [next(kinds)]:
            where = (of_q, of_k, window, mode, scale)
            cu_q = offsets(of_q, torch.int64) + extra
            cu_k = cu_q if of_k is None else offsets(of_k, torch.int64)
            rows_q = int(cu_q[-1]) + extra
            rows_k = rows_q if of_k is None else int(cu_k[-1])
            operands = [randn(rows_q, H, 8), randn(rows_k, H // group_size, 8), randn(rows_k, H // group_size, 6)]
            learned = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
            keywords: dict[str, Any] = {
                "activation": "a * silu(s)", "params": {"a": learned}, "out_scale": scale, "enable_gqa": True
            }  # fmt: skip
            plain = [one.clone().requires_grad_() for one in operands]
            wanted = gdpa.varlen_attention(*plain, cu_q, cu_k, window_size=window, **keywords)
            weights = randn(*wanted.shape)
            (wanted_of_a,) = torch.autograd.grad(wanted, learned, weights, retain_graph=True)
            wanted.backward(weights)
            given = None if of_k is None else cu_k
            plan = ContextPlan(cu_q, given, window_size=window, mode=mode, rows_q=rows_q)  # type: ignore[arg-type]
            query, key, value = operands
            parts = [plan.shard_queries(query), plan.shard_keys(key), plan.shard_keys(value)]
            parts = [one.clone().requires_grad_() for one in parts]
            learned.grad = None
            got = context_parallel_attention(*parts, plan, head_groups=groups, **keywords)
            got.backward(plan.shard_queries(weights))
            torch.testing.assert_close(got, plan.shard_queries(wanted), msg=lambda m, w=where: f"{w}: {m}")
            shards = (plan.shard_queries, plan.shard_keys, plan.shard_keys)
            for part, one, shard in zip(parts, plain, shards, strict=True):
                torch.testing.assert_close(part.grad, shard(one.grad), msg=lambda m, w=where: f"{w}: {m}")
            dist.all_reduce(learned.grad)
            torch.testing.assert_close(learned.grad, wanted_of_a)


def blocks_compute_a_batch_whose_rows_lie_on_all_ranks() -> None:
    torch.manual_seed(0)
    attention = gdpa.nn.GDPAttention(D, H, norm=nn.LayerNorm(D), window_size=(-1, 0)).double()
    feed_forward = gdpa.nn.PFFN(D, H).double()
    blocks = nn.ModuleList([attention, feed_forward])
    rows, context, cu = randn(sum(LENGTHS), D), randn(len(LENGTHS), 3, D), offsets(LENGTHS)
    wanted = feed_forward(attention(rows, cu), context, cu)
    wanted.square().sum().backward()
    gradients = [one.grad for one in blocks.parameters()]
    for mode in ("queries", "keys"):
        blocks.zero_grad()
        plan = ContextPlan(cu, window_size=(-1, 0), mode=mode)  # type: ignore[arg-type]
        states = attention(plan.shard_queries(rows), plan.local_offsets, plan=plan)
        got = feed_forward(states, context, plan.local_offsets)
        torch.testing.assert_close(got, plan.shard_queries(wanted))
        got.square().sum().backward()
        for one, other in zip(blocks.parameters(), gradients, strict=True):
            dist.all_reduce(one.grad)
            torch.testing.assert_close(one.grad, other)
        with torch.autocast("cpu", torch.bfloat16):
            part = plan.shard_queries(rows).float().requires_grad_()
            output = attention.float()(part, plan.local_offsets, plan=plan)
            output.sum().backward()
        assert part.grad is not None and part.grad.dtype == torch.float32
        attention.double()
    wrong = ContextPlan(cu)
    refused(lambda: attention(wrong.shard_queries(rows), wrong.local_offsets, plan=wrong), "plan: expected window_size")


def context_parallelism_refuses_on_every_rank() -> None:
    rank = dist.get_rank()
    rows = randn(sum(LENGTHS), H, 8)
    plan = ContextPlan(offsets(LENGTHS))
    mine = plan.shard_queries(rows)
    wrong = mine[:-1] if rank == 0 else mine  # rows of another batch on one rank
    refused(lambda: context_parallel_attention(wrong, mine, mine, plan), "query: expected shape|rows that fit the plan")
    other = ContextPlan(offsets(LENGTHS if rank else [*LENGTHS[1:], LENGTHS[0]]))
    part = randn(other.bounds_q[rank + 1] - other.bounds_q[rank], H, 8)
    refused(lambda: context_parallel_attention(part, part, part, other), "expected the same plan on all ranks")
    refused(lambda: context_parallel_attention(mine, mine, mine, plan, activation="s * q_idx"), "reads no position")
    named = "where(causal(), s, 0)"  # reads positions that it does not name
    refused(lambda: context_parallel_attention(mine, mine, mine, plan, activation=named), "reads no position")
    refused(lambda: context_parallel_attention(mine, mine, mine, plan, head_groups=3), "head_groups: expected 1, or")
    refused(lambda: ContextPlan([0, 5, 2]), "cu_seqlens: expected offsets that begin")
    refused(lambda: ContextPlan([0, 5], [0, 5, 9]), "cu_seqlens_k: expected 2 offsets")
    refused(lambda: ContextPlan([0, 5], window_size=(3, 3)), "window_size: expected")
    refused(lambda: ContextPlan([0, 5], rows_q=3), "rows: expected at least 5")
    refused(lambda: ContextPlan([0, 5], [0, 9], window_size=(-1, 0), mode="keys"), 'mode: expected "queries"')


def a_query_is_added_once() -> None:
    mesh, cu = mesh_of("cpu", (dist.get_world_size(),)), offsets(LENGTHS)
    operands = [randn(sum(LENGTHS), H, 8, seed=n) for n in range(3)]

    def call(q: Tensor, k: Tensor, v: Tensor, _: Any, add_query: bool = True) -> Tensor:
        output = gdpa.varlen_attention(q, k, v, cu, cu, add_query=add_query)
        return output if add_query else output + q

    wanted, _ = results(operands, {}, lambda *given: call(*given, add_query=False))
    for place in (Shard(1), Replicate()):
        torch.testing.assert_close(
            results([distribute_tensor(one, mesh, [place]) for one in operands], {}, call)[0], wanted
        )
    for mode in ("queries", "keys"):
        plan = ContextPlan(cu, mode=mode)  # type: ignore[arg-type]
        parts = [plan.shard_queries(one).clone().requires_grad_() for one in operands]
        got = context_parallel_attention(*parts, plan, add_query=True)
        torch.testing.assert_close(got, plan.shard_queries(wanted[0]))
        weights = torch.linspace(-1, 1, wanted[0].numel(), dtype=torch.float64).view_as(wanted[0])
        got.backward(plan.shard_queries(weights))
        torch.testing.assert_close([one.grad for one in parts], [plan.shard_queries(one) for one in wanted[1:]])


def two_dimensions_of_a_mesh_shard_batch_and_heads() -> None:
    mesh = mesh_of("cpu", (2, 2), mesh_dim_names=("batch", "heads"))
    operands = [randn(8, 6, H, 8, seed=n) for n in range(3)]

    def call(q: Tensor, k: Tensor, v: Tensor, learned: Any) -> Tensor:
        return gdpa.varlen_attention(q, k, v, None, None, activation="a * silu(s)", params=learned)

    params = {"a": randn(H)}
    placed = [distribute_tensor(one, mesh, [Shard(0), Shard(2)]) for one in operands]
    got, output = results(placed, {}, lambda q, k, v, _: gdpa.varlen_attention(q, k, v, None, None))
    wanted, _ = results(operands, {}, lambda q, k, v, _: gdpa.varlen_attention(q, k, v, None, None))
    torch.testing.assert_close(got, wanted)
    assert output.placements == (Shard(0), Shard(2))
    torch.testing.assert_close(results(placed, params, call)[0], results(operands, params, call)[0])


FOLDER = Path()  # of the test, the same for all processes


def training_on_several_ranks_gives_the_losses_of_one() -> None:
    events, device = data.load(users=9), torch.device("cpu")
    ranks = Ranks(dist.get_rank(), dist.get_world_size())
    for variant, is_sharded in (("learned", True), ("softmax", False)):
        # The last batch has one user, so a rank has no rows. Ranks draw other dropout than one process.
        sizes = Sizes(data.ITEMS, dim=8, layers=1, dropout=0.0)
        settings = Settings(variant, seed=0, epochs=2, users=4, history=50, sizes=sizes)
        alone = Run(settings, events, device, compile=False, folder=FOLDER / f"alone-{ranks.rank}")
        wanted = torch.stack(list(alone.train()))
        folder = FOLDER / variant
        interrupted = Run(settings, events, device, False, folder, ranks=ranks, is_sharded=is_sharded)
        for _, _ in zip(range(4), interrupted.train(), strict=False):
            pass
        dist.barrier()  # the first rank has written the checkpoint
        resumed = Run(settings, events, device, False, folder, ranks=ranks, is_sharded=is_sharded)
        assert len(resumed.losses) == 3
        torch.testing.assert_close(torch.stack([*resumed.losses, *resumed.train()]), wanted)
        assert resumed.metrics == alone.metrics


CHECKS = {
    2: [
        sharded_heads_rows_and_replicas_give_the_same_numbers,
        learned_numbers_of_queries_have_the_sums_of_all_ranks,
        plain_offsets_are_the_same_on_all_ranks,
        a_dense_batch_is_sharded,
        impossible_placements_are_refused,
        tensor_parallelism_shards_heads,
        a_layer_of_dtensors_shards_heads_and_tables,
        data_parallelism_gives_the_gradients_of_the_joined_batch,
        training_on_several_ranks_gives_the_losses_of_one,
    ],
    4: [
        grouped_heads_and_shared_operands_are_sharded,
        a_jagged_batch_is_sharded_with_its_offsets,
        two_dimensions_of_a_mesh_shard_batch_and_heads,
        data_parallelism_gives_the_gradients_of_the_joined_batch,
        context_parallelism_gives_the_numbers_of_one_device,
        blocks_compute_a_batch_whose_rows_lie_on_all_ranks,
        context_parallelism_refuses_on_every_rank,
        a_query_is_added_once,
    ],
}


def worker(rank: int, world: int, store: str, names: list[str], failures: Any) -> None:
    """Runs the checks on one process, and reports the tracebacks of those that fail."""
    global FOLDER
    FOLDER = Path(store).parent
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for check in CHECKS[world]:
        if check.__name__ not in names:
            continue
        try:
            torch.manual_seed(0)
            check()
        except BaseException:
            failures.put((rank, check.__name__, traceback.format_exc()))
            break  # the other ranks may wait in this check
    dist.barrier()
    dist.destroy_process_group()
