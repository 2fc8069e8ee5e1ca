"""The goals of a suite, and their evaluation for the rows of a run.

A shape in suites.json has goals for a direction and a function: ``{"of": KIND, "at_least": NUMBER}``, or a list of such
goals. The kinds are:

- cublas: the share of cuBLAS, that is the rate divided by the rate of the cuBLAS product in the same rounds.
- tflops: 660 times the share of cuBLAS, that is the rate in TFLOP/s if cuBLAS reaches 660.
- row: the rate divided by the rate of another row of gdpa in the same run, ``"row": [SHAPE, FUNCTION]``.
- mean: the rate divided by the rate at the mean time of several rows of gdpa in the same run, ``"rows": [ROW, ...]``.
- geometric: the geometric mean of the kind others over several shapes, ``"shapes": [SHAPE, ...]``.
- others: the rate divided by the rate of the fastest other system on the same shape in the same run.
- floor: the rate divided by the rate at the floor, see docs/benchmarks.md.
- frontier: the rate divided by the highest rate that power and memory allow, see `frontier`.

If cuBLAS ran, rates of different rows are compared as shares of cuBLAS, because the clock of a GPU drifts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean, mean
from typing import Any

from gdpa.bench.cases import suites
from gdpa.bench.rows import Refused, Row, has_cublas, share

USUAL_CUBLAS = 660.0  # sustained TFLOP/s of an H200, for the goals of kind tflops and for the frontier
CUBLAS_UNIT = f"TFLOP/s where cuBLAS gives {USUAL_CUBLAS:.0f}"
FRONTIER_DEVICE, POWER_TFLOPS, TFLOPS_BY_TERABYTES, COPY_TERABYTES = "H200", 815.0, 72.0, 4.3
OURS = "gdpa"


@dataclass(frozen=True)
class Goal:
    shape: str
    activation: str
    direction: str
    of: str
    at_least: float
    row: tuple[str, str] | None = None  # the shape and the function of the kind row
    rows: tuple[tuple[str, str], ...] = ()  # the same for the kind mean
    shapes: tuple[str, ...] = ()  # the shapes of the kind geometric

    @property
    def unit(self) -> str:
        """The unit of the goal."""
        if self.row:
            return f"of {', '.join(self.row)}"
        if self.rows:
            return f"of the mean of {', '.join(function for _, function in self.rows)}"
        if self.shapes:
            return f"of the fastest other, geometric mean of {len(self.shapes)} shapes"
        return {"cublas": "of cuBLAS", "tflops": CUBLAS_UNIT, "others": "of the fastest other",
                "floor": "of the floor", "frontier": "of the frontier"}[self.of]  # fmt: skip


def frontier(row: Row) -> float | None:
    """Returns the expected upper bound of a rate in TFLOP/s, or None if it is unknown.

    The frontier is the smaller of two bounds. Both constants were measured on an H200 (700 W) and are used only for it.

    - Power: kernels with a cheap function (ReLU) reached about 815 TFLOP/s, minus 72 TFLOP/s for each TB/s of memory
      traffic, in runs in which cuBLAS reached 660 TFLOP/s. The bound of a row with I FLOP/byte is therefore
      815 / (1 + 72 / I), times the rate of cuBLAS in the run divided by 660.
    - Memory: a device-to-device copy reads and writes 4.3 TB/s. Each input is read once and each output written once.
    """
    if row.cublas_tflops is None or FRONTIER_DEVICE not in row.device:
        return None
    flop_by_byte = row.tflops * row.ms * 1e9 / row.bytes
    power = POWER_TFLOPS / (1 + TFLOPS_BY_TERABYTES / flop_by_byte) * row.cublas_tflops / USUAL_CUBLAS
    return min(power, COPY_TERABYTES * flop_by_byte)


def speed(row: Row) -> float:
    """Returns the number that is compared between rows: the share of cuBLAS, or the rate without cuBLAS."""
    return row.tflops / row.cublas_tflops if row.cublas_tflops else row.tflops


@dataclass(frozen=True)
class Standing:
    """A goal and the measured number. `missing` is the reason if the number could not be measured."""

    goal: Goal
    row: Row | None
    best_other: Row | None
    measured: float | None
    missing: str | None = None

    @property
    def reached(self) -> bool:
        return self.measured is not None and self.measured >= self.goal.at_least

    @property
    def goal_tflops(self) -> float | None:
        """The rate that reaches the goal in this run."""
        return self.row.tflops * self.goal.at_least / self.measured if self.row and self.measured else None

    def as_json(self) -> dict[str, Any]:
        best = self.best_other
        return asdict(self.goal) | {
            "measured": self.measured,
            "reached": self.reached,
            "missing": self.missing,
            "tflops": self.row.tflops if self.row else None,
            "cublas_tflops": self.row.cublas_tflops if self.row else None,
            "frontier_tflops": frontier(self.row) if self.row else None,
            "best_other": {"system": best.system, "tflops": best.tflops} if best else None,
        }

    def cells(self, factor: float) -> tuple[str, ...]:
        """Returns the cells of a line. `factor` scales TFLOP/s. Each rate is followed by its share of cuBLAS."""

        def rate(of: Row | None, tflops: float | None) -> str:
            if of is None or tflops is None:
                return ""
            of_cublas = share(tflops, of.cublas_tflops)
            return f"{tflops * factor:.1f}" + (f" ({of_cublas})" if of_cublas else "")

        other = self.best_other
        return (
            self.goal.shape,
            self.goal.activation,
            self.goal.direction,
            rate(self.row, self.row.tflops if self.row else None),
            rate(self.row, frontier(self.row) if self.row else None),
            f"{other.system} {rate(other, other.tflops)}" if other else "",
            f"{self.goal.at_least:g} {self.goal.unit}",
            self.missing or f"{self.measured:.4g}",
            "yes" if self.reached else "no",
        )


COLUMNS = ("shape", "f", "", "{unit}", "frontier", "fastest other", "goal", "measured", "reached")


def table(standings: Sequence[Standing]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns the columns and the lines of the table."""
    beside_cublas = has_cublas([standing.row for standing in standings if standing.row])
    unit = "TFLOP/s (of cuBLAS)" if beside_cublas else "GFLOP/s"
    lines = [standing.cells(1.0 if beside_cublas else 1e3) for standing in standings]
    return tuple(column.format(unit=unit) for column in COLUMNS), lines


def in_words(standings: Sequence[Standing]) -> str:
    return f"{sum(standing.reached for standing in standings)} of {len(standings)} goals reached"


def goals_of_suite(name: str) -> list[Goal]:
    """Returns the goals in the order of the suite, or an empty list for a suite without goals or an unknown suite."""
    suite = suites().get(name, {})
    return [
        Goal(shape["name"], activation, direction, goal["of"], goal["at_least"],
             tuple(goal["row"]) if goal["of"] == "row" else None,
             tuple((name, function) for name, function in goal.get("rows", ())), tuple(goal.get("shapes", ())))
        for shape in suite.get("shapes", [])
        for direction, goals in shape.get("goals", {}).items()
        for activation, told in goals.items()
        for goal in (told if isinstance(told, list) else [told])
    ]  # fmt: skip


def standings(suite: str, rows: Sequence[Row], refusals: Sequence[Refused]) -> list[Standing]:
    """Returns the goals of the shapes and directions of the run."""
    measured = {(row.shape, row.direction) for row in rows}
    measured |= {(refused.shape, refused.direction) for refused in refusals}
    return [standing(goal, rows) for goal in goals_of_suite(suite) if (goal.shape, goal.direction) in measured]


def standing(goal: Goal, rows: Sequence[Row]) -> Standing:
    row = ours(rows, goal.shape, goal.activation, goal.direction)
    best = fastest_other(rows, goal.shape, goal.direction)
    if row is None:
        return Standing(goal, None, best, None, "has no row")
    measured = KINDS[goal.of](goal, row, best, rows)
    if isinstance(measured, str):
        return Standing(goal, row, best, None, measured)
    return Standing(goal, row, best, measured)


def ours(rows: Sequence[Row], shape: str, activation: str, direction: str) -> Row | None:
    wanted = (OURS, shape, activation, direction)
    matching = (row for row in rows if (row.system, row.shape, row.activation, row.direction) == wanted)
    return next(matching, None)


def fastest_other(rows: Sequence[Row], shape: str, direction: str) -> Row | None:
    others = [row for row in rows if (row.shape, row.direction) == (shape, direction) and row.system != OURS]
    return max(others, key=speed, default=None)


# For each kind of goal: the measured number, or the reason why it is missing. -----------------------------------------

Measured = float | str


def of_cublas(goal: Goal, row: Row, best: Row | None, rows: Sequence[Row]) -> Measured:
    return row.tflops / row.cublas_tflops if row.cublas_tflops else "no cuBLAS ran"


def of_tflops(goal: Goal, row: Row, best: Row | None, rows: Sequence[Row]) -> Measured:
    return USUAL_CUBLAS * row.tflops / row.cublas_tflops if row.cublas_tflops else "no cuBLAS ran"


def of_row(goal: Goal, row: Row, best: Row | None, rows: Sequence[Row]) -> Measured:
    assert goal.row is not None
    other = ours(rows, *goal.row, goal.direction)
    return speed(row) / speed(other) if other else f"no row {', '.join(goal.row)}"


def of_mean(goal: Goal, row: Row, best: Row | None, rows: Sequence[Row]) -> Measured:
    others = [ours(rows, *one, goal.direction) for one in goal.rows]
    missing = [", ".join(one) for one, other in zip(goal.rows, others, strict=True) if other is None]
    if missing:
        return f"no row {missing[0]}"
    return speed(row) * mean(1 / speed(other) for other in others if other)


def of_geometric(goal: Goal, row: Row, best: Row | None, rows: Sequence[Row]) -> Measured:
    ratios = []
    for shape in goal.shapes:
        own, other = ours(rows, shape, goal.activation, goal.direction), fastest_other(rows, shape, goal.direction)
        if own is None or other is None:
            return f"no row {shape}" if own is None else f"no other system ran on {shape}"
        ratios.append(speed(own) / speed(other))
    return geometric_mean(ratios)


def of_others(goal: Goal, row: Row, best: Row | None, rows: Sequence[Row]) -> Measured:
    return speed(row) / speed(best) if best else "no other system ran"


def of_floor(goal: Goal, row: Row, best: Row | None, rows: Sequence[Row]) -> Measured:
    return row.tflops / row.floor_tflops if row.floor_tflops else "no floor is known"


def of_frontier(goal: Goal, row: Row, best: Row | None, rows: Sequence[Row]) -> Measured:
    limit = frontier(row)
    return row.tflops / limit if limit else f"known only for an {FRONTIER_DEVICE}"


KINDS: dict[str, Callable[[Goal, Row, Row | None, Sequence[Row]], Measured]] = {
    "cublas": of_cublas,
    "tflops": of_tflops,
    "row": of_row,
    "mean": of_mean,
    "geometric": of_geometric,
    "others": of_others,
    "floor": of_floor,
    "frontier": of_frontier,
}
