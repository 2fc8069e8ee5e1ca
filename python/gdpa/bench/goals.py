"""The rows of a suite of shapes, its goals, and their evaluation for the rows of a run.

A shape in suites.json has goals for a direction and a function: ``{"of": KIND, "at_least": NUMBER}``, or a list of such
goals. docs/benchmarks.md explains the kinds, and `measured` computes their numbers. If cuBLAS ran, rates of different
rows are compared as shares of cuBLAS, because the clock of a GPU drifts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, mean
from typing import Any

from gdpa.bench.cases import suites
from gdpa.bench.report import Figure, Refused, Row

USUAL_CUBLAS = 660.0  # sustained TFLOP/s of an H200, for the goals of kind tflops and for the frontier
FRONTIER_DEVICE, POWER_TFLOPS, TFLOPS_BY_TERABYTES, COPY_TERABYTES = "H200", 815.0, 72.0, 4.3
OURS = "gdpa"


@dataclass(frozen=True, kw_only=True)
class RateRow(Row):
    """The rate of one system on one case, with the fields of `gdpa bench --json`."""

    accuracy: str | None
    deterministic: bool
    mask: str
    B: int
    H_q: int
    H_k: int
    d: int
    d_v: int
    q: int
    kv: int
    fill: float
    shared_q: bool
    shared_kv: bool
    bytes: float
    ms: float
    tflops: float
    cublas_tflops: float | None
    floor_tflops: float | None

    @property
    def case(self) -> tuple[object, ...]:
        shared = (self.shared_q, self.shared_kv)
        return (self.shape, self.dtype, self.mask, self.B, self.d, self.q, self.kv, round(self.fill, 3), *shared)

    @property
    def place(self) -> tuple[object, ...]:
        return (*super().place, self.case)

    @property
    def series(self) -> str:
        return f"{self.system} ({self.activation})"

    @property
    def lengths(self) -> tuple[str, str]:
        sides = ((self.q, self.shared_q), (self.kv, self.shared_kv))
        first, second = (f"{length} shared" if shared else str(length) for length, shared in sides)
        return first, second


def frontier(row: RateRow) -> float | None:
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


def speed(row: RateRow) -> float:
    """Returns the number that is compared between rows: the share of cuBLAS, or the rate without cuBLAS."""
    return row.tflops / row.cublas_tflops if row.cublas_tflops else row.tflops


def goals_of_suite(name: str) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yields shape, direction, function and description of each goal, in the order of the suite.

    A suite without goals has none, and neither has an unknown suite.
    """
    for shape in suites().get(name, {}).get("shapes", []):
        for direction, goals in shape.get("goals", {}).items():
            for function, told in goals.items():
                for goal in told if isinstance(told, list) else [told]:
                    yield shape["name"], direction, function, goal


def standings(suite: str, rows: Sequence[RateRow], refusals: Sequence[Refused]) -> list[tuple[RateRow | None, Figure]]:
    """Returns the goals of the shapes and directions of the run, each with gdpa's row that it is about, if any."""
    ran = {(row.shape, row.direction) for row in rows} | {(one.shape, one.direction) for one in refusals}
    found = []
    for shape, direction, function, goal in goals_of_suite(suite):
        if (shape, direction) in ran:
            row = ours(rows, shape, function, direction)
            number, unit = measured(goal, row, rows) if row else (None, "has no row")
            found.append((row, Figure(f"{shape}, {function}, {direction}", number, goal["at_least"], unit)))
    return found


def measured(goal: dict[str, Any], row: RateRow, rows: Sequence[RateRow]) -> tuple[float | None, str]:
    """Returns the number that a goal is about, and its unit; or None, and the reason why the number is missing."""
    kind = goal["of"]
    if kind in ("cublas", "tflops"):
        if not row.cublas_tflops:
            return None, "no cuBLAS ran"
        if kind == "cublas":
            return speed(row), "of cuBLAS"
        return USUAL_CUBLAS * speed(row), f"TFLOP/s where cuBLAS gives {USUAL_CUBLAS:.0f}"
    if kind in ("row", "mean"):
        return against_rows(row, [goal["row"]] if kind == "row" else goal["rows"], rows)
    if kind in ("others", "geometric"):
        return against_others(row, goal.get("shapes", [row.shape]), rows)
    limit = {"floor": row.floor_tflops, "frontier": frontier(row)}[kind]
    if not limit:
        return None, "no floor is known" if kind == "floor" else f"known only for an {FRONTIER_DEVICE}"
    return row.tflops / limit, f"of the {kind}"


def against_rows(row: RateRow, names: Sequence[tuple[str, str]], rows: Sequence[RateRow]) -> tuple[float | None, str]:
    """Compares a row with the mean time of other rows of gdpa, given by shape and function."""
    times = []
    for shape, function in names:
        other = ours(rows, shape, function, row.direction)
        if other is None:
            return None, f"no row {shape}, {function}"
        times.append(1 / speed(other))
    of_several = f"of the mean of {', '.join(function for _, function in names)}"
    return speed(row) * mean(times), of_several if len(names) > 1 else f"of {', '.join(names[0])}"


def against_others(row: RateRow, shapes: Sequence[str], rows: Sequence[RateRow]) -> tuple[float | None, str]:
    """Returns the geometric mean over the shapes of gdpa's speed by the speed of the fastest other system."""
    ratios, names = [], []
    for shape in shapes:
        own, other = ours(rows, shape, row.activation, row.direction), fastest_other(rows, shape, row.direction)
        if own is None or other is None:
            return None, f"no row {shape}" if own is None else f"no other system ran on {shape}"
        ratios.append(speed(own) / speed(other))
        names.append(other.system)
    whose = f"geometric mean of {len(shapes)} shapes" if len(shapes) > 1 else names[0]
    return geometric_mean(ratios), f"of the fastest other, {whose}"


def ours(rows: Sequence[RateRow], shape: str, activation: str, direction: str) -> RateRow | None:
    wanted = (OURS, shape, activation, direction)
    matching = (row for row in rows if (row.system, row.shape, row.activation, row.direction) == wanted)
    return next(matching, None)


def fastest_other(rows: Sequence[RateRow], shape: str, direction: str) -> RateRow | None:
    others = [row for row in rows if (row.shape, row.direction) == (shape, direction) and row.system != OURS]
    return max(others, key=speed, default=None)
