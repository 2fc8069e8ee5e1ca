"""Draws docs/pictures/masks.svg: the keys that each query of one sequence attends to. It needs only Python.

python docs/pictures/draw_masks.py
"""

import sys
from pathlib import Path

from draw_idea import FAINT, INK, rectangle, text

CELL, COUNT, GAP, TOP = 15, 16, 40, 58
SIZE = CELL * COUNT
WIDTH, HEIGHT = 4 * SIZE + 5 * GAP, 2 * (TOP + SIZE + 30) + 20
KEPT, EXCLUDED = "hsl(211 55% 58%)", "hsl(211 20% 93%)"
DOCUMENTS = (0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3)
CONTEXTS, TARGETS, GROUP = 2, 6, 2
BOUNDS = tuple(((max(0, i - 3), i + 1), (12 - i // 2, 14 - i // 2)) for i in range(COUNT))


def hstu(i: int, j: int) -> bool:
    history = COUNT - TARGETS
    if i < CONTEXTS:
        return j < history
    group = history + (i - history) // GROUP * GROUP
    return j <= i and (i < history or j < history or j >= group)


PANELS = (
    ("causal()", "the last query is the last key", lambda i, j: j <= i),
    ("window(4, 0)", "keys around the diagonal", lambda i, j: 0 <= i - j <= 4),
    ("prefix(lengths) | causal()", "lengths[batch] = 5", lambda i, j: j < 5 or j <= i),
    (
        "documents(numbers) & causal()",
        "four documents in a sequence",
        lambda i, j: DOCUMENTS[i] == DOCUMENTS[j] and j <= i,
    ),
    ("hstu(contexts=2, targets=6)", "groups of two targets", hstu),
    ("intervals(bounds)", "two ranges of keys for each query", lambda i, j: any(a <= j < b for a, b in BOUNDS[i])),
    ('"(q_idx - kv_idx) % 4 == 0"', "the text of a condition", lambda i, j: (i - j) % 4 == 0),
    ("causal() & ~window(3, 0)", "all keys but the last four", lambda i, j: j <= i and not 0 <= i - j <= 3),
)


def panel(x: float, y: float, title: str, meaning: str, keeps: object) -> list[str]:
    parts = [text(x + SIZE / 2, y + TOP - 34, title, 14), text(x + SIZE / 2, y + TOP - 14, meaning, 13, FAINT)]
    for i in range(COUNT):
        for j in range(COUNT):
            color = KEPT if keeps(i, j) else EXCLUDED  # type: ignore[operator]
            parts.append(rectangle(x + j * CELL, y + TOP + i * CELL, CELL - 1, CELL - 1, color))
    parts += [
        text(x + SIZE / 2, y + TOP + SIZE + 18, "key j", 13),
        text(x - 8, y + TOP + SIZE / 2, "i", 13, INK, "end"),
    ]
    return parts


def draw() -> str:
    parts = [rectangle(0, 0, WIDTH, HEIGHT, "#ffffff", more='rx="10"')]
    for number, (title, meaning, keeps) in enumerate(PANELS):
        row, column = divmod(number, 4)
        parts += panel(GAP + column * (SIZE + GAP), row * (TOP + SIZE + 30), title, meaning, keeps)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="Helvetica, Arial, sans-serif">\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    target = Path(sys.argv[0]).with_name("masks.svg")
    target.write_text(draw())
