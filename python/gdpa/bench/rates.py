"""The report of a suite of shapes: the rates of all systems on each shape, the goals, and the picture."""

from __future__ import annotations

from collections.abc import Callable

from gdpa.bench import goals
from gdpa.bench.cases import DIRECTIONS, suites
from gdpa.bench.goals import RateRow
from gdpa.bench.plot import Bar, Group, Panel
from gdpa.bench.report import Figure, Report, Table, grouped, number, share


def unit(rows: list[RateRow]) -> tuple[str, float]:
    """Returns the unit of rates, TFLOP/s beside cuBLAS and otherwise GFLOP/s, and its factor on TFLOP/s."""
    return ("TFLOP/s", 1.0) if any(row.cublas_tflops for row in rows) else ("GFLOP/s", 1e3)


def columns(rows: list[RateRow]) -> dict[str, Callable[[RateRow], str]]:
    """Returns the columns of the printed table, which has a line for each row."""
    name, factor = unit(rows)
    of_cublas: dict[str, Callable[[RateRow], str]] = {"of cuBLAS": lambda row: share(row.tflops, row.cublas_tflops)}
    return {
        "": lambda row: row.direction,
        "system": lambda row: row.system,
        "dtype": lambda row: row.dtype,
        "f": lambda row: row.activation,
        "mask": lambda row: row.mask,
        "B": lambda row: str(row.B),
        "H": lambda row: str(row.H_q),
        "d": lambda row: str(row.d),
        "q": lambda row: row.lengths[0],
        "kv": lambda row: row.lengths[1],
        "fill": lambda row: f"{row.fill:.2f}",
        "ms": lambda row: f"{row.ms:.3f}",
        name: lambda row: f"{row.tflops * factor:.1f}",
        **(of_cublas if name == "TFLOP/s" else {}),
        "of floor": lambda row: share(row.tflops, row.floor_tflops),
    }


def table_of_cases(heading: str, rows: list[RateRow]) -> Table:
    """Returns a table with one line for each case, and one column for each system and function."""
    name, factor = unit(rows)
    series = list(dict.fromkeys(row.series for row in rows))

    def rate(row: RateRow) -> str:
        of_cublas = share(row.tflops, row.cublas_tflops)
        return f"{row.tflops * factor:.1f}" + (f" ({of_cublas})" if of_cublas else "")

    lines = []
    for case in by_case(rows):
        rates, first = {row.series: rate(row) for row in case}, case[0]
        sizes = (str(first.B), str(first.d), *first.lengths, f"{first.fill:.2f}")
        bounds = (number(limit and limit * factor, ".0f") for limit in bounds_of(first).values())
        cells = (rates.get(one, "") for one in series)
        lines.append((first.shape or "", first.dtype, first.mask, *sizes, *bounds, *cells))
    names = ("shape", "dtype", "mask", "B", "d", "q", "kv", "fill", "cuBLAS", "floor", "frontier", *series)
    unit_of_table = f"{name} (share of cuBLAS)" if name == "TFLOP/s" else name
    return Table(f"{heading}, {unit_of_table}", names, lines, texts=3)


def bounds_of(row: RateRow) -> dict[str, float | None]:
    return {"cuBLAS": row.cublas_tflops, "floor": row.floor_tflops, "frontier": goals.frontier(row)}


def by_case(rows: list[RateRow]) -> list[list[RateRow]]:
    return list(grouped(rows, lambda row: row.case).values())


class RateReport(Report):
    """The report of a suite of shapes, or of given shapes."""

    row_type = RateRow
    caption = "rates of every system on every shape"

    @property
    def figures(self) -> list[Figure]:
        """The goals of the suite. The figures of the command `figures` do not follow from its rows."""
        return [figure for _, figure in goals.standings(self.subject, self.rows, self.refusals)] or self.measured

    def parts(self) -> list[tuple[str, list[RateRow]]]:
        """Returns the rows of each direction that ran, with its heading."""
        named = zip(("Forward", "Backward"), DIRECTIONS, strict=True)
        parts = [(heading, [row for row in self.rows if row.direction == direction]) for heading, direction in named]
        return [(heading, rows) for heading, rows in parts if rows]

    def tables(self) -> list[Table]:
        return [table_of_cases(heading, rows) for heading, rows in self.parts()]

    def printed_tables(self) -> list[Table]:
        return [Table.of("Rows", columns(self.rows), self.rows, texts=5)]

    def panels(self) -> list[Panel]:
        name, factor = unit(self.rows)
        varying = [
            one for one in ("dtype", "mask", "B", "d", "q", "kv", "fill")
            if len({getattr(row, one) for row in self.rows}) > 1
        ]  # fmt: skip
        standings = goals.standings(self.subject, self.rows, self.refusals)

        def bar(row: RateRow) -> Bar:
            marks = [
                (row.tflops * factor * one.goal / one.measured, one.reached)
                for about, one in standings
                if about is row and one.measured
            ]
            return Bar(row.tflops * factor, goals=marks)

        def group(rows: list[RateRow]) -> Group:
            bounds = {name: bound * factor for name, bound in bounds_of(rows[0]).items() if bound}
            return Group(label(rows[0], varying), {row.series: bar(row) for row in rows}, bounds)

        return [Panel(f"{heading}, {name}", [group(case) for case in by_case(rows)]) for heading, rows in self.parts()]

    def sort(self) -> None:
        if self.subject in suites():
            places = {shape["name"]: place for place, shape in enumerate(suites()[self.subject]["shapes"])}
            self.rows.sort(key=lambda row: (DIRECTIONS.index(row.direction), places.get(row.shape or "", len(places))))


def label(row: RateRow, varying: list[str]) -> str:
    """Returns the name of the case, or the values in which it differs from the other cases of the run."""
    if row.shape:
        return row.shape.replace(" ", "\n", 1)
    told = [f"{one} {getattr(row, one):.3g}" if one == "fill" else f"{one} {getattr(row, one)}" for one in varying]
    return "\n".join(told) or f"q {row.q}, kv {row.kv}"
