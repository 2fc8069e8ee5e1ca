"""Pictures: the rate of every system on every case, forward and backward, and groups of bars.

The picture of rates also shows the floor and cuBLAS and, for a suite with goals, the goals and the frontier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gdpa.bench.goals import Standing, frontier
from gdpa.bench.rows import Row, has_cublas

# More than the systems and functions of a suite, so that no two of them share a colour.
COLOURS = (
    "#1b6ca8", "#e07b39", "#6a994e", "#8d6a9f", "#b23a48", "#4d908e", "#f2c14e", "#7f7f7f", "#c17c74", "#2b2d42",
    "#9fb8ad", "#d4a5a5", "#00b4d8", "#7b2d8b", "#a3b18a", "#6b4226", "#f4845f", "#3a5a40", "#b5a7d6", "#ffb3c6",
)  # fmt: skip
GOAL_COLOURS = {True: "#2e9e3f", False: "#d1001f"}
GOAL_LABELS = {True: "goal, reached", False: "goal, not reached"}
WIDEST_INCHES = 20.0
CASES_IN_A_LINE = 16
INCHES_OF_A_HANDLE, INCHES_OF_A_LETTER = 0.6, 0.065  # in the legend
WIDEST_BAR = 0.2  # as a part of the distance between two cases

LineStyle = Literal["solid", "dotted", "dashed"]


def label(row: Row, varying: list[str]) -> str:
    """Returns the values in which this case differs from the other cases of the run."""
    if row.shape:
        return row.shape.replace(" ", "\n", 1)
    told = [f"{field} {getattr(row, field):.3g}" if field == "fill" else f"{field} {getattr(row, field)}"
            for field in varying]  # fmt: skip
    return "\n".join(told) or f"q {row.q}, kv {row.kv}"


def name(row: Row) -> str:
    return f"{row.system} ({row.activation})"


def case_of(row: Row) -> tuple[object, ...]:
    shared = (row.shared_q, row.shared_kv)
    return (row.shape, row.dtype, row.mask, row.B, row.d, row.q, row.kv, round(row.fill, 3), *shared)


@dataclass(frozen=True)
class Drawing:
    """The common properties of all parts of a picture."""

    rows: list[Row]
    standings: Sequence[Standing]

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys(name(row) for row in self.rows))

    @property
    def varying(self) -> list[str]:
        fields = ("dtype", "mask", "B", "d", "q", "kv", "fill")
        return [field for field in fields if len({getattr(row, field) for row in self.rows}) > 1]

    @property
    def unit(self) -> tuple[str, float]:
        return ("TFLOP/s", 1.0) if has_cublas(self.rows) else ("GFLOP/s", 1e3)

    def lines(self) -> list[list[Row]]:
        """Returns the rows of each line of the picture. A line has one direction and a limited number of cases."""
        lines = []
        for direction in ("fwd", "bwd"):
            rows = [row for row in self.rows if row.direction == direction]
            cases = list(dict.fromkeys(case_of(row) for row in rows))
            parts = -(-len(cases) // CASES_IN_A_LINE)
            for i in range(parts):
                part = set(cases[len(cases) * i // parts : len(cases) * (i + 1) // parts])
                lines.append([row for row in rows if case_of(row) in part])
        return lines

    def bounds(self, row: Row) -> list[tuple[float | None, LineStyle]]:
        """Returns the rates at which a line crosses the case, with the style of the line."""
        limit = frontier(row) if self.standings else None
        return [(row.floor_tflops, "solid"), (row.cublas_tflops, "dotted"), (limit, "dashed")]

    def draw_line(self, axis: Any, rows: list[Row]) -> None:
        unit, factor = self.unit
        cases = list(dict.fromkeys(case_of(row) for row in rows))
        for row in rows:
            group = list(dict.fromkeys(name(other) for other in rows if case_of(other) == case_of(row)))
            position, width = cases.index(case_of(row)), min(0.8 / len(group), WIDEST_BAR)
            left = position + (group.index(name(row)) - len(group) / 2) * width
            colour = COLOURS[self.series.index(name(row)) % len(COLOURS)]
            axis.bar(left, row.tflops * factor, width, align="edge", color=colour)
            for rate, style in self.bounds(row) if group[0] == name(row) else ():
                if rate:
                    axis.hlines(
                        rate * factor, position - 0.45, position + 0.45, color="black", linewidth=1, linestyle=style
                    )
            for standing in self.standings:
                if standing.row == row and standing.goal_tflops:
                    goal, colour = standing.goal_tflops * factor, GOAL_COLOURS[standing.reached]
                    axis.hlines(goal, left, left + width, color=colour, linewidth=2.5)
        labels = {cases.index(case_of(row)): label(row, self.varying) for row in rows}
        axis.set_xticks(range(len(cases)), [labels[position] for position in range(len(cases))], fontsize=8)
        axis.set_ylabel(f"{'forward' if rows[0].direction == 'fwd' else 'backward'}, {unit}")
        axis.margins(x=0.01)
        axis.spines[["top", "right"]].set_visible(False)

    def legend(self) -> list[Any]:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Rectangle

        bars = [Rectangle((0, 0), 1, 1, color=COLOURS[i % len(COLOURS)], label=s) for i, s in enumerate(self.series)]
        bounds = ("floor", "cuBLAS", "frontier")
        lines = {
            what: Line2D([], [], color="black", linewidth=1, linestyle=style, label=what)
            for row in self.rows
            for what, (rate, style) in zip(bounds, self.bounds(row), strict=True)
            if rate
        }
        goals = [
            Line2D([], [], color=GOAL_COLOURS[reached], linewidth=2.5, label=GOAL_LABELS[reached])
            for reached in sorted({standing.reached for standing in self.standings if standing.goal_tflops})
        ]
        return [*bars, *lines.values(), *goals]


def draw(path: Path, title: str, rows: list[Row], standings: Sequence[Standing] = ()) -> None:
    """Writes a picture. The suffix of the path determines the format. This function needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawing = Drawing(rows, standings)
    lines = drawing.lines()
    width = min(max(6.4, 1.6 + 0.35 * max(map(len, lines))), WIDEST_INCHES)
    figure, axes = pyplot.subplots(
        len(lines), 1, figsize=(width, 3.4 * len(lines)), squeeze=False, layout="constrained"
    )
    for axis, part in zip(axes[:, 0], lines, strict=True):
        drawing.draw_line(axis, part)
    handles = drawing.legend()
    longest = max(len(handle.get_label()) for handle in handles)
    columns = max(1, min(4, int(width / (INCHES_OF_A_HANDLE + INCHES_OF_A_LETTER * longest))))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


Bars = Mapping[tuple[str, str], tuple[float, str]]  # the height and the label of each (group, series)


def grouped_bars(path: Path, title: str, unit: str, bars: Bars) -> None:
    """Writes a picture with groups of bars. This function needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups, series = (set(names) for names in zip(*bars, strict=True))
    figure, axis = pyplot.subplots(figsize=(max(6.4, 1.2 * len(groups) * len(series)), 3.8), layout="constrained")
    bars_on(axis, unit, bars)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def bars_on(axis: Any, unit: str, bars: Bars) -> None:
    """Draws groups of bars, with one bar for each series."""
    groups, series = (list(dict.fromkeys(names)) for names in zip(*bars, strict=True))
    width = 0.8 / len(series)
    for index, of_series in enumerate(series):
        drawn = {groups.index(group): bar for (group, one), bar in bars.items() if one == of_series}
        positions = [position - 0.4 + (index + 0.5) * width for position in drawn]
        heights = [height for height, _ in drawn.values()]
        handles = axis.bar(positions, heights, width, color=COLOURS[index % len(COLOURS)], label=of_series)
        axis.bar_label(handles, [text for _, text in drawn.values()], fontsize=8)
    axis.set_xticks(range(len(groups)), groups, fontsize=8)
    axis.set_ylabel(unit)
    axis.spines[["top", "right"]].set_visible(False)
