"""The command ``python -m gdpa.demo``: its options, its progress, and its steps."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# On some virtual machines the processor lists AMX but the system does not allow it, and PyTorch's bf16 products crash.
# PyTorch reads this variable when it is loaded.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

DTYPES = ("float32", "float64", "bfloat16", "float16")
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
    parser.add_argument("--batch", type=int, metavar="N", help="users in a batch (64; 256 on a GPU)")
    parser.add_argument("--users", type=int, metavar="N", help="use only the first N users (all 943)")
    parser.add_argument("--heads", default=4, type=int, metavar="N", help="attention heads (4)")
    parser.add_argument("--head-dim", default=128, type=int, metavar="N", help="elements in a head (128)")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads of gdpa and of PyTorch (PyTorch's default)"
    )
    parser.add_argument(
        "--samples",
        default=2,
        type=int,
        metavar="N",
        help="number of batches that are compared with fp64 and PyTorch (2)",
    )
    parser.add_argument(
        "--output", default=Path("results"), type=Path, metavar="FOLDER", help="folder of demo.png and demo.json"
    )
    parser.add_argument(
        "--quick", action="store_true", help="use 32 users in batches of 16 with head_dim 32; takes seconds"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.users, options.batch, options.head_dim = 32, 16, 32
    for name in ("batch", "heads", "head_dim", "threads", "samples"):
        number = getattr(options, name)
        if number is not None and number < 1:
            parser.error(f"--{name.replace('_', '-')} is a number from 1 up, got {number}")
    return options


def run(options: argparse.Namespace) -> None:
    import torch

    import gdpa
    from gdpa.bench import device as devices
    from gdpa.bench.in_pytorch import elementwise
    from gdpa.bench.progress import Progress
    from gdpa.demo import histories as data
    from gdpa.demo import report
    from gdpa.demo.measure import Measurement, measure
    from gdpa.demo.uses import USES

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
    title = (
        f"gdpa {gdpa.__version__}, PyTorch {torch.__version__}, {dtype}, {options.heads} heads of "
        f"{options.head_dim}, on {device.describe()}"
    )
    print(title)
    print(
        f"MovieLens 100K: {histories.users} users, {len(histories.items)} ratings, histories of {int(lengths.min())} "
        f"to {int(lengths.max())}; {len(batches)} batches of up to {users_in_a_batch} users"
    )
    for use in USES:
        print(f"  {use.name:<5} {use.description}")
    print(f"  own   {options.activation}")

    measurements = []
    progress = Progress(len(USES) * len(functions))
    for use in USES:
        embedding = data.Embedding(
            histories, options.heads, options.head_dim, getattr(torch, dtype), device.torch_device
        )
        for text in functions:
            measurement = Measurement(use, text)
            for index, _ in enumerate(measure(measurement, batches, embedding, options.samples, rounds=3), 1):
                progress(index / len(batches), f"{use.name}, {text}, batch {index} of {len(batches)}")
            progress.finish_case()
            measurements.append(measurement)
    progress.finish()

    report.show(measurements)
    options.output.mkdir(parents=True, exist_ok=True)
    settings = {
        "gdpa": gdpa.__version__,
        "torch": torch.__version__,
        "device": device.describe(),
        "dtype": dtype,
        "heads": options.heads,
        "head_dim": options.head_dim,
        "batch": users_in_a_batch,
        "threads": torch.get_num_threads(),
    }
    report.write_json(options.output / "demo.json", settings, histories, measurements)
    report.draw(options.output / "demo.png", title, histories, measurements)
    print(f"Written: {options.output / 'demo.json'}, {options.output / 'demo.png'}")


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        run(options)
    except ModuleNotFoundError as missing:
        if missing.name not in ("rich", "matplotlib", "numpy"):
            raise
        print(f"gdpa.demo: needs the package {missing.name}: pip install {missing.name}", file=sys.stderr)
        return 1
    except (ValueError, TypeError, OSError) as refused:
        print(f"gdpa.demo: {refused}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
