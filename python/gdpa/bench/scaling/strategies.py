"""The strategies that scaling compares with one rank: a training step under FSDP2, and context parallelism."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from gdpa.bench.agreement import AGREEMENT, checked_difference
from gdpa.bench.cases import Case
from gdpa.bench.device import Work
from gdpa.bench.measure import forward_alone
from gdpa.bench.scaling.ranks import CONTEXT, FSDP, Comparison, Ranks
from gdpa.bench.systems import Gdpa
from gdpa.bench.systems.base import Operands, Prepared, offsets
from gdpa.bench.training.models import ModelShape, build, inputs_of, shapes_of
from gdpa.bench.training.trainer import Trainer
from gdpa.distributed import ContextPlan, PairBalancedSampler, context_parallel_attention

USERS = {"cuda": 256, "cpu": 4}  # for each rank
# The FLOP of the projections of an HSTU layer for a row, divided by the FLOP of attention for an element of n^2: 10 D^2
# for five D x D projections, and 2 D for two products of which a causal mask selects half.
LINEAR_BY_WIDTH = 5.0
MASKS = ("none", "causal")
NAMES = ("output", "gradient of the query", "gradient of the key", "gradient of the value")


def whole_shape(kind: str, world: int, layers: int, batch_factor: float) -> ModelShape:
    """Returns the shape of the batch of all ranks."""
    users = max(1, round(USERS[kind] * batch_factor))
    (shape,) = shapes_of("hstu", layers, kind)
    return replace(shape, batch=world * users)


def parts_of(shape: ModelShape, world: int) -> list[list[int]]:
    """Returns the users of each rank."""
    sampler = PairBalancedSampler(shape.lengths, shape.batch, world, linear=LINEAR_BY_WIDTH * shape.width)
    return next(iter(sampler.epoch(0)))


def sharded(model: nn.Module, ranks: Ranks) -> nn.Module:
    """Applies FSDP2 to each layer and to the model."""
    mesh = init_device_mesh(ranks.device.torch_device.type, (ranks.world,))
    layers: Any = model.layers
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def gradient_of(trainer: Trainer) -> Tensor:
    """Returns the gradients of all weights in one fp32 vector."""
    trainer.gradients()
    gradients = [weight.grad for weight in trainer.module.parameters()]
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in gradients if one is not None]
    trainer.forget()
    return torch.cat([one.flatten().float() for one in whole])


def fsdp_comparison(ranks: Ranks, layers: int, batch_factor: float) -> Comparison:
    """Prepares both steps. Raises Disagreement if their gradients differ."""
    device = ranks.device.torch_device
    shape = whole_shape(device.type, ranks.world, layers, batch_factor)
    parts = parts_of(shape, ranks.world)
    mine = [shape.lengths[user] for user in parts[ranks.rank]]
    models = build(shape, device), sharded(build(shape, device), ranks)
    one, several = (Trainer(model, inputs_of(shape, mine, device)) for model in models)
    expected = gradient_of(one)
    dist.all_reduce(expected)
    difference = checked_difference(
        shape.name, FSDP, {"gradient of the weights": gradient_of(several)},
        {"gradient of the weights": expected / ranks.world}, AGREEMENT[shape.dtype] * layers,
    )  # fmt: skip
    scores = [sum(shape.lengths[user] ** 2 for user in users) for users in parts]
    tokens = sum(shape.lengths)
    about = {
        "system": FSDP, "direction": "step", "shape": shape.name, "mask": "causal", "activation": shape.activation,
        "dtype": shape.dtype, "B": shape.batch, "H": shape.heads, "d": shape.head_dim, "q": shape.max_length,
        "tokens": tokens, "largest_part": max(scores) * ranks.world / sum(scores), "difference": difference,
    }  # fmt: skip
    return Comparison(about, tokens / ranks.world, one.work, several.work)


# Context parallelism -------------------------------------------------------------------------------------------------


def long_sequence(kind: str, mask: str, factor: float = 1.0) -> Case:
    """Returns the case of this kind of device. The CPU case is very small. It only shows that the command works."""
    rows, heads, head_dim, dtype = (65_536, 4, 128, "bfloat16") if kind == "cuda" else (64, 2, 16, "float32")
    rows = max(1, round(rows * factor))
    return Case((rows,), (rows,), heads, head_dim, dtype, "silu", mask, name=f"1 of {rows}")


def prepared(compute: Callable[..., Tensor], operands: Sequence[Tensor], grad_output: Tensor) -> Prepared:
    inputs = [one.detach().requires_grad_() for one in operands]
    return Prepared(lambda: [compute(*inputs)], inputs, [grad_output])


def context_comparisons(ranks: Ranks, case: Case) -> list[Comparison]:
    """Prepares both computations. Raises Disagreement if their results differ."""
    device = ranks.device.torch_device
    operands = Operands.random(case, device)
    plan = ContextPlan(offsets(case.lengths_q, torch.device("cpu")), window_size=case.window, device=device)
    on_one = Gdpa(out_scale="1/len_k").attend(case, device, {})
    on_all = partial(context_parallel_attention, plan=plan, activation=case.activation, out_scale="1/len_k")
    shards = [plan.shard_queries, plan.shard_keys, plan.shard_keys]
    whole = [operands.query, operands.key, operands.value]
    local = [shard(one).contiguous() for shard, one in zip(shards, whole, strict=True)]
    one = prepared(on_one, whole, operands.grad_output)
    several = prepared(on_all, local, plan.shard_queries(operands.grad_output).contiguous())
    expected = [shard(tensor) for shard, tensor in zip([plan.shard_queries, *shards], one.results(), strict=True)]
    difference = checked_difference(
        str(case.name), CONTEXT, dict(zip(NAMES, several.results(), strict=True)),
        dict(zip(NAMES, expected, strict=True)), AGREEMENT[case.dtype],
    )  # fmt: skip
    about = {
        "system": CONTEXT, "shape": case.name, "mask": case.mask, "activation": case.activation, "dtype": case.dtype,
        "B": 1, "H": case.heads, "d": case.head_dim, "q": case.rows_q, "tokens": case.rows_q,
        "largest_part": max(plan.pairs) * ranks.world / sum(plan.pairs), "difference": difference,
    }  # fmt: skip

    def comparison(direction: str, run: Callable[[Prepared], object]) -> Comparison:
        works = (Work(lambda _: run(one)), Work(lambda _: run(several)))
        return Comparison(about | {"direction": direction}, case.rows_q, *works)

    return [comparison("fwd", forward_alone), comparison("fwd+bwd", Prepared.results)]
