"""Texts of gdpa's language in PyTorch: functions of the score, conditions as mask_mods, and biases as score_mods.

This parser is independent of gdpa's parser, so that a comparison with gdpa can reveal errors. It supports only what the
benchmarks and the demonstration compare.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gdpa.bench.cases import Case
from gdpa.mask import Mask

Elementwise = Callable[[Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in ("abs", "clamp", "cos", "erf", "exp", "exp2", "expm1", "floor", "log")},
    **{name: getattr(torch, name) for name in ("log1p", "log2", "relu", "sigmoid", "sign", "sin", "sqrt", "tanh")},
    **{name: getattr(F, name) for name in ("gelu", "hardswish", "leaky_relu", "silu", "softplus")},
    **dict.fromkeys(("gelu_tanh", "fast_gelu"), partial(F.gelu, approximate="tanh")),
    "fast_silu": F.silu,
    "identity": lambda s: s,
    "relu2": lambda s: F.relu(s).square(),
}
ALLOWED = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Call, ast.Name, ast.Load, ast.Constant)
POSITIONS = ("batch", "head", "q_idx", "kv_idx")
NAMES = {
    "q_row": "first_q[batch] + q_idx", "kv_row": "first_k[batch] + kv_idx", "len_q": "length_q[batch]",
    "len_k": "length_k[batch]",
}  # fmt: skip


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def function_of(body: ast.expr, arguments: Sequence[str], names: dict[str, Any]) -> Callable[..., Tensor]:
    """Returns the function of `arguments` that computes an expression with these names."""
    tree = expression(f"lambda {', '.join(arguments)}: 0")
    assert isinstance(tree, ast.Lambda)
    tree.body = body
    code = compile(ast.fix_missing_locations(ast.Expression(tree)), "function_of", "eval")
    function: Callable[..., Tensor] = eval(code, {"__builtins__": {}, **names})
    return function


def elementwise(text: str) -> Elementwise:
    """Returns the differentiable function on tensors for a name or an expression in s.

    Raises ValueError for any other text.
    """
    if text in FUNCTIONS:
        return FUNCTIONS[text]
    try:
        body = expression(text.replace("^", "**"))
    except SyntaxError:
        raise ValueError(
            f'--activation "{text}" is not an expression in s, such as "s * sigmoid(1.702 * s)".'
        ) from None
    for node in ast.walk(body):
        known = not isinstance(node, ast.Name) or node.id == "s" or node.id in FUNCTIONS
        if not isinstance(node, ALLOWED) or not known:
            raise ValueError(
                f'--activation "{text}": to compare with PyTorch, the demo reads arithmetic in s and '
                f"{', '.join(FUNCTIONS)}; got {ast.unparse(node)!r}."
            )
    return function_of(body, "s", FUNCTIONS)


def bias_of(activation: str) -> ast.expr | None:
    """Returns "s + bias" of a text f(s + bias) whose bias reads a tensor by index, or None for another text."""
    try:
        tree = expression(activation)
    except SyntaxError:
        return None
    match tree:
        case ast.Call(args=[ast.BinOp(left=ast.Name(id="s"), op=ast.Add()) as sum_of]):
            return sum_of if any(isinstance(node, ast.Subscript) for node in ast.walk(sum_of)) else None
    return None


def score_mod_of(case: Case, tensors: dict[str, Tensor]) -> ScoreMod | None:
    """Returns the score_mod that adds the bias of the function to a score, or None if the function has no bias."""
    bias = bias_of(case.activation)
    if bias is None:
        return None
    return with_tensors(bias, ("s", *POSITIONS), case, tensors, next(iter(tensors.values())).device)


def mask_mod_of(mask: Mask, case: Case, device: torch.device) -> MaskMod:
    """Returns the condition of a mask as a mask_mod, from the same text."""
    return with_tensors(expression(mask.text), POSITIONS, case, mask.tensors, device)


def with_tensors(
    body: ast.expr, arguments: Sequence[str], case: Case, tensors: dict[str, Tensor], device: torch.device
) -> Callable[..., Tensor]:
    """Returns a function of positions for the sequences of a case. It reads `tensors` by the rules of gdpa."""
    lengths = {side: torch.tensor(of, device=device) for side, of in (("q", case.lengths_q), ("k", case.lengths_k))}
    masks = named_masks(lengths["q"], lengths["k"])
    names: dict[str, Any] = FUNCTIONS | masks | tensors
    names |= {"integer": lambda number: number.to(torch.int64), "zero": torch.zeros_like}
    for side, of in lengths.items():
        names |= {f"length_{side}": of, f"first_{side}": of.cumsum(0) - of}
    return function_of(InPytorch(tensors, list(masks)).visit(body), arguments, names)


def named_masks(length_q: Tensor, length_k: Tensor) -> dict[str, Callable[..., Any]]:
    """Returns the named masks of gdpa's language as functions of batch, query and key and their own arguments."""

    def row(b: Tensor, i: Tensor) -> Tensor:
        """The key at the diagonal."""
        return i + length_k[b] - length_q[b]

    def window(b: Tensor, i: Tensor, j: Tensor, left: int, right: int) -> Tensor:
        distance = row(b, i) - j
        near = (distance <= left) if left >= 0 else (j >= 0)
        return near & (distance >= -right) if right >= 0 else near

    def hstu(b: Tensor, i: Tensor, j: Tensor, contexts: Any, targets: Any, group: int = 1, window: int = -1) -> Tensor:
        of_row, end = row(b, i), length_k[b] - targets
        near = (of_row - j <= window) | (j < contexts) if window >= 0 else j >= 0
        of_group = end + torch.div(of_row - end, group, rounding_mode="floor") * group
        history = (j <= of_row) & near & ((j < end) | (j >= of_group))
        return ((of_row < contexts) & (j < end)) | history

    return {
        "causal": lambda b, i, j: j <= row(b, i),
        "prefix": lambda b, i, j, length: j < length,
        "interval": lambda b, i, j, begin, end: (j >= begin) & (j < end),
        "window": window,
        "hstu": hstu,
    }


class InPytorch(ast.NodeTransformer):
    """Makes every index of a tensor an integer that exists, because gdpa broadcasts an axis of size 1.

    It also replaces NAMES, and passes the positions to the named masks.
    """

    def __init__(self, tensors: dict[str, Tensor], masks: Sequence[str]) -> None:
        self.tensors = tensors
        self.masks = masks

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return expression(NAMES.get(node.id, node.id))

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in self.masks:
            node.args = [expression(position) for position in ("batch", "q_idx", "kv_idx")] + node.args
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        assert isinstance(node.value, ast.Name)
        shape = self.tensors[node.value.id].shape
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        found = [self.index(index, size) for index, size in zip(indices, shape, strict=True)]
        return ast.Subscript(node.value, ast.Tuple(found, ast.Load()), ast.Load())

    def index(self, node: ast.expr, size: int) -> ast.expr:
        if size == 1:
            return expression("zero(batch)")
        if isinstance(node, ast.Constant):
            return node
        return ast.Call(ast.Name("integer", ast.Load()), [self.visit(node)], [])
