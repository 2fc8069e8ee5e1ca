"""A serving example: ``python -m gdpa.train.serve CHECKPOINT`` exports a trained model, loads it and scores a batch.

The exported program takes any number of users and events. A process that loads it must import gdpa, which registers the
operator.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gdpa.bench.agreement import Disagreement
from gdpa.bench.command_line import exit_code
from gdpa.train import data
from gdpa.train.data import Batch
from gdpa.train.model import VARIANTS, Recommender, Sizes


def load(checkpoint: Path) -> tuple[Recommender, int]:
    """Returns the model of a checkpoint of gdpa.train, and the most events of a user that it reads."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    settings: dict[str, Any] = state["settings"]
    model = Recommender(Sizes(**settings["sizes"]), VARIANTS[settings["variant"]])
    model.load_state_dict(state["model"])
    return model.eval(), settings["history"]


def inputs_of(batch: Batch) -> tuple[Tensor, ...]:
    """Returns the arguments of the model, which then scores the next item of each user."""
    return batch.items, batch.cu_seqlens, batch.cu_seqlens[1:].long() - 1


def export(model: Recommender, batch: Batch, file: Path) -> None:
    """Writes the model as a program for batches of any size. `batch` is an example with two users or more."""
    rows, users = torch.export.Dim("rows"), torch.export.Dim("users")
    shapes = ({0: rows}, {0: users + 1}, {0: users})
    with torch.no_grad():
        torch.export.save(torch.export.export(model, inputs_of(batch), dynamic_shapes=shapes), file)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gdpa.train.serve",
        description="Exports a trained model with torch.export, loads the program, and scores a batch of other users.",
    )
    parser.add_argument("checkpoint", type=Path, help="a file that gdpa.train has written, such as silu-0.pt")
    parser.add_argument("--program", type=Path, metavar="FILE", help="the exported program (CHECKPOINT.pt2)")
    return exit_code("gdpa.train.serve", run, parser.parse_args(arguments), "the program may be incomplete")


def run(options: argparse.Namespace) -> None:
    """Raises Disagreement if the scores of the program differ from those of the model."""
    model, history = load(options.checkpoint)
    events = data.load()
    if VARIANTS[options.checkpoint.stem.rpartition("-")[0]].attention is not None:
        raise ValueError("checkpoint: expected a model with gdpa's attention, got one with another attention")
    program = options.program or options.checkpoint.with_suffix(".pt2")
    export(model, events.batch(range(4), events.ends, history), program)
    served = torch.export.load(program).module()
    batch = events.batch(range(100, 116), events.ends, history)
    with torch.no_grad():
        got, wanted = served(*inputs_of(batch)), model(*inputs_of(batch))
    difference = float((got - wanted).abs().max())
    best = got.topk(3).indices.tolist()
    print(f"{program}: {program.stat().st_size / 1024:.0f} KiB")
    print(f"{len(best)} users with {len(batch.items)} events; largest difference from the model: {difference:.1e}")
    for user, items in list(enumerate(best, start=100))[:3]:
        print(f"user {user}: next items {items}")
    if not difference <= 1e-4:
        raise Disagreement(f"expected the scores of the model within 1e-4, got a difference of {difference:.1e}")


if __name__ == "__main__":
    sys.exit(main())
