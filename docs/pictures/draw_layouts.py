"""Draws docs/pictures/layouts.svg: the rows of three sequences in each layout. It needs only Python.

python docs/pictures/draw_layouts.py
"""

import sys
from pathlib import Path

from draw_idea import COLORS, FAINT, INK, rectangle, text

CELL, HEIGHT_OF_ROW, LEFT, TOP, APART = 22, 26, 190, 30, 66
ROWS = 24
PANELS: tuple[tuple[str, str, tuple[int | None, ...]], ...] = (
    ("cu_seq_k", "[0, 8, 12, 20]", (0,) * 8 + (1,) * 4 + (2,) * 8),
    ("seq_offsets_k", "[[12, 20], [2, 6], [7, 11]]", (None,) * 2 + (1,) * 4 + (None,) + (2,) * 4 + (None,) + (0,) * 8),
    ("seq_offsets_k", "[[0, 9], [6, 14], [16, 22]]", (0,) * 9 + (1,) * 5 + (None,) * 2 + (2,) * 6),
    ("kv_of", "[0, 0, 1] of two sequences", (0,) * 12 + (2,) * 8),
    ("block_table", "[[4, 0], [2, -], [5, 1]]", (0,) * 2 + (None,) * 2 + (2,) * 2 + (None,) * 2 + (1,) * 3 + (None,)
     + (None,) * 4 + (0,) * 4 + (2,) * 4),
    ("output_offsets", "[14, 2, 8]", (None,) * 2 + (1,) * 4 + (None,) * 2 + (2,) * 4 + (None,) * 2 + (0,) * 8),
)  # fmt: skip
#: Rows that also belong to the orange sequence: the first row and the row after the last one.
SECOND_OWNER = {"[[0, 9], [6, 14], [16, 22]]": (6, 9), "[0, 0, 1] of two sequences": (0, 12)}
WIDTH, HEIGHT = LEFT + ROWS * CELL + 20, TOP + len(PANELS) * APART


def draw() -> str:
    parts = []
    for panel, (name, numbers, owners) in enumerate(PANELS):
        y = TOP + panel * APART
        parts += [text(LEFT - 14, y + 12, name, 15, anchor="end"), text(LEFT - 14, y + 30, numbers, 11, FAINT, "end")]
        for row, owner in enumerate(owners):
            fill, opacity = (FAINT, 0.18) if owner is None else (COLORS[owner], 0.8)
            parts.append(rectangle(LEFT + row * CELL, y, CELL - 2, HEIGHT_OF_ROW, fill, opacity))
        first, end = SECOND_OWNER.get(numbers, (0, 0))
        if first < end:
            width = (end - first) * CELL - 2
            parts.append(rectangle(LEFT + first * CELL, y + HEIGHT_OF_ROW - 8, width, 8, COLORS[1], 0.9))
        if name == "block_table":
            parts += [
                text(LEFT + (4 * page + 2) * CELL, y + HEIGHT_OF_ROW + 14, f"page {page}", 11, INK) for page in range(6)
            ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="Helvetica, Arial, sans-serif">\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    target = Path(sys.argv[0]).with_name("layouts.svg")
    target.write_text(draw())
