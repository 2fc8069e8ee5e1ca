"""The command ``python -m gdpa.train``: its options, its progress, and its steps."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# On some virtual machines the processor lists AMX but the system does not allow it, and PyTorch's bf16 products crash.
# PyTorch reads this variable when it is loaded.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

VARIANTS = "silu,gelu_tanh,learned,unordered,softmax,mean"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gdpa.train",
        description="Trains a sequential recommendation model on MovieLens 100K with gdpa's functions, with softmax "
        "attention and with mean pooling. Reports NDCG@10 and HR@10 of the last item of each user among all items, as "
        "mean and spread over the seeds. A killed run continues from its last epoch.",
    )
    parser.add_argument("--variants", default=VARIANTS, metavar="NAMES", help=f"kinds of attention ({VARIANTS})")
    parser.add_argument("--seeds", default=3, type=int, metavar="N", help="runs of each kind (3)")
    parser.add_argument("--epochs", default=10, type=int, metavar="N", help="epochs of a run (10)")
    parser.add_argument("--batch", default=32, type=int, metavar="N", help="users in a batch (32)")
    parser.add_argument("--history", default=50, type=int, metavar="N", help="most events of a user in a batch (50)")
    parser.add_argument("--users", type=int, metavar="N", help="use only the first N users (all 943)")
    parser.add_argument("--dim", default=64, type=int, metavar="N", help="width of the model (64)")
    parser.add_argument("--heads", default=2, type=int, metavar="N", help="attention heads (2)")
    parser.add_argument("--layers", default=2, type=int, metavar="N", help="HSTU layers (2)")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:N (cpu)")
    parser.add_argument("--bf16", action="store_true", help="train under autocast to bfloat16")
    parser.add_argument("--compile", action="store_true", help="train through torch.compile with dynamic lengths")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="runs at the same time on a CPU (the processors / --threads)"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads of a run (1; PyTorch's default if --jobs is 1)"
    )
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
    for name in ("seeds", "epochs", "batch", "history", "users", "dim", "heads", "layers", "threads", "jobs"):
        number = getattr(options, name)
        if number is not None and number < 1:
            parser.error(f"--{name.replace('_', '-')} is a number from 1 up, got {number}")
    if options.dim % options.heads:
        parser.error(f"--heads divides --dim, got {options.heads} and {options.dim}")
    names = options.variants.split(",")
    unknown = [name for name in names if name not in VARIANTS.split(",")]
    if unknown:
        parser.error(f"--variants has names of {VARIANTS}, got {unknown[0]}")
    options.names = names
    return options


def run(options: argparse.Namespace) -> None:
    import torch
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    import gdpa
    from gdpa.bench import device as devices
    from gdpa.train import data, report
    from gdpa.train.jobs import jobs_of, result_of, results_in_processes
    from gdpa.train.model import Sizes
    from gdpa.train.parallel import Ranks
    from gdpa.train.run import Settings

    device = devices.choose(options.device)
    ranks = Ranks.start(device.torch_device)
    if options.shard_tables and ranks.world == 1:
        raise ValueError("--shard-tables: expected several processes, got one; start it with torchrun")
    events = data.load(options.users)
    sizes = Sizes(data.ITEMS, options.dim, options.heads, options.layers)
    title = f"gdpa {gdpa.__version__}, PyTorch {torch.__version__}, on {device.describe()}"
    console = Console(quiet=ranks.rank > 0)
    console.print(title, highlight=False)
    console.print(
        f"MovieLens 100K: {events.users} users, {len(events.items)} events, the last two of each user held out",
        highlight=False,
    )
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    runs = [
        Settings(name, seed, options.epochs, options.batch, options.history, sizes, bf16=options.bf16)
        for name in options.names
        for seed in range(options.seeds)
    ]
    jobs = jobs_of(options, device.torch_device, ranks, len(runs))
    threads = options.threads or (torch.get_num_threads() if jobs == 1 else 1)
    with Progress(*columns, console=console) as progress:
        steps = options.epochs * -(-events.users // options.batch)
        task = progress.add_task("", total=len(runs) * steps)
        if jobs > 1:
            progress.update(task, description=f"{len(runs)} runs, {jobs} at a time")
            results = results_in_processes(runs, options, jobs, threads, lambda steps: progress.advance(task, steps))
        else:
            torch.set_num_threads(threads)
            results = []
            for one in runs:
                progress.update(task, description=f"{one.variant}, seed {one.seed}")
                results.append(
                    result_of(one, options, device.torch_device, ranks, lambda steps: progress.advance(task, steps))
                )

    settings_of_all = {
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
    if ranks.rank > 0:
        return
    report.show(console, results)
    files = report.write(options.output, f"train-{device.torch_device.type}", title, settings_of_all, results)
    console.print(f"Written: {', '.join(str(file) for file in files)}", highlight=False)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        run(options)
    except ModuleNotFoundError as missing:
        if missing.name not in ("rich", "matplotlib", "numpy"):
            raise
        print(f"gdpa.train: needs the package {missing.name}: pip install {missing.name}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gdpa.train: stopped; the same command continues from the checkpoints", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError) as refused:
        print(f"gdpa.train: {refused}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
