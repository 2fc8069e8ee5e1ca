"""The results of the training runs: tables, a picture of the learning curves, and a JSON file with all numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from gdpa.train.metrics import Metrics
from gdpa.train.references import REFERENCES, SAME_DATA

COLUMNS = ("attention", "NDCG@10", "HR@10", "epochs", "s a run")
PUBLISHED = ("model", "data", "NDCG@10", "HR@10", "source")
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:gray", "tab:purple")


@dataclass(frozen=True)
class Result:
    """One run."""

    variant: str
    seed: int
    losses: list[float]  # of each step
    metrics: list[tuple[Metrics, Metrics]]  # of the validation and of the test after each epoch
    seconds: float

    @property
    def best(self) -> int:
        """The epoch with the highest NDCG@10 of the validation, from 0. The test has no part in the choice."""
        return max(range(len(self.metrics)), key=lambda epoch: self.metrics[epoch][0].ndcg)

    @property
    def test(self) -> Metrics:
        return self.metrics[self.best][1]


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
                spread([one.test.ndcg for one in runs], 4),
                spread([one.test.hit_rate for one in runs], 4),
                ", ".join(str(one.best + 1) for one in runs),
                f"{fmean(one.seconds for one in runs):.1f}",
            )
        )
    return rows


def show(console: Console, results: Sequence[Result]) -> None:
    """Prints the table of the runs."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if number else "left")
    for line in lines(results):
        table.add_row(*line)
    console.print(table)


def write(
    folder: Path, name: str, title: str, settings: dict[str, Any], results: Sequence[Result]
) -> tuple[Path, Path, Path]:
    """Writes the JSON file, the tables as a page, and the picture. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / f"{name}.json", folder / f"{name}.md", folder / f"{name}.png"
    runs = ",\n".join(
        f"  {json.dumps(asdict(one))}" for one in results
    )  # a line for each, so that a diff shows changes
    files[0].write_text(f'{{\n "settings": {json.dumps(settings)},\n "runs": [\n{runs}\n ]\n}}\n')
    files[1].write_text(page(title, files[2].name, settings, results))
    draw(files[2], title, results)
    return files


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table with the first column on the left."""
    head = f"| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page(title: str, picture: str, settings: dict[str, Any], results: Sequence[Result]) -> str:
    """Returns the page with the tables."""
    published = [(one.model, one.data_set, f"{one.ndcg:.4f}", f"{one.hit_rate:.4f}", one.source) for one in REFERENCES]
    seeds, seconds = len({one.seed for one in results}), sum(one.seconds for one in results)
    hit_rate = fmean(one.test.hit_rate for one in results)
    error = (hit_rate * (1 - hit_rate) / settings["users"]) ** 0.5
    return (
        f"# A model that learns MovieLens 100K\n\n{title}.\n\n"
        "The last item of each user is the test, and the item before it is the validation. A model ranks all "
        f"{settings['items']} items, also those that the user has rated. {settings['layers']} HSTU layers of width "
        f"{settings['dim']} with {settings['heads']} heads learned {settings['epochs']} epochs. An epoch has up to "
        f"{settings['history']} successive events of each user, in batches of {settings['batch']} users. Only the "
        "attention differs between the lines: silu, gelu_tanh and learned are functions of gdpa with relative "
        "positions, unordered is silu without positions, softmax is PyTorch's attention with the same positions, and "
        "mean is the mean of the history.\n\n"
        "NDCG@10 and HR@10 are of the test after the epoch with the best NDCG@10 of the validation, which is in the "
        f"column epochs. The numbers are means and standard deviations of {seeds} seeds. All lines have the same "
        f"{settings['users']} users. Other users of the same kind would change HR@10 by {error:.3f} (standard error). "
        f"The runs took {seconds:.0f} s together, {settings['jobs']} at a time.\n\n"
        f"{markdown(COLUMNS, lines(results))}\n![The learning curves]({picture})\n\n"
        f"## Published figures\n\n{markdown(PUBLISHED, published)}\n"
        f"The figures on {SAME_DATA} have the same protocol: leave-one-out, all items ranked with those that the user "
        "has rated, histories of 50 events, 64 numbers for each item, and the epoch with the best NDCG@10 of the "
        "validation. They differ in three points: items with fewer than five ratings are left out, the loss has one "
        "target for each history in place of one for each event, and there is one seed. The page also has 0.1023 and "
        "0.1930 for WEARec. They come from other code than RecBole, and we do not know which items it ranks.\n\n"
        f"We know no published figure of HSTU on {SAME_DATA}. The figures on MovieLens 1M, which has ten times as many "
        "ratings, show HSTU next to SASRec. They rank the items that the user has not rated, from histories of 200 "
        "events. They do not compare with the table above.\n"
    )


def draw(file: Path, title: str, results: Sequence[Result]) -> None:
    """Draws the mean over the seeds and their range: the loss, and NDCG@10 of the validation, after each epoch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    curves_of: tuple[tuple[str, Callable[[Result], list[float]]], ...] = (
        ("training loss", epoch_losses),
        ("NDCG@10 of the validation", lambda one: [validation.ndcg for validation, _ in one.metrics]),
    )
    for axis, (label, curve_of) in zip(axes, curves_of, strict=True):
        for name, colour in zip(dict.fromkeys(one.variant for one in results), COLOURS, strict=False):
            curves = list(zip(*(curve_of(one) for one in results if one.variant == name), strict=True))
            epochs = range(1, len(curves) + 1)
            axis.plot(epochs, [fmean(at) for at in curves], color=colour, label=name)
            axis.fill_between(
                epochs, [min(at) for at in curves], [max(at) for at in curves], color=colour, alpha=0.15, linewidth=0
            )
        axis.set(xlabel="epoch", ylabel=label)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=8)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def epoch_losses(result: Result) -> list[float]:
    """Returns the mean loss of each epoch."""
    steps = len(result.losses) // len(result.metrics)
    return [fmean(result.losses[first : first + steps]) for first in range(0, len(result.losses), steps)]
