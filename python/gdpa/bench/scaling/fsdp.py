"""The training step of a model without FSDP on one rank, and under FSDP2 on all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from gdpa.bench.agreement import AGREEMENT, checked_difference
from gdpa.bench.scaling.ranks import FSDP, Comparison, Ranks
from gdpa.bench.training.models import ModelShape, build, inputs_of, shapes_of
from gdpa.bench.training.trainer import Trainer
from gdpa.distributed import PairBalancedSampler

USERS = {"cuda": 256, "cpu": 4}  # for each rank
# The FLOP of the projections of an HSTU layer for a row, divided by the FLOP of attention for an element of n^2: 10 D^2
# for five D x D projections, and 2 D for two products of which a causal mask selects half.
LINEAR_BY_WIDTH = 5.0


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


def comparison_of(ranks: Ranks, layers: int, batch_factor: float) -> Comparison:
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
