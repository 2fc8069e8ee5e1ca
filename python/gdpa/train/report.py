"""The results of the training runs: a table, a picture of the loss curves, and a JSON file with all numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

COLUMNS = ("attention", "AUC", "NDCG@10", "last loss", "ms a step")
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:gray")
SMOOTHED = 10  # steps in the mean of a loss in the picture and in the table


@dataclass(frozen=True)
class Result:
    """One run."""

    variant: str
    seed: int
    losses: list[float]  # of each step
    auc: float
    ndcg: float
    milliseconds: float  # of a training step


def spread(numbers: Sequence[float], digits: int) -> str:
    """Returns the mean, and the standard deviation if there are several numbers."""
    deviation = f" ± {stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
    return f"{fmean(numbers):.{digits}f}{deviation}"


def lines(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Returns the cells of COLUMNS, one line for each variant."""
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(one.variant for one in results):
        runs = [one for one in results if one.variant == name]
        rows.append(
            (
                name,
                spread([one.auc for one in runs], 4),
                spread([one.ndcg for one in runs], 4),
                spread([fmean(one.losses[-SMOOTHED:]) for one in runs], 3),
                f"{fmean(one.milliseconds for one in runs):.0f}",
            )
        )
    return rows


def show(console: Console, results: Sequence[Result]) -> None:
    """Prints the table."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if number else "left")
    for line in lines(results):
        table.add_row(*line)
    console.print(table)


def write(
    folder: Path, name: str, title: str, settings: dict[str, Any], results: Sequence[Result]
) -> tuple[Path, Path, Path]:
    """Writes the JSON file, the table as a page, and the picture. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / f"{name}.json", folder / f"{name}.md", folder / f"{name}.svg"
    document = {"settings": settings, "runs": [asdict(one) for one in results]}
    files[0].write_text(json.dumps(document, indent=1) + "\n")
    files[1].write_text(page(title, files[2].name, settings, results))
    draw(files[2], title, results)
    return files


def page(title: str, picture: str, settings: dict[str, Any], results: Sequence[Result]) -> str:
    """Returns the page with the table."""
    runs = len({one.seed for one in results})
    head = f"| {' | '.join(COLUMNS)} |\n|---|{'---:|' * (len(COLUMNS) - 1)}"
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines(results))
    return (
        f"# A model that learns MovieLens 100K\n\n{title}.\n\n"
        f"A model of {settings['layers']} HSTU layers of width {settings['dim']} learned {settings['steps']} batches "
        f"of {settings['batch']} users, from the events until the split. The numbers are means and standard deviations "
        f"of {runs} seeds, on the events after the split. Only the attention differs between the lines.\n\n"
        f"{head}\n{body}\n\n![The loss curves]({picture})\n"
    )


def draw(file: Path, title: str, results: Sequence[Result]) -> None:
    """Draws the loss curves: the mean over the seeds, and the range of the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "gdpa"
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7.2, 3.8), layout="constrained")
    for name, colour in zip(dict.fromkeys(one.variant for one in results), COLOURS, strict=False):
        curves = [smoothed(one.losses) for one in results if one.variant == name]
        steps = range(1, len(curves[0]) + 1)
        axis.plot(steps, [fmean(at) for at in zip(*curves, strict=True)], color=colour, label=name)
        low, high = zip(*((min(at), max(at)) for at in zip(*curves, strict=True)), strict=True)
        axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.set(xlabel="step", ylabel=f"loss, mean of {SMOOTHED} steps")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=8)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def smoothed(losses: Sequence[float]) -> list[float]:
    """Returns the mean of the last SMOOTHED losses at each step."""
    return [fmean(losses[max(0, step - SMOOTHED + 1) : step + 1]) for step in range(len(losses))]
