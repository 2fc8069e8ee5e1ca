"""Draws docs/pictures/model-*.svg: the computation of each block of gdpa.nn. It needs only Python.

python docs/pictures/draw_models.py
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from draw_idea import COLORS, FAINT, INK, rectangle, text

ROWS_COLOR, DENSE, ATTENTION = COLORS  # rows (T, D); dense tokens (B, n, D); attention of gdpa
WEIGHT = "#8b949e"
WIDE, HIGH, GAP_X, GAP_Y, EDGE = 176, 48, 44, 40, 24


@dataclass(frozen=True)
class Box:
    """A step: its place in columns and rows, its name, its formula or shape, and its color."""

    name: str
    x: float
    y: float
    title: str
    below: str = ""
    color: str = WEIGHT

    @property
    def left(self) -> float:
        return EDGE + self.x * (WIDE + GAP_X)

    @property
    def top(self) -> float:
        return EDGE + self.y * (HIGH + GAP_Y)


def drawn(box: Box) -> list[str]:
    border = f'rx="7" stroke="{box.color}" stroke-width="1.5"'
    parts = [rectangle(box.left, box.top, WIDE, HIGH, box.color, 0.14, border)]
    middle, centre = box.left + WIDE / 2, box.top + HIGH / 2
    parts.append(text(middle, centre + (5 if not box.below else -3), box.title, 14))
    if box.below:
        parts.append(text(middle, centre + 15, box.below, 12, "#57606a"))
    return parts


def arrow(a: Box, b: Box) -> str:
    """From below a to above b, or from side to side for boxes of one row."""
    if a.y == b.y:
        to_right = a.x < b.x
        x1, x2 = (a.left + WIDE, b.left - 4) if to_right else (a.left, b.left + WIDE + 4)
        y1 = y2 = a.top + HIGH / 2
        path = f"M{x1:g} {y1:g} L{x2:g} {y2:g}"
    else:
        x1, y1, x2, y2 = a.left + WIDE / 2, a.top + HIGH, b.left + WIDE / 2, b.top - 4
        bend = (y1 + y2) / 2 if b.y - a.y <= 1 else y2 - GAP_Y / 2
        path = f"M{x1:g} {y1:g} C{x1:g} {bend:g} {x2:g} {bend:g} {x2:g} {y2:g}"
    return f'<path d="{path}" fill="none" stroke="{FAINT}" stroke-width="1.6" marker-end="url(#head)"/>'


def around(a: Box, b: Box, side: int) -> str:
    """A residual: from beside a to beside b, on the left (-1) or right (1) of both."""
    x = a.left if side < 0 else a.left + WIDE
    x2 = b.left if side < 0 else b.left + WIDE
    out = min(x, x2) - 22 if side < 0 else max(x, x2) + 22
    y1, y2 = a.top + HIGH / 2, b.top + HIGH / 2
    path = f"M{x:g} {y1:g} C{out:g} {y1:g} {out:g} {y1:g} {out:g} {y1 + 16:g} L{out:g} {y2 - 16:g}"
    path += f" C{out:g} {y2:g} {out:g} {y2:g} {x2 + 4 * side:g} {y2:g}"
    return f'<path d="{path}" fill="none" stroke="{FAINT}" stroke-width="1.6" marker-end="url(#head)"/>'


Picture = tuple[list[Box], list[tuple[str, str]], list[tuple[str, str, int]]]


def attention() -> Picture:
    boxes = [
        Box("x", 1, 0, "X", "(T, D), offsets", ROWS_COLOR),
        Box("qkv", 1, 1, "Norm, W_qkv", "heads × [Q, K, V] × d"),
        Box("gdpa", 1, 2, "f(Q Kᵀ) V", "in each sequence and head", ATTENTION),
        Box("out", 1, 3, "W_o"),
        Box("y", 1, 4, "Y = X + …", "(T, D)", ROWS_COLOR),
        Box("c", 2, 1, "C W_kv", "context: K and V", ROWS_COLOR),
        Box("params", 0, 2, "parameters of f", "a, b, bias, tables"),
    ]
    arrows = [("x", "qkv"), ("qkv", "gdpa"), ("gdpa", "out"), ("out", "y"), ("c", "gdpa"), ("params", "gdpa")]
    return boxes, arrows, [("x", "y", -1)]


def pffn() -> Picture:
    boxes = [
        Box("s", 0, 0, "S", "(T, D), offsets", ROWS_COLOR),
        Box("sum", 1.5, 0, "X_sum", "(B, n, D)", DENSE),
        Box("w1", 1, 1, "K = W1 X_sum", "(B, n, H, d)"),
        Box("w2", 2, 1, "V = W2 X_sum", "(B, n, H, d)"),
        Box("gdpa", 0.5, 2, "f(S Kᵀ / τ) V", "", ATTENTION),
        Box("y", 0.5, 3, "Y = S + …", "(T, D)", ROWS_COLOR),
        Box("shared", 2, 2, "or shared K, V", "(rows, H, d)"),
    ]
    arrows = [("s", "gdpa"), ("sum", "w1"), ("sum", "w2"), ("w1", "gdpa"), ("w2", "gdpa"), ("gdpa", "y"),
              ("shared", "gdpa")]  # fmt: skip
    return boxes, arrows, [("s", "y", -1)]


def pooling() -> Picture:
    boxes = [
        Box("q", 0, 0, "k learned queries", "(k, H, d)"),
        Box("x", 1, 0, "X", "(T, D), offsets", ROWS_COLOR),
        Box("e", 2, 0, "S learned seeds", "(S, D)"),
        Box("kv", 1, 1, "W_kv", "K, V"),
        Box("norm", 2, 1, "Norm, W_q", "Q"),
        Box("pma", 0, 2, "f(Q Kᵀ) V, W_o", "", ATTENTION),
        Box("hsp", 2, 2, "f(Q Kᵀ) V, W_o", "(B, S, D)", ATTENTION),
        Box("pma_y", 0, 3, "PMA", "(B, k, D)", DENSE),
        Box("kron", 2, 3, "Σ Zᵢᵀ H Wᵢ", "SumKronLinear"),
        Box("hsp_y", 2, 4, "HSP", "(B, N, D)", DENSE),
    ]
    arrows = [("q", "pma"), ("x", "kv"), ("kv", "pma"), ("kv", "hsp"), ("e", "norm"), ("norm", "hsp"),
              ("pma", "pma_y"), ("hsp", "kron"), ("kron", "hsp_y")]  # fmt: skip
    return boxes, arrows, []


def hstu() -> Picture:
    boxes = [
        Box("x", 1, 0, "X", "(T, D), offsets", ROWS_COLOR),
        Box("uvqk", 1, 1, "silu(Norm(X) W_uvqk)", "U, V, Q, K"),
        Box("gdpa", 1, 2, "1/n f(Q Kᵀ + bias) V", "", ATTENTION),
        Box("bias", 0, 2, "position, time", "tables for each head"),
        Box("norm", 1, 3, "Norm(A) × U"),
        Box("out", 1, 4, "W_o"),
        Box("y", 1, 5, "Y = X + …", "(T, D)", ROWS_COLOR),
    ]
    arrows = [("x", "uvqk"), ("uvqk", "gdpa"), ("bias", "gdpa"), ("gdpa", "norm"), ("norm", "out"), ("out", "y")]
    return boxes, arrows, [("uvqk", "norm", 1), ("x", "y", -1)]


def interformer() -> Picture:
    boxes = [
        Box("x", 0, 0, "X", "(B, n, D)", DENSE),
        Box("s", 2, 0, "S with CLS tokens", "(T, D), offsets", ROWS_COLOR),
        Box("xsum", 0.5, 1, "X_sum", "Gating(MLP(X))", DENSE),
        Box("ssum", 1.5, 1, "S_sum", "Gating([CLS, PMA, recent])", ATTENTION),
        Box("inter", 0, 2, "Interaction", "inner products, [X, S_sum]"),
        Box("pffn", 2, 2, "PFFN, linear", "S f(X_sum)", ATTENTION),
        Box("attn", 2, 3, "GDPAttention", "window", ATTENTION),
        Box("x2", 0, 4, "X of the next layer", "(B, n, D)", DENSE),
        Box("s2", 2, 4, "S of the next layer", "(T, D)", ROWS_COLOR),
    ]
    arrows = [("x", "xsum"), ("s", "ssum"), ("x", "inter"), ("ssum", "inter"), ("xsum", "pffn"), ("s", "pffn"),
              ("pffn", "attn"), ("attn", "s2"), ("inter", "x2")]  # fmt: skip
    return boxes, arrows, []


def kunlun() -> Picture:
    boxes = [
        Box("x", 0, 0, "X", "(B, n, D)", DENSE),
        Box("s", 2, 0, "S", "(T, D), offsets", ROWS_COLOR),
        Box("xsum", 0.5, 1, "X_sum", "MLP(X)", DENSE),
        Box("hsp", 1.5, 1, "H = HSP(S)", "layers 0, 2, …", ATTENTION),
        Box("inter", 0, 2, "experts", "inner products, [X_sum, H]"),
        Box("pffn", 2, 2, "PFFN, Norm", "layers 0, 2, …", ATTENTION),
        Box("x2", 0, 3, "X of layer 1", "(B, n, D)", DENSE),
        Box("reuse", 1, 3, "H again", "layers 1, 3, …", DENSE),
        Box("attn", 2, 3, "GDPAttention", "window; layers 1, 3, …", ATTENTION),
        Box("inter2", 0, 4, "experts", "[X_sum, H]"),
        Box("s2", 2, 4, "S of layer 2", "(T, D)", ROWS_COLOR),
        Box("x3", 0, 5, "X of layer 2", "(B, n, D)", DENSE),
        Box("last", 2, 5, "H = HSP(S)", "after the last layer", ATTENTION),
    ]
    arrows = [("x", "xsum"), ("s", "hsp"), ("s", "pffn"), ("xsum", "inter"), ("hsp", "inter"), ("xsum", "pffn"),
              ("inter", "x2"), ("hsp", "reuse"), ("reuse", "inter2"), ("x2", "inter2"), ("pffn", "attn"),
              ("attn", "s2"), ("inter2", "x3"), ("s2", "last")]  # fmt: skip
    return boxes, arrows, []


def draw(picture: Picture) -> str:
    boxes, arrows, residuals = picture
    by_name = {box.name: box for box in boxes}
    width = max(box.left for box in boxes) + WIDE + EDGE + 24
    height = max(box.top for box in boxes) + HIGH + EDGE
    parts = [rectangle(0, 0, width, height, "#ffffff", more='rx="10"')]
    parts.append(
        '<defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>'
    )
    parts += [arrow(by_name[a], by_name[b]) for a, b in arrows]
    parts += [around(by_name[a], by_name[b], side) for a, b, side in residuals]
    for box in boxes:
        parts += drawn(box)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="Helvetica, Arial, sans-serif">\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    for make in (attention, pffn, pooling, hstu, interformer, kunlun):
        Path(sys.argv[0]).with_name(f"model-{make.__name__}.svg").write_text(draw(make()))
