"""Estimates the duration of a run before it begins."""

from __future__ import annotations

from collections.abc import Sequence

from gdpa.bench.cases import Case
from gdpa.bench.device import Device
from gdpa.bench.measure import Effort
from gdpa.bench.norms import Form
from gdpa.bench.progress import in_words
from gdpa.bench.systems import System
from gdpa.bench.training.batch import Shape
from gdpa.bench.training.contenders import Contender
from gdpa.bench.training.model_step import COMPILED_MODEL, EAGER_MODEL

START_OF_RANKS = 20.0  # estimated seconds to the first figure of --scaling: processes, process group and kernels
COMPILED_BLOCK, EAGER_BLOCK = 8.0, 0.5  # estimated seconds to the first gradients of a block


def estimate(plan: Sequence[tuple[Case, Sequence[System], Sequence[str]]], effort: Effort, device: Device) -> str:
    """Returns a sentence with the known duration of all rounds and the estimated duration of the first calls."""
    figures, first_calls, first_cases = 0, 0.0, dict[str, float]()
    for case, systems, directions in plan:
        able = [system for system in systems if system.refusal(case) is None]
        figures += len(directions) * len(able) + (device.product(case.dtype) is not None)
        first_calls += len(directions) * sum(system.first_call for system in able)
        first_cases |= {system.name: system.first_case for system in able}
    if device.torch_device.type == "cuda":
        first_calls += sum(first_cases.values())
    rounds = figures * device.duration(effort.seconds)
    return in_a_sentence(len(plan), rounds, first_calls)


def estimate_training(
    shapes: Sequence[Shape], contenders: Sequence[Contender], compile: bool, effort: Effort, device: Device
) -> str:
    """Returns the sentence for training steps. Their first calls compile a whole block, forward and backward."""
    figures, first_calls = 0, 0.0
    for shape in shapes:
        able = [one for one in contenders if one.system.refusal(shape.attention) is None]
        figures += len(able) + (device.product(shape.dtype) is not None)
        first_calls += len(able) * (COMPILED_BLOCK if compile else EAGER_BLOCK)
    return in_a_sentence(len(shapes), figures * device.duration(effort.seconds), first_calls)


def estimate_models(
    models: int, systems: Sequence[System], compile: bool, limit: float, effort: Effort, device: Device
) -> str:
    """Returns the sentence for training steps of models. The limit bounds the duration of each model."""
    first_calls = sum(COMPILED_MODEL + system.first_call if compile else EAGER_MODEL for system in systems)
    rounds = (len(systems) + compile) * device.duration(effort.seconds)
    if limit and first_calls + rounds > limit:
        return f"{models} models, about {in_words(limit)} for each, which is --limit"
    return in_a_sentence(models, models * rounds, models * first_calls)


def estimate_norms(forms: Sequence[Form], case: Case, effort: Effort, device: Device) -> str:
    """Returns the sentence for norms around attention."""
    figures = len(forms) + (device.product(case.dtype) is not None)
    first_calls = sum(COMPILED_BLOCK if form.is_compiled else EAGER_BLOCK for form in forms)
    return in_a_sentence(1, figures * device.duration(effort.seconds), first_calls)


def estimate_scaling(figures: int, effort: Effort) -> str:
    """Returns the sentence for calls on one rank and on all ranks. Their warm-up takes as long as their measurement."""
    return in_a_sentence(1, figures * 2 * effort.seconds, START_OF_RANKS)


def in_a_sentence(cases: int, rounds: float, first_calls: float) -> str:
    return (
        f"{cases} cases, about {in_words(rounds + first_calls)}: {in_words(rounds)} of rounds, the rest in first calls"
    )
