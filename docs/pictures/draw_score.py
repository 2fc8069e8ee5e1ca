"""Draws docs/pictures/score.svg: the element of a tensor that each score of one head reads. It needs only Python.

python docs/pictures/draw_score.py
"""

import math
import sys
from pathlib import Path

from draw_idea import FAINT, INK, rectangle, text

CELL, COUNT, GAP, TOP = 20, 10, 46, 58
SIZE = CELL * COUNT
WIDTH, HEIGHT = 4 * SIZE + 5 * GAP, TOP + SIZE + 62
TIMES = (0, 1, 3, 4, 9, 14, 30, 33, 70, 95)  # of the tokens of one sequence

PANELS = (
    ("a * silu(s)", "one number for each head", lambda i, j: 0),
    ("table[head, q_idx - kv_idx + 9]", "one for each distance", lambda i, j: i - j + COUNT - 1),
    ("bias[batch, head, q_idx, kv_idx]", "one for each score", lambda i, j: COUNT * i + j),
    ("w[head, floor(log2(1 + |tᵢ - tⱼ|))]", "one for each bucket of times", lambda i, j: bucket(i, j)),
)


def bucket(i: int, j: int) -> int:
    return math.floor(math.log2(1 + abs(TIMES[i] - TIMES[j])))


def color_of(element: int) -> str:
    """Neighbouring elements have different hues."""
    return f"hsl({(211 + 137.5 * element) % 360:.0f} 55% {58 + 9 * (element % 3)}%)"


def panel(x: float, title: str, meaning: str, element: object) -> list[str]:
    parts = [text(x + SIZE / 2, TOP - 34, title, 14), text(x + SIZE / 2, TOP - 14, meaning, 13, FAINT)]
    for i in range(COUNT):
        for j in range(COUNT):
            color = color_of(element(i, j))  # type: ignore[operator]
            parts.append(rectangle(x + j * CELL, TOP + i * CELL, CELL - 1, CELL - 1, color))
    parts += [text(x + SIZE / 2, TOP + SIZE + 20, "key j", 13), text(x - 8, TOP + SIZE / 2, "i", 13, INK, "end")]
    return parts


def draw() -> str:
    parts = [rectangle(0, 0, WIDTH, HEIGHT, "#ffffff", more='rx="10"')]
    for number, (title, meaning, element) in enumerate(PANELS):
        parts += panel(GAP + number * (SIZE + GAP), title, meaning, element)
    words = "Scores of one colour in one grid read the same element; its gradient is the sum over these scores."
    parts.append(text(WIDTH / 2, HEIGHT - 14, words, 13, FAINT))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="Helvetica, Arial, sans-serif">\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    target = Path(sys.argv[0]).with_name("score.svg")
    target.write_text(draw())
