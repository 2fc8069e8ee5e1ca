"""The command ``python -m gdpa.demo``: its options, its progress, and its steps."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

import gdpa
from gdpa.bench import command
from gdpa.bench import device as devices
from gdpa.bench.command_line import count, exit_code
from gdpa.bench.in_pytorch import elementwise
from gdpa.bench.progress import Progress
from gdpa.bench.shapes import DTYPES
from gdpa.demo import histories as data
from gdpa.demo.report import DemoReport, measure
from gdpa.demo.uses import USES

OWN_FUNCTION = "s * sigmoid(1.702 * s)"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gdpa.demo",
        description="Generalized Dot-Product Attention over the user histories of MovieLens 100K: causal "
        "self-attention, PFFN and PMA, forward and backward, with gelu, silu and a custom function; checked against "
        "fp64 and timed against padded PyTorch.",
    )
    parser.add_argument(
        "--activation", default=OWN_FUNCTION, metavar="TEXT", help=f'the custom function of s ("{OWN_FUNCTION}")'
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N (default: the GPU, if PyTorch has one)")
    parser.add_argument("--dtype", choices=DTYPES, help="type of query, key and value (float32; bfloat16 on a GPU)")
    for name, default, what in (
        ("batch", None, "users in a batch (64; 256 on a GPU)"),
        ("users", None, "use only the first N users (all 943)"),
        ("heads", 4, "attention heads (4)"),
        ("head-dim", 128, "elements in a head (128)"),
        ("threads", None, "CPU threads of gdpa and of PyTorch (PyTorch's default)"),
        ("samples", 2, "number of batches that are compared with fp64 and PyTorch (2)"),
    ):
        parser.add_argument(f"--{name}", type=count, default=default, metavar="N", help=what)
    parser.add_argument(
        "--output", default=Path("results"), type=Path, metavar="FOLDER",
        help="folder of demo.json, demo.md and demo.png",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="use 32 users in batches of 16 with head_dim 32; takes seconds"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.users, options.batch, options.head_dim = 32, 16, 32
    return options


def run(options: argparse.Namespace) -> None:
    if options.threads:
        torch.set_num_threads(options.threads)
    device = devices.choose(options.device)
    is_gpu = device.torch_device.type == "cuda"
    dtype = options.dtype or ("bfloat16" if is_gpu else "float32")
    users_in_a_batch = options.batch or (256 if is_gpu else 64)
    functions = dict.fromkeys(("gelu", "silu", options.activation))
    elementwise(options.activation)  # raises an error for a text that PyTorch or gdpa cannot compute, before any work
    gdpa.Activation(options.activation)

    histories = data.load(options.users)
    batches = list(histories.batches(users_in_a_batch))
    lengths = histories.lengths
    method = (
        f"{dtype}, {options.heads} heads of {options.head_dim}, {histories.users} users of MovieLens 100K with "
        f"{len(histories.items)} ratings, histories of {int(lengths.min())} to {int(lengths.max())} in {len(batches)} "
        f"batches of up to {users_in_a_batch} users"
    )
    print(method)
    for use in USES:
        print(f"  {use.name:<5} {use.description}")
    print(f"  own   {options.activation}")

    report = DemoReport("demo", device.describe(), torch.__version__, command.commit(), method)
    progress = Progress(len(USES) * len(functions))
    for use in USES:
        embedding = data.Embedding(
            histories, options.heads, options.head_dim, getattr(torch, dtype), device.torch_device
        )
        for text in functions:
            report.rows.append(measure(use, text, batches, embedding, options.samples, device, progress))
            progress.finish_case()
    progress.finish()
    report.show()
    print(f"Written: {', '.join(map(str, report.write(options.output)))}")


def main(arguments: list[str] | None = None) -> int:
    return exit_code("gdpa.demo", run, parse(arguments), "nothing is written")


if __name__ == "__main__":
    sys.exit(main())
