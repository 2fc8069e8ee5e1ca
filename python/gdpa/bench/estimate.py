"""How long a run will take, said before it begins."""

from __future__ import annotations

from collections.abc import Sequence

from gdpa.bench.cases import Case
from gdpa.bench.device import Device
from gdpa.bench.measure import Effort
from gdpa.bench.progress import in_words
from gdpa.bench.systems import System


def estimate(plan: Sequence[tuple[Case, Sequence[System], Sequence[str]]], effort: Effort, device: Device) -> str:
    """In a sentence: the turns of every figure, which are known, and first calls, which compile, by experience."""
    figures, first_calls = 0, 0.0
    for case, systems, directions in plan:
        able = [system for system in systems if system.refusal(case) is None]
        figures += len(directions) * len(able) + (device.product(case.dtype) is not None)
        first_calls += len(directions) * sum(system.first_call for system in able)
    turns = figures * device.duration(effort.seconds)
    return (
        f"{len(plan)} cases, about {in_words(turns + first_calls)}: {in_words(turns)} of turns, the rest in first calls"
    )
