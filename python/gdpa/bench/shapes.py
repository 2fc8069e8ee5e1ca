"""The suites of shapes, and shapes given by options: their options, their cases, and their steps."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gdpa
from gdpa.bench import against
from gdpa.bench.cases import Case, by_shape, cases_of_suite, generate_lengths, read_lengths, suites
from gdpa.bench.command_line import count
from gdpa.bench.device import Device
from gdpa.bench.masks import NOTATION, mask_of_case
from gdpa.bench.measure import Effort, Plan, measure
from gdpa.bench.rates import RateReport
from gdpa.bench.report import heading
from gdpa.bench.systems import System, choose_systems, in_turn

SHAPES = "shapes"  # the command for shapes that the options give, and the subject of its documents
HELP = "Shapes that the options give: lengths, heads and head_dim"
DTYPES = ("float32", "float64", "bfloat16", "float16")
SHORT_DTYPES = {"fp32": "float32", "fp64": "float64", "bf16": "bfloat16", "fp16": "float16"}
GRADIENTS = ("qkv", "q", "k", "v", "qk", "qv", "kv")


def dtype(text: str) -> str:
    name = SHORT_DTYPES.get(text, text)
    if name not in DTYPES:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(DTYPES)}; got {text!r}")
    return name


def part(text: str) -> float:
    if not 0 <= float(text) <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1; got {text}")
    return float(text)


def add_options(parser: argparse.ArgumentParser, suite: str) -> None:
    group = parser.add_argument_group("shapes" if suite == SHAPES else "shapes of the suite")
    if suite == SHAPES:
        add_given_shapes(group)
    else:
        group.add_argument("--shapes", nargs="+", metavar="SHAPE", help="names, numbers or ranges such as 3-7 (all)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the generated lengths (0)")
    group = parser.add_argument_group("attention")
    defaults = ("float32", "gelu", "none") if suite == SHAPES else ("those of each shape",) * 3
    group.add_argument("--dtype", type=dtype, nargs="+", metavar="TYPE", help=f"{', '.join(DTYPES)} ({defaults[0]})")
    group.add_argument("--activation", nargs="+", metavar="F", help=f"names or expressions in s ({defaults[1]})")
    group.add_argument(
        "--mask", metavar="MASK",
        help="none, causal, window:LEFT,RIGHT, a mask such as hstu:64,128,8 (CONTEXTS,TARGETS,GROUP), or a condition "
        f"such as 'kv_idx <= q_idx' ({defaults[2]})",
    )  # fmt: skip
    group.add_argument("--direction", choices=("fwd", "bwd", "both"), default="both", help="(both)")
    group.add_argument(
        "--batch-limit", type=int, default=0, metavar="N", help="sequences in one call (all sequences of a shape)"
    )
    group = parser.add_argument_group("two builds of gdpa, in place of other systems")
    group.add_argument(
        "--against", type=Path, metavar="FOLDER",
        help="compare with another build of gdpa in FOLDER/gdpa; each build runs in a separate process",
    )  # fmt: skip
    group.add_argument(
        "--gradients", choices=GRADIENTS, default="qkv", metavar="WHICH",
        help="gradients of backward, with --against: q for dQ only, kv for dK and dV, and so on (qkv)",
    )  # fmt: skip


def add_given_shapes(group: Any) -> None:
    group.add_argument("--lengths", metavar="SOURCE", help="movielens, numbers such as 3,17,0,5, or a file of numbers")
    group.add_argument("--users", type=count, metavar="N", help="use only the first N of these lengths")
    group.add_argument("--batch", type=count, default=8, metavar="N", help="number of generated sequences (8)")
    group.add_argument("--max-length", type=int, default=256, metavar="N", help="longest generated length (256)")
    group.add_argument(
        "--fill", type=part, default=1.0, metavar="F", help="mean length divided by the longest length (1)"
    )
    group.add_argument("--heads", type=count, default=4, metavar="N", help="attention heads (4)")
    group.add_argument("--head-dim", type=count, default=64, metavar="N", help="elements in a head (64)")


def chosen_cases(options: argparse.Namespace) -> list[Case]:
    """Returns the cases of the options, with every type and every function."""
    if options.command != SHAPES:
        shapes = cases_of_suite(options.command, options.scale_batch, options.seed, options.shapes)
    else:
        lengths = generate_lengths(options.batch, options.max_length, options.fill, options.seed)
        if options.lengths:
            lengths = read_lengths(options.lengths)[: options.users]
        shapes = [Case(lengths, lengths, options.heads, options.head_dim)]
    cases = [
        replace(
            shape,
            dtype=dtype,
            activation=activation,
            mask=options.mask or shape.mask,
            batch_limit=options.batch_limit,
            gradients=options.gradients,
        )
        for shape in shapes
        for dtype in options.dtype or [shape.dtype]
        for activation in options.activation or [shape.activation]
    ]
    cases = list(dict.fromkeys(cases))
    for case in cases:
        check(case)
    return cases


def check(case: Case) -> None:
    """Raises ValueError for a mask or a function that gdpa cannot parse, before any measurement."""
    if not case.names_read:  # otherwise the first call parses it, with its tensors
        gdpa.Activation(case.activation)
    row, offsets = torch.zeros(1, 1, 1), torch.tensor([0, 1])
    try:
        mask = mask_of_case(replace(case, lengths_q=(1,), lengths_k=(1,)), torch.device("cpu"))
        gdpa.varlen_attention(row, row, row, offsets, offsets, mask=mask)
    except (RuntimeError, ValueError) as error:
        if case.has_window:
            raise ValueError(
                f"--mask: expected window:LEFT,RIGHT with numbers of at least -1 (no bound); got {case.mask!r}"
            ) from None
        raise ValueError(f"--mask: expected {NOTATION}; got {case.mask!r}: {error}") from None


def chosen_directions(options: argparse.Namespace, case: Case) -> list[str]:
    return [direction for direction in case.directions if options.direction in (direction, "both")]


def chosen_work(options: argparse.Namespace, systems: list[System]) -> list[tuple[Case, list[System], list[str]]]:
    """Returns each case with its systems and its selected directions."""
    work = []
    for case, functions in by_shape(chosen_cases(options)):
        if directions := chosen_directions(options, case):
            work.append((case, in_turn(systems, case, functions), directions))
    if not work:
        raise ValueError(f"--direction: expected a direction of these shapes; got {options.direction!r}")
    return work


def plan(options: argparse.Namespace, device: Device, effort: Effort) -> Plan:
    if options.against:
        cases = chosen_cases(options)
        work_of_builds = [(case, direction) for case in cases for direction in chosen_directions(options, case)]
        return against.plan(options.command, work_of_builds, options.against, device, effort)
    if options.gradients != "qkv":
        raise ValueError("--gradients: expected --against with it")
    usual = suites().get(options.command, {}).get("systems")
    systems = choose_systems(options.systems, options.without, device.torch_device.type, usual)
    work = chosen_work(options, systems)
    report = RateReport(*heading(options.command, device.describe(), effort.seconds, effort.rounds))
    steps = [partial(measure, *one, effort, device) for one in work]
    return Plan(report, steps, sum(figures_of(*one, device) for one in work))


def figures_of(case: Case, systems: Sequence[System], directions: Sequence[str], device: Device) -> int:
    """Returns the number of timed figures of a case: each able system in each direction, and cuBLAS."""
    able = sum(system.refusal(system.timed(case)) is None for system in systems)
    return len(directions) * able + (device.product(case.dtype) is not None)
