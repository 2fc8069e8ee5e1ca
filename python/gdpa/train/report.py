"""The results of the training runs: a table, a page, a picture of the learning curves, and a JSON file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gdpa.bench.report import Table, document, grouped
from gdpa.train.metrics import Metrics

PAGE = Path(__file__).with_name("page.md")  # with places for the numbers
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

    @property
    def epoch_losses(self) -> list[float]:
        """The mean loss of each epoch."""
        steps = len(self.losses) // len(self.metrics)
        return [fmean(self.losses[first : first + steps]) for first in range(0, len(self.losses), steps)]


def by_variant(results: Sequence[Result]) -> dict[str, list[Result]]:
    return grouped(results, lambda one: one.variant)


def spread(numbers: Sequence[float], digits: int) -> str:
    """Returns the mean, and the standard deviation if there are several numbers."""
    deviation = f" ± {stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
    return f"{fmean(numbers):.{digits}f}{deviation}"


COLUMNS: dict[str, Callable[[list[Result]], str]] = {
    "attention": lambda runs: runs[0].variant,
    "NDCG@10": lambda runs: spread([one.test.ndcg for one in runs], 4),
    "HR@10": lambda runs: spread([one.test.hit_rate for one in runs], 4),
    "epochs": lambda runs: ", ".join(str(one.best + 1) for one in runs),
    "s a run": lambda runs: f"{fmean(one.seconds for one in runs):.1f}",
}


def table(results: Sequence[Result]) -> Table:
    """Returns the table with one line for each variant."""
    return Table.of("The next items", COLUMNS, list(by_variant(results).values()), texts=1)


def write(folder: Path, name: str, title: str, settings: dict[str, Any], results: Sequence[Result]) -> list[Path]:
    """Writes the JSON file, the tables as a page, and the picture. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.{ending}" for ending in ("json", "md", "png")]
    files[0].write_text(document({"settings": settings}, {"runs": [asdict(one) for one in results]}))
    files[1].write_text(page(title, files[2].name, settings, results))
    draw(files[2], title, results)
    return files


def page(title: str, picture: str, settings: dict[str, Any], results: Sequence[Result]) -> str:
    hit_rate = fmean(one.test.hit_rate for one in results)
    return PAGE.read_text().format(
        title=title, settings=settings, picture=picture, table=table(results).as_markdown(),
        seeds=len({one.seed for one in results}), seconds=sum(one.seconds for one in results),
        error=(hit_rate * (1 - hit_rate) / settings["users"]) ** 0.5,
    )  # fmt: skip


def draw(file: Path, title: str, results: Sequence[Result]) -> None:
    """Draws the mean over the seeds and their range: the loss, and NDCG@10 of the validation, after each epoch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    curves_of: tuple[tuple[str, Callable[[Result], list[float]]], ...] = (
        ("training loss", lambda one: one.epoch_losses),
        ("NDCG@10 of the validation", lambda one: [validation.ndcg for validation, _ in one.metrics]),
    )
    for axis, (label, curve_of) in zip(axes, curves_of, strict=True):
        for (name, runs), colour in zip(by_variant(results).items(), COLOURS, strict=False):
            curves = list(zip(*map(curve_of, runs), strict=True))
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
