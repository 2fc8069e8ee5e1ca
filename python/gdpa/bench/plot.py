"""Draws the picture of a report: panels of groups of bars, with goals on the bars and bounds across the groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

LineStyle = Literal["solid", "dotted", "dashed"]

# More than the systems and functions of a suite, so that no two of them share a colour.
COLOURS = (
    "#1b6ca8", "#e07b39", "#6a994e", "#8d6a9f", "#b23a48", "#4d908e", "#f2c14e", "#7f7f7f", "#c17c74", "#2b2d42",
    "#9fb8ad", "#d4a5a5", "#00b4d8", "#7b2d8b", "#a3b18a", "#6b4226", "#f4845f", "#3a5a40", "#b5a7d6", "#ffb3c6",
)  # fmt: skip
GOAL_COLOURS = {True: "#2e9e3f", False: "#d1001f"}
GOAL_LABELS = {True: "goal, reached", False: "goal, not reached"}
LINE_STYLES: tuple[LineStyle, ...] = ("solid", "dotted", "dashed")  # of the bounds, in the order of their names
WIDEST_INCHES = 20.0
GROUPS_IN_A_LINE = 16
INCHES_OF_A_HANDLE, INCHES_OF_A_BAR, INCHES_OF_A_LETTER = 0.6, 0.2, 0.065
WIDEST_BAR = 0.25  # as a part of the distance between two groups


@dataclass(frozen=True)
class Bar:
    height: float
    label: str = ""
    goals: Sequence[tuple[float, bool]] = ()  # the height that reaches a goal, and whether it is reached


@dataclass(frozen=True)
class Group:
    label: str
    bars: dict[str, Bar]  # by the name of the series
    bounds: dict[str, float] = field(default_factory=dict)  # heights of lines across the group, by their names


@dataclass(frozen=True)
class Panel:
    unit: str
    groups: list[Group]

    def lines(self) -> list[Panel]:
        """Divides the groups evenly into lines of a limited length."""
        count = len(self.groups)
        parts = -(-count // GROUPS_IN_A_LINE)
        ends = [count * i // parts for i in range(parts + 1)]
        return [Panel(self.unit, self.groups[begin:end]) for begin, end in pairwise(ends)]


class Drawing:
    """The colours and styles of all panels of a picture."""

    def __init__(self, panels: Sequence[Panel]) -> None:
        groups = [group for panel in panels for group in panel.groups]
        self.series = list(dict.fromkeys(name for group in groups for name in group.bars))
        self.bounds = list(dict.fromkeys(name for group in groups for name in group.bounds))
        goals = {reached for group in groups for bar in group.bars.values() for _, reached in bar.goals}
        self.goals = sorted(goals)

    def colour(self, series: str) -> str:
        return COLOURS[self.series.index(series) % len(COLOURS)]

    def style(self, bound: str) -> LineStyle:
        return LINE_STYLES[self.bounds.index(bound) % len(LINE_STYLES)]

    def draw(self, axis: Any, panel: Panel) -> None:
        for position, group in enumerate(panel.groups):
            width = min(0.8 / len(group.bars), WIDEST_BAR)
            for index, (series, bar) in enumerate(group.bars.items()):
                left = position + (index - len(group.bars) / 2) * width
                handle = axis.bar(left, bar.height, width, align="edge", color=self.colour(series))
                axis.bar_label(handle, [bar.label], fontsize=8)
                for goal, reached in bar.goals:
                    axis.hlines(goal, left, left + width, color=GOAL_COLOURS[reached], linewidth=2.5)
            for name, height in group.bounds.items():
                axis.hlines(
                    height, position - 0.45, position + 0.45, color="black", linewidth=1, linestyle=self.style(name)
                )
        axis.set_xticks(range(len(panel.groups)), [group.label for group in panel.groups], fontsize=8)
        axis.set_ylabel(panel.unit)
        axis.margins(x=0.01)
        axis.spines[["top", "right"]].set_visible(False)

    def legend(self) -> list[Any]:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Rectangle

        return [
            *(Rectangle((0, 0), 1, 1, color=self.colour(name), label=name) for name in self.series),
            *(Line2D([], [], color="black", linewidth=1, linestyle=self.style(one), label=one) for one in self.bounds),
            *(Line2D([], [], color=GOAL_COLOURS[one], linewidth=2.5, label=GOAL_LABELS[one]) for one in self.goals),
        ]


def inches(group: Group) -> float:
    """Returns the width that the bars and the label of a group need."""
    letters = max(map(len, group.label.splitlines()))
    return max(INCHES_OF_A_BAR * len(group.bars), INCHES_OF_A_LETTER * (letters + 2))


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Writes a picture. The suffix of the path determines the format. This function needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawing = Drawing(panels)
    lines = [line for panel in panels for line in panel.lines()]
    width = min(max(6.4, *(1.6 + sum(map(inches, line.groups)) for line in lines)), WIDEST_INCHES)
    figure, axes = pyplot.subplots(
        len(lines), 1, figsize=(width, 3.4 * len(lines)), squeeze=False, layout="constrained"
    )
    for axis, line in zip(axes[:, 0], lines, strict=True):
        drawing.draw(axis, line)
    handles = drawing.legend()
    longest = max(len(handle.get_label()) for handle in handles)
    columns = max(1, min(4, int(width / (INCHES_OF_A_HANDLE + INCHES_OF_A_LETTER * longest))))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
