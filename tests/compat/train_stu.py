"""Trains STULayer of generative-recommenders with its own attention and with gdpa's, from the same seed.

On a GPU, their kernel is Triton's fused layer, and gdpa replaces its attention operators, forward and backward. On the
CPU, their kernel is PYTORCH, and gdpa runs as the kernel TLX through gdpa.compat.install("hammer"). The task needs
attention: each token has a number, and the label says whether it is above the mean of the earlier tokens.

    python tests/compat/train_stu.py CHECKOUT --picture stu.png --json stu.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent


def lengths_of(options: argparse.Namespace, generator: torch.Generator) -> Tensor:
    return torch.randint(options.length // 8, options.length + 1, (options.batch,), generator=generator)


class Model(torch.nn.Module):
    """Two STU layers between a projection of the tokens and a projection to one logit."""

    def __init__(self, options: argparse.Namespace, kernel: Any) -> None:
        from generative_recommenders.modules.stu import STULayer, STULayerConfig, STUStack

        super().__init__()
        config = STULayerConfig(
            embedding_dim=options.width,
            num_heads=options.heads,
            hidden_dim=options.head_dim,
            attention_dim=options.head_dim,
            output_dropout_ratio=options.dropout,
            contextual_seq_len=options.contexts,
            max_attn_len=options.window or None,
        )
        self.read = torch.nn.Linear(options.inputs, options.width)
        self.stack = STUStack([STULayer(config) for _ in range(2)])
        self.stack.recursive_setattr("_hammer_kernel", kernel)
        self.write = torch.nn.Linear(options.width, 1)

    def forward(self, tokens: Tensor, lengths: Tensor, offsets: Tensor, longest: int, targets: Tensor) -> Tensor:
        x = self.read(tokens.float()).to(tokens.dtype)
        x = self.stack(x, lengths, offsets, longest, targets)
        return self.write(x.float()).squeeze(-1)


def batch_of(options: argparse.Namespace, generator: torch.Generator, device: torch.device) -> dict[str, Any]:
    lengths = lengths_of(options, generator)
    rows = [torch.randn(length, options.inputs, generator=generator) for length in lengths.tolist()]
    labels = []
    for row in rows:
        number = row[:, 0]
        before = (number.cumsum(0) - number) / torch.arange(len(number)).clamp(min=1)
        labels.append((number > before).float())
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    targets = torch.randint(1, options.length // 8, (options.batch,), generator=generator)
    return {
        "tokens": torch.cat(rows).to(device, getattr(torch, options.dtype)),
        "lengths": lengths.to(device),
        "offsets": offsets.to(device),
        "targets": targets.to(device),
        "labels": torch.cat(labels).to(device),
    }


def train(options: argparse.Namespace, kernel: Any) -> tuple[list[float], float]:
    """Returns the loss of each step, and the seconds of a step without the first ones."""
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    model = Model(options, kernel).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=options.rate)
    generator = torch.Generator().manual_seed(options.seed)
    losses, seconds = [], []
    for step in range(options.steps):
        batch = batch_of(options, generator, device)
        torch.manual_seed(step)  # dropout
        begin = time.perf_counter()
        labels = batch.pop("labels")
        logits = model(longest=options.length, **batch)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    after = sorted(seconds[len(seconds) // 5 :])
    return losses, after[len(after) // 2]


def turn_tma_off() -> None:
    """Makes the fused layer of generative-recommenders call its Triton kernels without TMA, as on GPUs before Hopper.

    With TMA, the loss was NaN after two steps on an H200. Without TMA, the layer learns on an H100. Issue 583 of their
    repository names a likely cause: the kernels assume packed rows, but the layer passes strided views of one tensor.
    """
    from generative_recommenders.ops.triton import triton_hstu_preprocess_and_attention as layer

    layer._should_enable_tma = lambda: False


def draw(path: Path, curves: dict[str, list[float]], title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axes, (name, losses) in zip((left, right), curves.items(), strict=True):
        axes.plot(losses, color="tab:blue")
        axes.set_title(name)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    left.set_ylabel("loss")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", help="of the activations; bfloat16 on a GPU, float32 on the CPU")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=64, help="the longest sequence")
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--inputs", type=int, default=8)
    parser.add_argument("--contexts", type=int, default=0)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--tma", action="store_true", help="let the Triton kernels use TMA on Hopper, where the loss was NaN"
    )
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.dtype = options.dtype or ("bfloat16" if options.device.startswith("cuda") else "float32")
    return options


def main() -> int:
    options = parse()
    sys.path.insert(0, str(HERE))
    import run

    import gdpa

    run.prepare_generative_recommenders(options.checkout.resolve())
    on_gpu = options.device.startswith("cuda")
    if not on_gpu:
        gdpa.compat.install("hammer")
    from generative_recommenders.common import HammerKernel

    if on_gpu and not options.tma:
        turn_tma_off()
    theirs = HammerKernel.TRITON if on_gpu else HammerKernel.PYTORCH
    curves, steps = {}, {}
    name = f"generative-recommenders, {theirs.name}"
    curves[name], steps[name] = train(options, theirs)
    if on_gpu:
        run.replace_kernels()
    curves["gdpa"], steps["gdpa"] = train(options, theirs if on_gpu else HammerKernel.TLX)
    if not run.calls and on_gpu:
        print("train_stu.py: expected calls of gdpa's kernels, got none")
        return 1
    pairs = list(zip(*curves.values(), strict=True))
    largest = max(abs(one - other) for one, other in pairs)
    for name, losses in curves.items():
        print(f"{name}: loss {losses[0]:.4f} to {losses[-1]:.4f}, {steps[name] * 1e3:.2f} ms a step")
    print(f"largest difference of the losses of a step: {largest:.2e}")
    if options.picture:
        name = torch.cuda.get_device_name(options.device) if on_gpu else options.device
        title = f"STULayer, {options.steps} steps, {options.dtype} on {name}; difference at most {largest:.1e}"
        draw(options.picture, curves, title)
    if options.json:
        settings = {key: value for key, value in vars(options).items() if not isinstance(value, Path)}
        document = {"options": settings, "losses": curves, "seconds": steps}
        lines = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in document.items())
        options.json.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    is_learning = all(losses[-1] < 0.8 * losses[0] for losses in curves.values())
    if not is_learning:
        print("train_stu.py: expected losses that fall by a fifth")
    return 0 if is_learning else 1


if __name__ == "__main__":
    sys.exit(main())
