"""The picture of a run: the rate of every system on every case, forward and backward, under the floor and cuBLAS."""

from __future__ import annotations

from pathlib import Path

from gdpa.bench.rows import Row

COLOURS = (
    "#1b6ca8", "#e07b39", "#6a994e", "#8d6a9f", "#b23a48", "#4d908e", "#f2c14e", "#7f7f7f", "#c17c74", "#2b2d42",
    "#9fb8ad", "#d4a5a5",
)  # fmt: skip
WIDEST_INCHES = 20.0


def label(row: Row, varying: list[str]) -> str:
    """What tells this case from the others of the run."""
    told = [f"{field} {getattr(row, field):.3g}" if field == "fill" else f"{field} {getattr(row, field)}"
            for field in varying]  # fmt: skip
    return "\n".join(told) or f"q {row.q}, kv {row.kv}"


def name(row: Row) -> str:
    return f"{row.system} ({row.activation})"


def case_of(row: Row) -> tuple[object, ...]:
    return (row.dtype, row.mask, row.B, row.d, row.q, row.kv, round(row.fill, 3), row.shared_q, row.shared_kv)


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
    fields = ("dtype", "mask", "B", "d", "q", "kv", "fill")
    varying = [field for field in fields if len({getattr(row, field) for row in rows}) > 1]
    unit, factor = ("TFLOP/s", 1.0) if any(row.cublas_tflops for row in rows) else ("GFLOP/s", 1e3)
    width = min(max(6.4, 1.6 + 0.35 * len(rows)), WIDEST_INCHES)
    figure, axes = pyplot.subplots(
        len(directions), 1, figsize=(width, 3.4 * len(directions)), squeeze=False, layout="constrained"
    )
    for axis, direction in zip(axes[:, 0], directions, strict=True):
        for row in (row for row in rows if row.direction == direction):
            beside = [name(other) for other in rows if case_of(other) == case_of(row) and other.direction == direction]
            place, index, width = cases.index(case_of(row)), series.index(name(row)), 0.8 / len(beside)
            left = place - 0.4 + beside.index(name(row)) * width
            axis.bar(left, row.tflops * factor, width, align="edge", color=COLOURS[index % len(COLOURS)])
            for rate, style in ((row.floor_tflops, "solid"), (row.cublas_tflops, "dotted")):
                if rate:
                    axis.hlines(rate * factor, place - 0.45, place + 0.45, color="black", linewidth=1, linestyle=style)
        labels = {cases.index(case_of(row)): label(row, varying) for row in rows}
        axis.set_xticks(range(len(cases)), [labels[place] for place in range(len(cases))], fontsize=8)
        axis.set_ylabel(f"{'forward' if direction == 'fwd' else 'backward'}, {unit}")
        axis.margins(x=0.01)
        axis.spines[["top", "right"]].set_visible(False)
    handles = [Rectangle((0, 0), 1, 1, color=COLOURS[i % len(COLOURS)]) for i in range(len(series))]
    lines = [Line2D([], [], color="black", linewidth=1, label="floor")]
    if unit == "TFLOP/s":
        lines.append(Line2D([], [], color="black", linewidth=1, linestyle="dotted", label="cuBLAS"))
    names = [*series, *(str(line.get_label()) for line in lines)]
    figure.legend([*handles, *lines], names, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
