"""The picture of a run: the rate of every system on every case, forward and backward, with the floor drawn in."""

from __future__ import annotations

from pathlib import Path

from gdpa.bench.rows import Row

COLOURS = ("#1b6ca8", "#e07b39", "#6a994e", "#8d6a9f", "#b23a48", "#4d908e", "#f2c14e")


def label(row: Row, varying: list[str]) -> str:
    """What tells this case from the others of the run."""
    return "\n".join(f"{field} {getattr(row, field)}" for field in varying) or f"q {row.q}, kv {row.kv}"


def name(row: Row) -> str:
    return f"{row.system} ({row.activation})"


def case_of(row: Row) -> tuple[object, ...]:
    return (row.dtype, row.mask, row.d, row.q, row.kv, round(row.fill, 3), row.shared_q, row.shared_kv)


def draw(path: Path, title: str, rows: list[Row]) -> None:
    """Writes a picture in the format of the path's ending. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    directions = [direction for direction in ("fwd", "bwd") if any(row.direction == direction for row in rows)]
    cases = list(dict.fromkeys(case_of(row) for row in rows))
    series = list(dict.fromkeys(name(row) for row in rows))
    fields = ("dtype", "mask", "d", "q", "kv", "fill")
    varying = [field for field in fields if len({getattr(row, field) for row in rows}) > 1]
    figure, axes = pyplot.subplots(
        len(directions), 1, figsize=(max(6.4, 1.6 + 0.35 * len(rows)), 3.4 * len(directions)),
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for axis, direction in zip(axes[:, 0], directions, strict=True):
        for row in (row for row in rows if row.direction == direction):
            beside = [name(other) for other in rows if case_of(other) == case_of(row) and other.direction == direction]
            place, index, width = cases.index(case_of(row)), series.index(name(row)), 0.8 / len(beside)
            left = place - 0.4 + beside.index(name(row)) * width
            axis.bar(left, row.tflops * 1e3, width, align="edge", color=COLOURS[index % len(COLOURS)])
            if row.floor_tflops:
                axis.hlines(row.floor_tflops * 1e3, place - 0.45, place + 0.45, color="black", linewidth=1)
        labels = {cases.index(case_of(row)): label(row, varying) for row in rows}
        axis.set_xticks(range(len(cases)), [labels[place] for place in range(len(cases))], fontsize=8)
        axis.set_ylabel(f"{'forward' if direction == 'fwd' else 'backward'}, GFLOP/s")
        axis.spines[["top", "right"]].set_visible(False)
    handles = [Rectangle((0, 0), 1, 1, color=COLOURS[i % len(COLOURS)]) for i in range(len(series))]
    line = Line2D([], [], color="black", linewidth=1)
    figure.legend([*handles, line], [*series, "floor"], loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
