"""The command ``python -m gdpa.bench``: its options, its progress, and its steps."""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import sys
import warnings
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdpa.bench.cases import Case
    from gdpa.bench.device import Device
    from gdpa.bench.document import Document
    from gdpa.bench.figures import Figure
    from gdpa.bench.measure import Effort, Result
    from gdpa.bench.norms_report import NormsReport
    from gdpa.bench.report import Report
    from gdpa.bench.scaling.report import ScalingReport
    from gdpa.bench.systems import System
    from gdpa.bench.training.models_report import ModelsReport
    from gdpa.bench.training.report import TrainingReport

STANDARD_OUTPUT = Path("-")
DTYPES = ("float32", "float64", "bfloat16", "float16")
SHORT_DTYPES = {"fp32": "float32", "fp64": "float64", "bf16": "bfloat16", "fp16": "float16"}

EXAMPLES = """examples:
  python -m gdpa.bench --figures
  python -m gdpa.bench --training-step --device cuda --report
  python -m gdpa.bench --training-step --model hstu interformer kunlun --device cuda --report
  python -m gdpa.bench --norms --device cuda --report
  python -m gdpa.bench --scaling --device cuda --report
  python -m gdpa.bench --suite anchors --device cuda --report
  python -m gdpa.bench --suite score --device cuda --report
  python -m gdpa.bench --suite compat --checkout ads_model_kernel_library generative-recommenders --report
  python -m gdpa.bench --suite hopper --systems gdpa --direction fwd --report fwd
  python -m gdpa.bench --suite hopper --activation gelu_tanh "s * exp(-s * s)" --against older-build --json rows.jsonl
  python -m gdpa.bench --suite hopper --systems gdpa --direction bwd --report bwd
  python -m gdpa.bench --merge fwd/hopper-h200.json bwd/hopper-h200.json --report
  python -m gdpa.bench --lengths movielens --batch-limit 64 --head-dim 128 --mask causal --plot movielens.png
  python -m gdpa.bench --suite anchors --scale-batch 0.01 --direction fwd --json anchors.jsonl
  python -m gdpa.bench --batch 16 --max-length 300 --fill 0.5 --activation gelu silu --dtype float32 bfloat16
"""


def disable_forbidden_amx() -> None:
    """Disables AMX in oneDNN if the processor lists AMX but the operating system does not allow it.

    On some virtual machines, PyTorch's bf16 products otherwise end with an illegal instruction. oneDNN reads the
    variable at its first product. If the operating system allows AMX, nothing changes.
    """
    arch_prctl, request_permission, amx_tile_data = 158, 0x1023, 18
    if platform.machine() != "x86_64" or ctypes.CDLL(None).syscall(arch_prctl, request_permission, amx_tile_data) == 0:
        return
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def dtype(text: str) -> str:
    name = SHORT_DTYPES.get(text, text)
    if name not in DTYPES:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(DTYPES)}; got {text!r}")
    return name


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gdpa.bench",
        description="Times gdpa and every other system that can be imported, in alternation on the same problems; "
        "on a GPU, if PyTorch has one, also in alternation with cuBLAS.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("problems")
    what.add_argument(
        "--figures",
        action="store_true",
        help="measure the project's figures and compare them with their goals; takes minutes",
    )
    what.add_argument(
        "--training-step", action="store_true",
        help="time a step of a block (projections, attention, PFFN) with gdpa, padded, and with softmax",
    )  # fmt: skip
    what.add_argument(
        "--model", nargs="+", choices=("block", "hstu", "interformer", "kunlun"), default=["block"], metavar="NAME",
        help="with --training-step: block, or any of hstu, interformer and kunlun (block)",
    )  # fmt: skip
    what.add_argument(
        "--layers", type=int, default=2, metavar="N", help="layers of these models, also with --scaling (2)"
    )
    what.add_argument(
        "--norms", action="store_true",
        help="time LayerNorm, attention, RMSNorm and residual, fused and with PyTorch's norms, with its goal",
    )  # fmt: skip
    what.add_argument(
        "--scaling", action="store_true",
        help="time a training step under FSDP2, and context parallelism, on one GPU and on all GPUs, with their goals",
    )  # fmt: skip
    what.add_argument(
        "--against", type=Path, metavar="FOLDER",
        help="compare with another build of gdpa in FOLDER/gdpa; each build runs in a separate process",
    )  # fmt: skip
    what.add_argument("--suite", metavar="NAME", help="a built-in list of shapes; a wrong name prints all names")
    what.add_argument(
        "--shapes", nargs="+", metavar="SHAPE", help="shapes of the suite: names, numbers or ranges such as 3-7"
    )
    what.add_argument("--scale-batch", type=float, default=1.0, metavar="F", help="factor on the suite's batch (1)")
    what.add_argument("--lengths", metavar="SOURCE", help="movielens, numbers such as 3,17,0,5, or a file of numbers")
    what.add_argument("--users", type=int, metavar="N", help="use only the first N lengths")
    what.add_argument("--batch-limit", type=int, default=0, metavar="N", help="sequences in one call (all)")
    what.add_argument("--batch", type=int, default=8, metavar="N", help="number of generated sequences (8)")
    what.add_argument("--max-length", type=int, default=256, metavar="N", help="longest generated length (256)")
    what.add_argument(
        "--fill", type=float, default=1.0, metavar="F", help="mean length divided by the longest length (1)"
    )
    what.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the generated lengths (0)")
    what.add_argument("--heads", type=int, default=4, metavar="N", help="attention heads (4)")
    what.add_argument("--head-dim", type=int, default=64, metavar="N", help="elements in a head (64)")
    what.add_argument("--dtype", type=dtype, nargs="+", metavar="TYPE", help="float32, float64, bfloat16, float16")
    what.add_argument(
        "--activation",
        nargs="+",
        metavar="F",
        help="names or expressions in s (default: the suite's functions, or gelu)",
    )
    what.add_argument(
        "--mask",
        metavar="MASK",
        help="none, causal, window:LEFT,RIGHT, a mask such as hstu:64,128,8 (CONTEXTS,TARGETS,GROUP), or a condition "
        "such as 'kv_idx <= q_idx' (default: the suite's mask, or none)",
    )
    what.add_argument("--direction", choices=("fwd", "bwd", "both"), default="both", help="(both)")
    what.add_argument(
        "--gradients", choices=("qkv", "q", "k", "v", "qk", "qv", "kv"), default="qkv", metavar="WHICH",
        help="gradients of backward, with --against: q for dQ only, kv for dK and dV, and so on (qkv)",
    )  # fmt: skip
    what.add_argument(
        "--systems", nargs="+", metavar="NAME", help="time only these systems; --list-systems prints the names"
    )
    what.add_argument("--without", nargs="+", default=[], metavar="NAME", help="time all systems except these")
    what.add_argument(
        "--checkout", type=Path, nargs="+", default=[], metavar="FOLDER",
        help="checkouts of ads_model_kernel_library and generative-recommenders, for Triton GDPA and Triton HSTU",
    )  # fmt: skip
    what.add_argument("--list-systems", action="store_true", help="print the names and stop")
    how = parser.add_argument_group("how")
    how.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N (default: the GPU, if PyTorch has one)")
    how.add_argument(
        "--seconds", type=float, metavar="S", help="time for each figure, over all rounds (0.5; 0.9 on a GPU)"
    )
    how.add_argument("--rounds", type=int, default=3, metavar="N", help="number of rounds of all systems (3)")
    how.add_argument("--threads", type=int, metavar="N", help="CPU threads of gdpa and of PyTorch")
    how.add_argument(
        "--processes", type=int, metavar="N",
        help="with --scaling: the number of processes, one for each GPU (all visible GPUs; 2 on the CPU)",
    )  # fmt: skip
    how.add_argument(
        "--limit", type=float, default=60.0, metavar="S",
        help="with --model: seconds for each model, after which no further system begins; 0 has no limit (60)",
    )  # fmt: skip
    out = parser.add_argument_group("output")
    out.add_argument(
        "--merge", type=Path, nargs="+", metavar="FILE",
        help="measure nothing; join the .json files of several reports into one report",
    )  # fmt: skip
    out.add_argument(
        "--json", type=Path, nargs="?", const=STANDARD_OUTPUT, metavar="FILE",
        help="write one JSON object for each row; to standard output without FILE",
    )  # fmt: skip
    out.add_argument("--plot", type=Path, metavar="FILE", help="write a picture, .png or .svg")
    out.add_argument(
        "--report", type=Path, nargs="?", const=Path("reports"), metavar="FOLDER",
        help="write SUITE-DEVICE.json, .md and .png into this folder (reports)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    for name in ("batch", "heads", "head_dim", "rounds", "threads", "users", "layers", "processes"):
        number = getattr(options, name)
        if number is not None and number < 1:
            parser.error(f"--{name.replace('_', '-')}: expected a number from 1 up; got {number}")
    if options.shapes and not options.suite:
        parser.error("--shapes: expected --suite, because --shapes selects shapes of a suite")
    if options.gradients != "qkv" and not options.against:
        parser.error("--gradients: expected --against with it")
    if options.processes and not options.scaling:
        parser.error("--processes: expected --scaling with it")
    if options.model != ["block"] and (not options.training_step or "block" in options.model):
        parser.error("--model: expected --training-step with it, and either block or other models")
    if not 0 <= options.fill <= 1 or options.scale_batch <= 0:
        parser.error("--fill: expected a number from 0 to 1, and --scale-batch one above 0")
    return options


def chosen_cases(options: argparse.Namespace) -> list[Case]:
    """Returns the cases of the options, with every type and every function."""
    from dataclasses import replace

    from gdpa.bench.cases import Case, cases_of_suite, generate_lengths, read_lengths

    if options.suite:
        shapes = cases_of_suite(options.suite, options.scale_batch, options.seed, options.shapes)
    else:
        lengths = (
            read_lengths(options.lengths)[: options.users]
            if options.lengths
            else generate_lengths(options.batch, options.max_length, options.fill, options.seed)
        )
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
    from dataclasses import replace

    import gdpa

    if not case.names_read:  # otherwise the first call parses it, with its tensors
        gdpa.Activation(case.activation)
    if not case.has_window:
        import torch

        from gdpa.bench.masks import NOTATION, mask_of_case

        one = replace(case, lengths_q=(1,), lengths_k=(1,))
        row = torch.zeros(1, 1, 1)
        offsets = torch.tensor([0, 1])
        mask = mask_of_case(one, torch.device("cpu"))
        try:
            gdpa.varlen_attention(row, row, row, offsets, offsets, mask=mask)
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"--mask: expected {NOTATION}; got {case.mask!r}: {error}") from None
        return
    try:
        left, right = case.window
    except ValueError:
        left = right = -2
    if min(left, right) < -1:
        raise ValueError(
            f"--mask: expected window:LEFT,RIGHT with numbers of at least -1 (no bound); got {case.mask!r}"
        )


def systems_on(kind: str) -> list[System]:
    """Returns all systems for this kind of device."""
    from gdpa.bench.systems import SYSTEMS

    return [system for system in SYSTEMS if kind in system.devices]


def chosen_systems(options: argparse.Namespace, kind: str) -> list[System]:
    """Returns the systems of the options, of the suite, or the usual systems for this kind of device."""
    from gdpa.bench.cases import suite_named

    known = {system.name: system for system in systems_on(kind)}
    for option, names in (("--systems", options.systems or []), ("--without", options.without)):
        for name in names:
            if name not in known:
                raise ValueError(f"{option}: expected names among {', '.join(known)} on {kind}; got {name!r}")
    usual = [system.name for system in known.values() if system.is_usual]
    of_suite = suite_named(options.suite).get("systems", usual) if options.suite else usual
    chosen = options.systems or [name for name in of_suite if name in known]
    systems = [known[name] for name in chosen if name not in options.without]
    for one, other in combinations(systems, 2):
        if one.row_name == other.row_name:
            raise ValueError(
                f"--systems: expected either {one.name} or {other.name}, not both: "
                f"both are called {one.row_name!r} in the report"
            )
    return systems


def chosen_work(options: argparse.Namespace, systems: list[System]) -> list[tuple[Case, list[System], list[str]]]:
    """Returns each case with its systems and its selected directions."""
    from gdpa.bench.cases import by_shape
    from gdpa.bench.systems import in_turn

    work = []
    for case, functions in by_shape(chosen_cases(options)):
        directions = [direction for direction in case.directions if options.direction in (direction, "both")]
        if directions:
            work.append((case, in_turn(systems, case, functions), directions))
    if not work:
        raise ValueError(f"--direction: expected a direction of these shapes; got {options.direction!r}")
    return work


def run_cases(options: argparse.Namespace, device: Device, effort: Effort, systems: list[System]) -> Result:
    from gdpa.bench.estimate import estimate
    from gdpa.bench.measure import Result, measure
    from gdpa.bench.progress import Progress
    from gdpa.bench.rows import write_json

    plan = chosen_work(options, systems)
    print(estimate(plan, effort, device), file=sys.stderr)
    result, progress = Result(), Progress(len(plan))
    for case, in_this_case, directions in plan:
        result.add(measure(case, in_this_case, directions, effort, device, progress))
        progress.finish_case()
        # Write the rows immediately, so that an interrupted run does not lose the finished rows.
        if options.json and options.json != STANDARD_OUTPUT:
            write_json(options.json, result.rows)
        if options.report:
            report_of(options, device, effort, result, []).write_document(options.report)
    progress.finish()
    say_first_calls(result)
    return result


def run_against(options: argparse.Namespace, device: Device, effort: Effort) -> None:
    """Prints a table with the speed-up of this build over the other build, and writes JSON rows for --json."""
    from gdpa.bench.against import COLUMNS, Comparison, compare
    from gdpa.bench.rows import print_not_run, print_table, write_json

    def write(rows: list[Comparison]) -> None:
        if options.json and options.json != STANDARD_OUTPUT:
            write_json(options.json, rows)

    work = []
    for case in chosen_cases(options):
        directions = [direction for direction in case.directions if options.direction in (direction, "both")]
        work += [(case, directions)] if directions else []
    rows, refusals = compare(work, options.against, str(device.torch_device), device.describe(), effort, write)
    if options.json == STANDARD_OUTPUT:
        write_json(None, rows)
    else:
        write(rows)  # of no case, if all are refused
        print_table(f"against {options.against}", COLUMNS, [row.cells() for row in rows], texts=5)
    print_not_run(refusals)


def say_first_calls(result: Result) -> None:
    from gdpa.bench.progress import in_words

    taken = sorted(((seconds, name) for name, seconds in result.first_calls.items()), reverse=True)
    words = ", ".join(f"{name} {in_words(seconds)}" for seconds, name in taken)
    print(f"first calls, including compilation: {words}", file=sys.stderr)


def run_figures(options: argparse.Namespace, device: Device, effort: Effort) -> tuple[Result, list[Figure]]:
    from gdpa.bench.progress import Progress

    progress = Progress(1)
    if device.torch_device.type == "cuda":
        from gdpa.bench import figures_gpu

        measured = figures_gpu.measure_figures(effort, device, options.scale_batch, progress)
    else:
        from gdpa.bench import figures_cpu

        measured = figures_cpu.measure_figures(effort, device, options.users, progress)
    progress.finish()
    return measured


def run_training(options: argparse.Namespace, device: Device, effort: Effort, systems: list[System]) -> TrainingReport:
    from gdpa.bench.estimate import estimate_training
    from gdpa.bench.measure import Result
    from gdpa.bench.progress import Progress
    from gdpa.bench.training.batch import shapes_on
    from gdpa.bench.training.contenders import contenders_of
    from gdpa.bench.training.report import TRAINING, Step, TrainingReport
    from gdpa.bench.training.step import measure_steps

    kind = device.torch_device.type
    shapes, contenders, compile = shapes_on(kind, options.scale_batch), contenders_of(systems), kind == "cuda"
    if not contenders:
        raise ValueError(
            f"--systems: expected gdpa, padded or a softmax on packed operands; got {' '.join(options.systems or [])!r}"
        )
    print(estimate_training(shapes, contenders, compile, effort, device), file=sys.stderr)
    steps: list[Step] = []
    result, progress = Result(), Progress(len(shapes))
    report = TrainingReport(*circumstances(TRAINING, device, effort), steps, result)
    for shape in shapes:
        steps_of_shape, result_of_shape = measure_steps(shape, contenders, compile, effort, device, progress)
        steps += steps_of_shape
        result.add(result_of_shape)
        progress.finish_case()
        if options.report:
            report.write_document(options.report)
    progress.finish()
    say_first_calls(result)
    return report


def run_models(options: argparse.Namespace, device: Device, effort: Effort, systems: list[System]) -> ModelsReport:
    from gdpa.bench.estimate import estimate_models
    from gdpa.bench.measure import Result
    from gdpa.bench.progress import Progress
    from gdpa.bench.training.attentions import can_train
    from gdpa.bench.training.model_step import measure_model
    from gdpa.bench.training.models import model_shape
    from gdpa.bench.training.models_report import MODELS_SUBJECT, ModelsReport, ModelStep

    kind = device.torch_device.type
    models = list(dict.fromkeys(options.model))
    able, compile = [system for system in systems if can_train(system)], kind == "cuda"
    if not able:
        raise ValueError(
            "--systems: expected gdpa, padded, FlexAttention or a system on packed operands; got "
            f"{' '.join(options.systems or [])!r}"
        )
    able.sort(key=lambda system: system.first_call)  # the slowest first calls come last, because of the limit
    able.sort(key=lambda system: system.name != "gdpa")
    print(estimate_models(len(models), able, compile, options.limit, effort, device), file=sys.stderr)
    steps: list[ModelStep] = []
    result, progress = Result(), Progress(len(models))
    report = ModelsReport(*circumstances(MODELS_SUBJECT, device, effort), steps, result)
    for model in models:
        shape = model_shape(model, options.layers, kind, options.scale_batch)
        steps_of_model, result_of_model = measure_model(
            shape, able, compile, options.limit, effort, device, progress
        )  # fmt: skip
        steps += steps_of_model
        result.add(result_of_model)
        progress.finish_case()
        if options.report:
            report.write_document(options.report)
    progress.finish()
    say_first_calls(result)
    return report


def run_norms(options: argparse.Namespace, device: Device, effort: Effort) -> NormsReport:
    from gdpa.bench.estimate import estimate_norms
    from gdpa.bench.norms import case_on, forms_of, measure_norms
    from gdpa.bench.norms_report import NORMS, NormsReport
    from gdpa.bench.progress import Progress

    kind = device.torch_device.type
    case = case_on(kind, options.scale_batch)
    forms = forms_of(case, device.torch_device, compile=kind == "cuda")
    print(estimate_norms(forms, case, effort, device), file=sys.stderr)
    progress = Progress(1)
    rows, result = measure_norms(case, forms, effort, device, progress)
    progress.finish()
    say_first_calls(result)
    return NormsReport(*circumstances(NORMS, device, effort), rows, result)


def processes_on(device: Device, wanted: int | None) -> int:
    """Returns the number of processes of --scaling.

    Raises ValueError if PyTorch has one GPU only, and for a number below 2 or above the number of GPUs.
    """
    import torch

    if device.torch_device.type == "cpu":
        if wanted == 1:
            raise ValueError("--processes: expected at least 2, because --scaling compares several with one; got 1")
        return wanted or 2
    found = torch.cuda.device_count()
    if found < 2:
        raise ValueError(
            f"--scaling: needs several GPUs; PyTorch finds one, {device.describe()}; make more visible "
            "(CUDA_VISIBLE_DEVICES; `nvidia-smi -L` lists all), or pass --device cpu to see that the command works"
        )
    if wanted and not 2 <= wanted <= found:
        raise ValueError(f"--processes: expected a number from 2 to {found}, the number of GPUs; got {wanted}")
    return wanted or found


def run_scaling(options: argparse.Namespace, device: Device, effort: Effort) -> ScalingReport:
    from gdpa.bench.estimate import estimate_scaling
    from gdpa.bench.progress import Progress
    from gdpa.bench.scaling.launch import launch
    from gdpa.bench.scaling.measurement import FIGURES, Settings, measure_on_rank
    from gdpa.bench.scaling.report import SCALING, ScalingReport

    if options.device not in (None, "cpu", "cuda"):
        raise ValueError(
            f"--device: expected cpu or cuda with --scaling, got {options.device!r}; CUDA_VISIBLE_DEVICES selects GPUs"
        )
    processes = processes_on(device, options.processes)
    print(estimate_scaling(FIGURES, effort), file=sys.stderr)
    kind = device.torch_device.type
    settings = Settings(kind, options.layers, options.scale_batch, options.threads, effort)
    progress = Progress(1)
    rows = launch(measure_on_rank, processes, (settings,), progress)
    progress.finish()
    subject, name, torch_version, commit, method = circumstances(SCALING, device, effort)
    name = f"{name}, {processes} {'GPUs' if kind == 'cuda' else 'processes'}"
    return ScalingReport(subject, name, torch_version, commit, method, rows)


def chosen_effort(options: argparse.Namespace, device: Device) -> Effort:
    from gdpa.bench.measure import Effort

    seconds = device.seconds
    if options.figures and device.torch_device.type == "cpu":
        from gdpa.bench.figures_cpu import SECONDS as seconds
    return Effort(seconds if options.seconds is None else options.seconds, options.rounds)


def circumstances(subject: str, device: Device, effort: Effort) -> tuple[str, str, str, str, str]:
    """Returns the heading of a document: subject, device, PyTorch, commit and method."""
    import torch

    from gdpa.bench import command

    seconds = effort.seconds / effort.rounds
    method = f"{effort.rounds} rounds, {seconds:.2g} s for each system in a round, by docs/benchmarks.md"
    return subject, device.describe(), torch.__version__, command.commit(), method


def report_of(
    options: argparse.Namespace, device: Device, effort: Effort, result: Result, figures: list[Figure]
) -> Report:
    from gdpa.bench.report import Report

    subject = "figures" if options.figures else options.suite or "shapes"
    return Report(*circumstances(subject, device, effort), result, figures)


def hand_over(options: argparse.Namespace, report: Document) -> None:
    """Prints the tables, and writes the files of the options."""
    from gdpa.bench.rows import write_json

    if options.json:
        write_json(None if options.json == STANDARD_OUTPUT else options.json, report.rows)
    if options.json != STANDARD_OUTPUT:
        report.show()
    if options.plot and report.rows:
        report.draw(options.plot)
    if options.report:
        for path in report.write(options.report):
            print(f"written: {path}", file=sys.stderr)


def run(options: argparse.Namespace) -> int:
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    from gdpa.bench.device import choose
    from gdpa.bench.measure import busy_warning
    from gdpa.bench.report import merged

    if options.merge:
        hand_over(options, merged(options.merge))
        return 0
    from gdpa.bench.systems import add_checkout

    for folder in options.checkout:
        add_checkout(folder)
    device = choose(options.device)
    kind = device.torch_device.type
    if options.list_systems:
        print("\n".join(system.name for system in systems_on(kind)))
        return 0
    systems = chosen_systems(options, kind)
    busy = busy_warning() if kind == "cpu" else None
    if busy:
        print(busy, file=sys.stderr)
    effort = chosen_effort(options, device)
    if options.against:
        run_against(options, device, effort)
        return 0
    report: Document
    if options.scaling:
        report = run_scaling(options, device, effort)
    elif options.norms:
        report = run_norms(options, device, effort)
    elif options.training_step and options.model != ["block"]:
        report = run_models(options, device, effort, systems)
    elif options.training_step:
        report = run_training(options, device, effort, systems)
    elif options.figures:
        report = report_of(options, device, effort, *run_figures(options, device, effort))
    else:
        report = report_of(options, device, effort, run_cases(options, device, effort, systems), [])
    hand_over(options, report)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns the exit code.

    The codes are 0 for success, 1 for a result outside its promise or a failed rank of --scaling, 2 for a wrong
    argument, 3 for a missing component, and 130 after an interruption from the keyboard.
    """
    disable_forbidden_amx()
    options = parse(arguments)
    warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors")
    from gdpa.bench.agreement import Disagreement
    from gdpa.bench.scaling.launch import RankFailed

    try:
        return run(options)
    except (Disagreement, RankFailed) as error:
        print(f"gdpa.bench: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as missing:
        print(f"gdpa.bench: needs the package {missing.name}: pip install {missing.name}", file=sys.stderr)
        return 3
    except (ValueError, TypeError) as refused:
        print(f"gdpa.bench: {refused}", file=sys.stderr)
        return 2
    except OSError as failed:
        print(f"gdpa.bench: {failed}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("\ngdpa.bench: interrupted; --report writes each case when it has finished", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
