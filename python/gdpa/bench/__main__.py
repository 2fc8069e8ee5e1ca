"""The command `python -m gdpa.bench`: a subcommand for each suite, its options, its progress, and its exit codes."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import torch

from gdpa.bench import against, figures, norms, shapes
from gdpa.bench.cases import suites
from gdpa.bench.command_line import above_0, count, exit_code
from gdpa.bench.device import choose
from gdpa.bench.measure import Effort, Plan, Result, busy_warning
from gdpa.bench.progress import Progress, in_words
from gdpa.bench.rates import RateReport
from gdpa.bench.report import Report, merged, write_rows
from gdpa.bench.scaling import suite as scaling
from gdpa.bench.systems import add_checkout, systems_on
from gdpa.bench.training import suite as training

STANDARD_OUTPUT = Path("-")
# The suites with steps of their own. Each module has HELP, REPORT, and plan, which returns the steps. A module with
# options of its own also has add_options.
MODULES = {"figures": figures, "training": training, "norms": norms, "scaling": scaling}
REPORTS: dict[str, type[Report]] = {name: module.REPORT for name, module in MODULES.items()} | {
    against.SUBJECT: against.AgainstReport
}
WITHOUT_SYSTEMS = ("figures", "norms", "scaling")  # the commands that time gdpa and PyTorch only

EXAMPLES = """examples:
  python -m gdpa.bench hopper --device cuda --report
  python -m gdpa.bench hopper --systems gdpa --direction fwd --report part/fwd
  python -m gdpa.bench redraw part/*/hopper-h200.json --report
  python -m gdpa.bench hopper --activation gelu_tanh "s * exp(-s * s)" --against older-build --json rows.jsonl
  python -m gdpa.bench compat --checkout ads_model_kernel_library generative-recommenders --report
  python -m gdpa.bench shapes --lengths movielens --batch-limit 64 --head-dim 128 --mask causal --plot movielens.png
  python -m gdpa.bench training --model hstu kunlun --report
  python -m gdpa.bench uses --scale-batch 0.1 --direction fwd --json uses.jsonl
"""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options. `command` is the name of the subcommand."""
    parser = argparse.ArgumentParser(
        prog="python -m gdpa.bench",
        description="Times gdpa and every other system that can be imported, in alternation on the same problems; "
        "on a GPU, if PyTorch has one, also in alternation with cuBLAS. Each command has its own --help.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in (*suites(), shapes.SHAPES):
        description = suites()[name]["description"] if name in suites() else shapes.HELP
        command = commands.add_parser(name, help=description, description=f"{description}.")
        shapes.add_options(command, name)
        add_run(command, name)
    for name, module in MODULES.items():
        command = commands.add_parser(name, help=module.HELP, description=f"{module.HELP}.")
        if add_options := getattr(module, "add_options", None):
            add_options(command)
        add_run(command, name)
    redraw = commands.add_parser(
        "redraw", help="join the documents of --report and write page and picture again; measures nothing"
    )
    redraw.add_argument("files", type=Path, nargs="+", metavar="FILE", help=".json documents of one run, or one")
    add_output(redraw)
    listed = commands.add_parser("systems", help="print the names of all systems for a device")
    listed.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N (default: a GPU, if there is one)")
    return parser.parse_args(arguments)


def add_run(parser: argparse.ArgumentParser, command: str) -> None:
    """Adds the options of every command that measures."""
    if command not in WITHOUT_SYSTEMS:
        group = parser.add_argument_group("systems")
        group.add_argument(
            "--systems", nargs="+", metavar="NAME", help="time only these; the command `systems` prints the names"
        )
        group.add_argument("--without", nargs="+", default=[], metavar="NAME", help="time all systems except these")
        group.add_argument(
            "--checkout", type=Path, nargs="+", default=[], metavar="FOLDER",
            help="checkouts of ads_model_kernel_library and generative-recommenders, for Triton GDPA and Triton HSTU",
        )  # fmt: skip
    group = parser.add_argument_group("how")
    if command != shapes.SHAPES:
        group.add_argument("--scale-batch", type=above_0, default=1.0, metavar="F", help="factor on the batch (1)")
    group.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N (default: the GPU, if PyTorch has one)")
    seconds = f"0.5; {figures.CPU_SECONDS:g} for the figures; 0.9 on a GPU"
    group.add_argument("--seconds", type=float, metavar="S", help=f"time for each figure, over all rounds ({seconds})")
    group.add_argument("--rounds", type=count, default=3, metavar="N", help="number of rounds of all systems (3)")
    group.add_argument("--threads", type=count, metavar="N", help="CPU threads of gdpa and of PyTorch")
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json", type=Path, nargs="?", const=STANDARD_OUTPUT, metavar="FILE",
        help="write one JSON object for each row; to standard output without FILE",
    )  # fmt: skip
    group.add_argument("--plot", type=Path, metavar="FILE", help="write a picture, .png or .svg")
    group.add_argument(
        "--report", type=Path, nargs="?", const=Path("reports"), metavar="FOLDER",
        help="write COMMAND-DEVICE.json, .md and .png into this folder (reports)",
    )  # fmt: skip


def execute(options: argparse.Namespace, plan: Plan, seconds: float) -> Report:
    """Runs the steps of a plan, and writes the rows after each step, so that an interrupted run keeps them.

    `seconds` is the duration of a figure over all rounds.
    """
    report, steps = plan.report, len(plan.steps)
    total = Result(report.rows, report.refusals, report.measured)  # the lists of the report
    print(
        f"{steps} cases, {in_words(plan.figures * seconds)} of rounds in addition to the first calls", file=sys.stderr
    )
    progress = Progress(steps)
    for step in plan.steps:
        total.add(step(progress))
        progress.finish_case()
        if options.json and options.json != STANDARD_OUTPUT:
            write_rows(options.json, report.rows)
        if options.report:
            report.write_document(options.report)
    progress.finish()
    taken = sorted(((seconds, name) for name, seconds in total.first_calls.items()), reverse=True)
    if taken:
        words = ", ".join(f"{name} {in_words(seconds)}" for seconds, name in taken)
        print(f"first calls, including compilation: {words}", file=sys.stderr)
    return report


def hand_over(options: argparse.Namespace, report: Report) -> None:
    """Prints the tables, and writes the files of the options."""
    if options.json:
        write_rows(None if options.json == STANDARD_OUTPUT else options.json, report.rows)
    if options.json != STANDARD_OUTPUT:
        report.show()
    if options.plot and report.rows:
        report.draw(options.plot)
    if options.report:
        for path in report.write(options.report):
            print(f"written: {path}", file=sys.stderr)


def run(options: argparse.Namespace) -> None:
    if options.command == "redraw":
        hand_over(options, merged(options.files, REPORTS, RateReport))
        return
    device = choose(options.device)
    kind = device.torch_device.type
    if options.command == "systems":
        print("\n".join(system.name for system in systems_on(kind)))
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    for folder in getattr(options, "checkout", []):
        add_checkout(folder)
    busy = busy_warning() if kind == "cpu" else None
    if busy:
        print(busy, file=sys.stderr)
    effort = Effort(device.seconds if options.seconds is None else options.seconds, options.rounds)
    suite = MODULES.get(options.command, shapes)
    hand_over(options, execute(options, suite.plan(options, device, effort), device.duration(effort.seconds)))


def main(arguments: list[str] | None = None) -> int:
    warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors")
    return exit_code("gdpa.bench", run, parse(arguments), "--report writes each case when it has finished")


if __name__ == "__main__":
    sys.exit(main())
