"""The command ``python -m gdpa.train``: its options, its progress, and its steps."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import torch

import gdpa
from gdpa.bench import device as devices
from gdpa.bench.command_line import count, exit_code
from gdpa.bench.progress import Progress, silent
from gdpa.train import data, report
from gdpa.train.jobs import jobs_of, result_of, results_in_processes
from gdpa.train.model import VARIANTS, Sizes
from gdpa.train.parallel import Ranks
from gdpa.train.run import Settings

NAMES = ",".join(VARIANTS)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gdpa.train",
        description="Trains a sequential recommendation model on MovieLens 100K with gdpa's functions, with softmax "
        "attention and with mean pooling. Reports NDCG@10 and HR@10 of the last item of each user among all items, as "
        "mean and spread over the seeds. A killed run continues from its last epoch.",
    )
    parser.add_argument("--variants", default=NAMES, metavar="NAMES", help=f"kinds of attention ({NAMES})")
    for name, default, what in (
        ("seeds", 3, "runs of each kind (3)"),
        ("epochs", 10, "epochs of a run (10)"),
        ("batch", 32, "users in a batch (32)"),
        ("history", 50, "most events of a user in a batch (50)"),
        ("users", None, "use only the first N users (all 943)"),
        ("dim", 64, "width of the model (64)"),
        ("heads", 2, "attention heads (2)"),
        ("layers", 2, "HSTU layers (2)"),
        ("jobs", None, "runs at the same time on a CPU (the processors / --threads)"),
        ("threads", None, "CPU threads of a run (1; PyTorch's default if --jobs is 1)"),
    ):
        parser.add_argument(f"--{name}", type=count, default=default, metavar="N", help=what)
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:N (cpu)")
    parser.add_argument("--bf16", action="store_true", help="train under autocast to bfloat16")
    parser.add_argument("--compile", action="store_true", help="train through torch.compile with dynamic lengths")
    parser.add_argument(
        "--output", default=Path("results"), type=Path, metavar="FOLDER", help="folder of the report (results)"
    )
    parser.add_argument(
        "--checkpoints", type=Path, metavar="FOLDER", help="folder of the checkpoints (OUTPUT/checkpoints)"
    )
    parser.add_argument(
        "--shard-tables", action="store_true", help="divide the rows of the item table among the processes of torchrun"
    )
    parser.add_argument("--restart", action="store_true", help="ignore and replace existing checkpoints")
    options = parser.parse_args(arguments)
    if options.dim % options.heads:
        parser.error(f"--heads divides --dim, got {options.heads} and {options.dim}")
    options.names = options.variants.split(",")
    unknown = [name for name in options.names if name not in VARIANTS]
    if unknown:
        parser.error(f"--variants has names of {NAMES}, got {unknown[0]}")
    return options


def run(options: argparse.Namespace) -> None:
    device = devices.choose(options.device)
    ranks = Ranks.start(device.torch_device)
    if options.shard_tables and ranks.world == 1:
        raise ValueError("--shard-tables: expected several processes, got one; start it with torchrun")
    events = data.load(options.users)
    sizes = Sizes(data.ITEMS, options.dim, options.heads, options.layers)
    runs = [
        Settings(name, seed, options.epochs, options.batch, options.history, sizes, bf16=options.bf16)
        for name in options.names
        for seed in range(options.seeds)
    ]
    jobs = jobs_of(options, device.torch_device, ranks, len(runs))
    threads = options.threads or (torch.get_num_threads() if jobs == 1 else 1)
    title = f"gdpa {gdpa.__version__}, PyTorch {torch.__version__}, on {device.describe()}"
    progress = Progress(len(runs))
    if ranks.rank == 0:
        print(title)
        print(f"MovieLens 100K: {events.users} users, {len(events.items)} events, the last two of each user held out")

    def finish() -> None:
        progress(1.0, f"{jobs} at a time")
        progress.finish_case()

    if jobs > 1:
        print(f"{len(runs)} runs, {jobs} at a time")
        results = results_in_processes(runs, options, jobs, threads, finish)
    else:
        torch.set_num_threads(threads)
        results = []
        for one in runs:
            show = partial(progress if ranks.rank == 0 else silent, text=f"{one.variant}, seed {one.seed}")
            results.append(result_of(one, options, device.torch_device, ranks, show))
            progress.finish_case()
    if ranks.rank > 0:
        return
    progress.finish()
    report.table(results).show()
    settings = {
        "gdpa": gdpa.__version__,
        "torch": torch.__version__,
        "device": device.describe(),
        "threads": threads,
        "jobs": jobs,
        "users": events.users,
        "items": data.ITEMS,
        **{name: getattr(options, name) for name in ("epochs", "batch", "history", "dim", "heads", "layers", "bf16")},
        "compiled": options.compile,
        "processes": ranks.world,
        "shard_tables": options.shard_tables,
    }
    files = report.write(options.output, f"train-{device.torch_device.type}", title, settings, results)
    print(f"Written: {', '.join(str(file) for file in files)}")


def main(arguments: list[str] | None = None) -> int:
    return exit_code("gdpa.train", run, parse(arguments), "the same command continues from the checkpoints")


if __name__ == "__main__":
    sys.exit(main())
