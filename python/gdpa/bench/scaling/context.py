"""Attention over one long sequence, on one rank and with its rows on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from gdpa.bench.agreement import AGREEMENT, checked_difference
from gdpa.bench.cases import Case
from gdpa.bench.device import Work
from gdpa.bench.measure import forward_alone
from gdpa.bench.scaling.ranks import CONTEXT, Comparison, Ranks
from gdpa.bench.systems import Gdpa
from gdpa.bench.systems.base import Operands, Prepared, offsets
from gdpa.distributed import ContextPlan, context_parallel_attention

MASKS = ("none", "causal")
NAMES = ("output", "gradient of the query", "gradient of the key", "gradient of the value")


def case_on(kind: str, mask: str, factor: float = 1.0) -> Case:
    """Returns the case of this kind of device. The CPU case is very small. It only shows that the command works."""
    rows, heads, head_dim, dtype = (65_536, 4, 128, "bfloat16") if kind == "cuda" else (64, 2, 16, "float32")
    rows = max(1, round(rows * factor))
    return Case((rows,), (rows,), heads, head_dim, dtype, "silu", mask, name=f"1 of {rows}")


def prepared(compute: Callable[..., Tensor], operands: Sequence[Tensor], grad_output: Tensor) -> Prepared:
    inputs = [one.detach().requires_grad_() for one in operands]
    return Prepared(lambda: [compute(*inputs)], inputs, [grad_output])


def both(of: Prepared) -> list[Tensor]:
    """Returns the output and the gradients."""
    outputs = of.forward()
    return [outputs[0].detach(), *of.backward(outputs)]


def comparisons_of(ranks: Ranks, case: Case) -> list[Comparison]:
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
    expected = [shard(tensor) for shard, tensor in zip([plan.shard_queries, *shards], both(one), strict=True)]
    difference = checked_difference(
        str(case.name), CONTEXT, dict(zip(NAMES, both(several), strict=True)),
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

    return [comparison("fwd", forward_alone), comparison("fwd+bwd", both)]
