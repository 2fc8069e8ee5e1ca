"""gdpa under torch.distributed, on 2 and 4 processes with gloo: distributed_checks.py has the checks.

The checks of one number of processes share their processes, because they import much.
"""

from __future__ import annotations

from pathlib import Path

import distributed_checks as checks
import pytest
import torch
from processes import context

import gdpa

LIMIT = 300  # seconds, on a machine that also runs other programs


@pytest.mark.parametrize("world", list(checks.CHECKS))
def test_every_check_holds_on_all_processes(world: int, tmp_path: Path) -> None:
    failures = context.Queue()
    names = [check.__name__ for check in checks.CHECKS[world]]
    arguments = (world, str(tmp_path / "store"), names, failures)
    processes = [context.Process(target=checks.worker, args=(rank, *arguments)) for rank in range(world)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(LIMIT)
            if not failures.empty():
                break
        found = [] if failures.empty() else [failures.get()]
        assert not found, "rank {}, {}:\n{}".format(*found[0])
        assert [process.exitcode for process in processes] == [0] * world, "a process hangs or has died"
    finally:
        for process in processes:
            process.kill()


def test_the_sampler_balances_scores_and_loses_nothing() -> None:
    lengths = [737, *torch.randint(0, 400, (62,), generator=torch.Generator().manual_seed(0)).tolist()]
    sampler = gdpa.distributed.PairBalancedSampler(lengths, batch=21, world=4, seed=1)
    batches = list(sampler.epoch(0))
    assert len(batches) == len(sampler) == 3
    assert sorted(n for parts in batches for part in parts for n in part) == list(range(63))
    for parts in batches:
        work = [sum(lengths[n] ** 2 for n in part) for part in parts]
        longest = max(lengths[n] ** 2 for part in parts for n in part)
        assert max(work) <= max(1.15 * sum(work) / 4, longest)
    assert list(sampler.epoch(0)) == batches != list(sampler.epoch(1))
    assert [len(part) for part in sampler.divided([1])] == [1, 0, 0, 0]
    with pytest.raises(ValueError, match="batch, world: expected numbers from 1 up"):
        gdpa.distributed.PairBalancedSampler(lengths, 0)


def test_a_plan_balances_scores_instead_of_rows() -> None:
    plan = gdpa.distributed.ContextPlan([0, 60_000, 61_000, 65_536], window_size=(-1, 0), rank=1, world=4)
    assert plan.pairs[0] + plan.pairs[1] + plan.pairs[2] + plan.pairs[3] == sum(
        n * (n + 1) // 2 for n in (60_000, 1000, 4536)
    )
    assert max(plan.pairs) < 1.01 * min(plan.pairs)
    rows = [b - a for a, b in zip(plan.bounds_q, plan.bounds_q[1:], strict=False)]
    assert rows[0] > 2 * rows[1]


def test_a_plan_copies_to_a_device_only_once() -> None:
    """A copy from the host to a GPU waits for the GPU, so that no call after the first one may copy."""
    plan = gdpa.distributed.ContextPlan([0, 5, 12], window_size=(-1, 0), rank=0, world=2)
    device = torch.device("meta")  # stands for a GPU: another device than that of the plan
    for name in ("1/len_q", "1/len_k"):
        assert plan.out_scale(name, device) is plan.out_scale(name, device)
        assert plan.out_scale(name, torch.device("cpu")).tolist() == pytest.approx([1 / 5, 1 / 5, 1 / 7, 1 / 7])
    for first, second in zip(plan.offsets_on(device), plan.offsets_on(device), strict=True):
        assert first.device == device and first is second
