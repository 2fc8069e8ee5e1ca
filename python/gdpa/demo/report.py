"""The results of the demonstration: tables on the terminal, a picture, and a JSON file with the same numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from rich import box
from rich.console import Console
from rich.table import Table

from gdpa.demo.histories import Histories
from gdpa.demo.measure import RESULTS, Measurement


def table(title: str, *columns: str) -> Table:
    result = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    result.add_column("use")
    result.add_column("f")
    for column in columns:
        result.add_column(column, justify="right")
    return result


def print_errors(console: Console, measurements: Sequence[Measurement]) -> None:
    rows = table("Error against fp64 (relative 2-norm): gdpa | PyTorch in the same type", *RESULTS)
    for m in measurements:
        pairs = (m.errors(name) for name in RESULTS)
        rows.add_row(m.use.name, m.label, *(f"{ours:.1e}|{theirs:.1e}".replace("e-0", "e-") for ours, theirs in pairs))
    console.print(rows)


def print_times(console: Console, measurements: Sequence[Measurement]) -> None:
    rows = table(
        "All histories once; speed-up of forward and backward over padded (packed) PyTorch",
        *("fwd ms", "bwd ms", "fwd GFLOP/s", "bwd GFLOP/s", "speed-up"),
    )
    for m in measurements:
        times = (f"{seconds * 1e3:.1f}" for seconds in (m.times.forward, m.times.backward))
        rates = (f"{rate:.0f}" for rate in m.rates())
        rows.add_row(m.use.name, m.label, *times, *rates, speed_up(m))
    console.print(rows)


def speed_up(m: Measurement) -> str:
    packed = m.speed_up_over_packed()
    return f"{m.speed_up():.1f}x" + (f" ({packed:.1f}x)" if packed else "")


def as_row(m: Measurement) -> dict[str, Any]:
    forward, backward = m.rates()
    return {
        "use": m.use.name,
        "activation": m.activation,
        "forward_ms": m.times.forward * 1e3,
        "backward_ms": m.times.backward * 1e3,
        "forward_gflops": forward,
        "backward_gflops": backward,
        "speed_up_over_padded": m.speed_up(),
        "speed_up_over_packed": m.speed_up_over_packed(),
        "sampled": {
            "gdpa_forward_ms": m.sampled_times.forward * 1e3,
            "gdpa_backward_ms": m.sampled_times.backward * 1e3,
            "padded_forward_ms": m.padded_times.forward * 1e3,
            "padded_backward_ms": m.padded_times.backward * 1e3,
            "packed_forward_ms": m.packed_times.forward * 1e3,
            "packed_backward_ms": m.packed_times.backward * 1e3,
        },
        "errors": {name: dict(zip(("gdpa", "pytorch"), m.errors(name), strict=True)) for name in RESULTS},
    }


def write_json(file: Path, settings: dict[str, Any], histories: Histories, measurements: Sequence[Measurement]) -> None:
    lengths = histories.lengths
    document = {
        "settings": settings,
        "histories": {
            "users": histories.users,
            "events": len(histories.items),
            "shortest": int(lengths.min()),
            "longest": int(lengths.max()),
        },
        "measurements": [as_row(m) for m in measurements],
    }
    file.write_text(json.dumps(document, indent=2) + "\n")


def draw(file: Path, title: str, histories: Histories, measurements: Sequence[Measurement]) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = [f"{m.use.name}, {m.label}" for m in measurements]
    positions = range(len(measurements))
    figure, (lengths, rates, errors) = pyplot.subplots(
        1, 3, figsize=(16, 0.45 * len(labels) + 1.5), layout="constrained"
    )
    figure.suptitle(title)

    lengths.hist(histories.lengths.tolist(), bins=40, color="tab:gray")
    lengths.set(title="History lengths", xlabel="events", ylabel="users")

    for offset, color, name, column in ((-0.2, "tab:blue", "forward", 0), (0.2, "tab:orange", "backward", 1)):
        rates.barh(
            [p + offset for p in positions], [m.rates()[column] for m in measurements], 0.38, color=color, label=name
        )
    for position, m in zip(positions, measurements, strict=True):
        rates.annotate(
            f" {speed_up(m)}",
            (max(m.rates()), position),
            va="center",
            fontsize="small",
            color="dimgray",
        )
    rates.margins(x=0.35)
    rates.set(
        title="Rate; speed-up over padded (packed) PyTorch",
        xlabel="GFLOP/s over the scores that the mask selects",
        yticks=list(positions),
        yticklabels=labels,
    )
    rates.invert_yaxis()
    rates.legend(loc="lower right", fontsize="small")

    for name, marker in zip(RESULTS, "osd^", strict=True):
        ours, theirs = zip(*(m.errors(name) for m in measurements), strict=True)
        errors.plot(ours, positions, marker, color="tab:blue", label=f"{name}, gdpa")
        errors.plot(theirs, positions, marker, color="tab:orange", mfc="none", label=f"{name}, PyTorch")
    errors.set(title="Error against fp64", xlabel="relative 2-norm", yticks=list(positions), yticklabels=[])
    errors.set_ylim(rates.get_ylim())
    errors.set_xlim(left=0)
    errors.ticklabel_format(axis="x", scilimits=(0, 0))
    errors.grid(axis="x", alpha=0.4)
    errors.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")

    figure.savefig(file, dpi=120)
    pyplot.close(figure)
