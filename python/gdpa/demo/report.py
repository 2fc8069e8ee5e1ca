"""The results of the demonstration: tables on the terminal, a picture, and a JSON file with the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from gdpa.bench.report import Table
from gdpa.demo.histories import Histories
from gdpa.demo.measure import RESULTS, Measurement


def speed_up(m: Measurement) -> str:
    packed = m.speed_up("packed")
    return f"{m.speed_up('padded'):.1f}x" + (f" ({packed:.1f}x)" if packed else "")


def errors_of(name: str) -> Callable[[Measurement], str]:
    return lambda m: "|".join(f"{error:.1e}" for error in m.errors(name)).replace("e-0", "e-")


NAMES: dict[str, Callable[[Measurement], str]] = {"use": lambda m: m.use.name, "f": lambda m: m.label}
ERRORS = NAMES | {name: errors_of(name) for name in RESULTS}
TIMES = NAMES | {
    "fwd ms": lambda m: f"{m.times.forward * 1e3:.1f}",
    "bwd ms": lambda m: f"{m.times.backward * 1e3:.1f}",
    "fwd GFLOP/s": lambda m: f"{m.rates()[0]:.0f}",
    "bwd GFLOP/s": lambda m: f"{m.rates()[1]:.0f}",
    "speed-up": speed_up,
}


def show(measurements: Sequence[Measurement]) -> None:
    """Prints the tables of the errors and of the times."""
    errors = "Error against fp64 (relative 2-norm): gdpa | PyTorch in the same type"
    times = "All histories once; speed-up of forward and backward over padded (packed) PyTorch"
    for heading, columns in ((errors, ERRORS), (times, TIMES)):
        Table.of(heading, columns, measurements, texts=len(NAMES)).show()


def as_row(m: Measurement) -> dict[str, Any]:
    forward, backward = m.rates()
    return {
        "use": m.use.name,
        "activation": m.activation,
        "forward_ms": m.times.forward * 1e3,
        "backward_ms": m.times.backward * 1e3,
        "forward_gflops": forward,
        "backward_gflops": backward,
        "speed_up_over_padded": m.speed_up("padded"),
        "speed_up_over_packed": m.speed_up("packed"),
        "sampled": {
            f"{name}_{direction}_ms": getattr(m.sampled[name], direction) * 1e3
            for name in m.sampled
            for direction in ("forward", "backward")
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
        place = (max(m.rates()), position)
        rates.annotate(f" {speed_up(m)}", place, va="center", fontsize="small", color="dimgray")
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
