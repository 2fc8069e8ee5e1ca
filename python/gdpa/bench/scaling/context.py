"""Attention over one long sequence, on one rank and with its rows on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import gdpa
from gdpa.bench.agreement import AGREEMENT, checked_difference
from gdpa.bench.cases import Case
from gdpa.bench.device import Work
from gdpa.bench.scaling.ranks import CONTEXT, Comparison, Ranks
from gdpa.bench.systems.base import Operands, offsets
from gdpa.distributed import ContextPlan, context_parallel_attention

MASKS = ("none", "causal")
FORWARD, BOTH = "fwd", "fwd+bwd"
NAMES = ("output", "gradient of the query", "gradient of the key", "gradient of the value")


def case_on(kind: str, mask: str, factor: float = 1.0) -> Case:
    """Returns the case of this kind of device. The CPU case is very small. It only shows that the command works."""
    rows, heads, head_dim, dtype = (65_536, 4, 128, "bfloat16") if kind == "cuda" else (64, 2, 16, "float32")
    rows = max(1, round(rows * factor))
    return Case((rows,), (rows,), heads, head_dim, dtype, "silu", mask, name=f"1 of {rows}")


class Pass:
    """A forward pass, and the same with its backward pass."""

    def __init__(self, compute: Callable[..., Tensor], operands: list[Tensor], grad_output: Tensor) -> None:
        self.compute = compute
        self.operands = [one.detach().requires_grad_() for one in operands]
        self.grad_output = grad_output

    @torch.no_grad()
    def forward(self, _: None = None) -> Tensor:
        return self.compute(*self.operands)

    def both(self, _: None = None) -> tuple[Tensor, ...]:
        """Returns the output and the gradients."""
        output = self.compute(*self.operands)
        return output.detach(), *torch.autograd.grad(output, self.operands, self.grad_output)


def comparisons_of(ranks: Ranks, case: Case) -> list[Comparison]:
    """Prepares both computations. Raises Disagreement if their results differ."""
    device = ranks.device.torch_device
    operands = Operands.random(case, device)
    cu_seqlens = offsets(case.lengths_q, device)
    plan = ContextPlan(cu_seqlens.cpu(), window_size=case.window, device=device)
    options: dict[str, Any] = {"activation": case.activation, "out_scale": "1/len_k"}

    def on_one(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return gdpa.varlen_attention(
            query, key, value, cu_seqlens, cu_seqlens, window_size=case.window, **options
        )  # fmt: skip

    def on_all(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return context_parallel_attention(query, key, value, plan, **options)

    whole = [operands.query, operands.key, operands.value]
    shards = [plan.shard_queries, plan.shard_keys, plan.shard_keys]
    local = [shard(one).contiguous() for shard, one in zip(shards, whole, strict=True)]
    one = Pass(on_one, whole, operands.grad_output)
    several = Pass(on_all, local, plan.shard_queries(operands.grad_output).contiguous())
    expected = [
        shard(tensor) for shard, tensor in zip([plan.shard_queries, *shards], one.both(), strict=True)
    ]  # fmt: skip
    difference = checked_difference(
        str(case.name), CONTEXT, dict(zip(NAMES, several.both(), strict=True)),
        dict(zip(NAMES, expected, strict=True)), AGREEMENT[case.dtype],
    )  # fmt: skip
    about = {
        "system": CONTEXT, "shape": case.name, "mask": case.mask, "activation": case.activation, "dtype": case.dtype,
        "B": 1, "H": case.heads, "d": case.head_dim, "q": case.rows_q, "tokens": case.rows_q,
        "largest_part": max(plan.pairs) * ranks.world / sum(plan.pairs), "difference": difference,
    }  # fmt: skip
    works = ((FORWARD, one.forward, several.forward), (BOTH, one.both, several.both))
    return [
        Comparison(about | {"direction": direction}, case.rows_q, Work(of_one), Work(of_all))
        for direction, of_one, of_all in works
    ]
