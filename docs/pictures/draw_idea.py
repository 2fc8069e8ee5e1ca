"""Draws docs/pictures/idea.svg: a packed batch of three histories through f(Q K^T) V. It needs only Python.

python docs/pictures/draw_idea.py
"""

import math
import sys
from pathlib import Path

LENGTHS = (6, 3, 9)
COLORS = ("#2f6db5", "#d9822b", "#3b9a63")
CELL = 14
ROWS = sum(LENGTHS)
SIZE = ROWS * CELL
WIDTH, HEIGHT, TOP = 1024, 430, 96
INK, FAINT = "#24292f", "#8b949e"


def user_of(row: int) -> int:
    return next(user for user in range(len(LENGTHS)) if row < sum(LENGTHS[: user + 1]))


def rectangle(x: float, y: float, w: float, h: float, fill: str, opacity: float = 1.0, more: str = "") -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" fill-opacity="{opacity:g}" {more}/>'


def text(x: float, y: float, words: str, size: int = 15, color: str = INK, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" text-anchor="{anchor}">{words}</text>'


def rows_of_users(x: float, y: float, width: float, horizontal: bool = False) -> list[str]:
    """A packed tensor of rows with one colour for each user. `horizontal` draws K transposed."""
    parts = []
    for row in range(ROWS):
        along, color = row * CELL, COLORS[user_of(row)]
        where = (x + along, y, CELL - 1, width) if horizontal else (x, y + along, width, CELL - 1)
        parts.append(rectangle(*where, color, 0.85))
    return parts


def score_matrix(x: float, y: float, opacity: list[list[float]]) -> list[str]:
    """The causal blocks of every user. The computation has no scores between users."""
    parts = [rectangle(x, y, SIZE, SIZE, "none", more=f'stroke="{FAINT}" stroke-dasharray="2 4"')]
    for row in range(ROWS):
        for column in range(row + 1):
            if user_of(row) == user_of(column):
                color = COLORS[user_of(row)]
                place = (x + column * CELL, y + row * CELL, CELL - 1, CELL - 1)
                parts.append(rectangle(*place, color, opacity[row][column]))
    return parts


def gelu(s: float) -> float:
    return 0.5 * s * (1 + math.erf(s / math.sqrt(2)))


def curve(x: float, y: float, width: float, height: float) -> list[str]:
    """The graph of f over s from -3 to 3."""
    points = []
    for step in range(61):
        s = -3 + step / 10
        points.append(f"{x + (s + 3) / 6 * width:.1f},{y + height * 0.85 - gelu(s) / 3 * height * 0.8:.1f}")
    axis = y + height * 0.85
    return [
        rectangle(x, y, width, height, "#ffffff", more=f'stroke="{INK}" rx="6"'),
        f'<path d="M{x + 6:g} {axis:g}h{width - 12:g}M{x + width / 2:g} {y + 6:g}v{height - 12:g}" stroke="{FAINT}"/>',
        f'<polyline points="{" ".join(points)}" fill="none" stroke="#b3261e" stroke-width="2.5"/>',
    ]


def arrow(x1: float, x2: float, y: float) -> str:
    return f'<path d="M{x1:g} {y:g}H{x2 - 7:g}m0 -5l7 5l-7 5" fill="none" stroke="{INK}" stroke-width="1.5"/>'


def draw() -> str:
    scores = [[math.sin(1.3 * r * c + r + 2 * c) * 1.5 for c in range(ROWS)] for r in range(ROWS)]
    before = [[0.25 + 0.75 * (s + 1.5) / 3 for s in row] for row in scores]
    after = [[0.06 + 0.94 * max(0.0, gelu(s)) / gelu(1.5) for s in row] for row in scores]
    middle = TOP + SIZE / 2
    q, s, f, p, v, o = 40, 118, 418, 532, 804, 906
    parts = [rectangle(0, 0, WIDTH, HEIGHT, "#ffffff", more='rx="10"')]
    parts += [*rows_of_users(q, TOP, 44), text(q + 22, TOP + SIZE + 24, "Q")]
    parts += [*rows_of_users(s, TOP - 34, 26, horizontal=True), text(s - 16, TOP - 16, "Kᵀ")]
    parts += [*score_matrix(s, TOP, before), text(s + SIZE / 2, TOP + SIZE + 24, "S = scale · Q Kᵀ")]
    parts += [arrow(s + SIZE + 8, f - 6, middle), *curve(f, middle - 40, 80, 80), text(f + 40, middle + 62, "any f")]
    parts += [arrow(f + 86, p - 6, middle)]
    parts += [*score_matrix(p, TOP, after), text(p + SIZE / 2, TOP + SIZE + 24, "P = f(S)")]
    parts += [*rows_of_users(v, TOP, 44), text(v + 22, TOP + SIZE + 24, "V"), arrow(v + 52, o - 6, middle)]
    parts += [*rows_of_users(o, TOP, 44), text(o + 22, TOP + SIZE + 24, "O = out_scale · P V")]
    names = ("user 1", "user 2", "user 3")
    parts += [
        rectangle(p + 118 * i - 4, 30, 12, 12, COLORS[i], 0.85) + text(p + 118 * i + 14, 41, names[i], 14, INK, "start")
        for i in range(len(LENGTHS))
    ]
    parts += [
        text(s, 41, "Histories lie one after the other, without padding", 14, INK, "start"),
        text(
            WIDTH / 2,
            HEIGHT - 14,
            "Only the coloured scores are ever computed, tile by tile in the cache; S and P are never stored.",
            13,
            FAINT,
        ),
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="Helvetica, Arial, sans-serif">\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    target = Path(sys.argv[0]).with_name("idea.svg")
    target.write_text(draw())
