"""Expressions of gdpa's language in PyTorch, and the bias of f(s + bias) as a score_mod of FlexAttention."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gdpa.bench.cases import Case

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

FUNCTIONS = {name: getattr(torch, name) for name in ("abs", "clamp", "floor", "log2")}
POSITIONS = ("batch", "head", "q_idx", "kv_idx")
ROWS = {"q_row": "first_q[batch] + q_idx", "kv_row": "first_k[batch] + kv_idx"}


def bias_of(activation: str) -> ast.expr | None:
    """Returns "s + bias" of a text f(s + bias) whose bias reads a tensor by index, or None for another text."""
    try:
        tree = ast.parse(activation, mode="eval").body
    except SyntaxError:
        return None
    if not (isinstance(tree, ast.Call) and len(tree.args) == 1 and isinstance(tree.args[0], ast.BinOp)):
        return None
    sum_of = tree.args[0]
    is_sum = isinstance(sum_of.op, ast.Add) and isinstance(sum_of.left, ast.Name) and sum_of.left.id == "s"
    return sum_of if is_sum and any(isinstance(node, ast.Subscript) for node in ast.walk(sum_of)) else None


class Indices(ast.NodeTransformer):
    """Makes every index an integer that exists, because gdpa broadcasts an axis of size 1, and computes the rows."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return expression(ROWS[node.id]) if node.id in ROWS else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        assert isinstance(node.value, ast.Name)
        if node.value.id not in self.tensors:
            return node
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


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def integer(number: Tensor) -> Tensor:
    return number.to(torch.int64)


def score_mod_of(case: Case, tensors: dict[str, Tensor]) -> ScoreMod | None:
    """Returns the score_mod that adds the bias of the function to a score, or None if the function has no bias."""
    bias = bias_of(case.activation)
    if bias is None:
        return None
    return function_of(bias, ("s", *POSITIONS), case, tensors, next(iter(tensors.values())).device)


def function_of(
    body: ast.expr,
    arguments: Sequence[str],
    case: Case,
    tensors: dict[str, Tensor],
    device: torch.device,
    others: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[..., Tensor]:
    """Returns a function of `arguments` that computes an expression of gdpa's language in PyTorch.

    The expression reads `tensors` by the rules of gdpa, and `others` as they are.
    """
    names: dict[str, Any] = FUNCTIONS | tensors | dict(others)
    for side, lengths in (("q", case.lengths_q), ("k", case.lengths_k)):
        names[f"first_{side}"] = torch.tensor([0, *lengths[:-1]], device=device).cumsum(0)
    names |= {"integer": integer, "zero": torch.zeros_like}
    tree = expression(f"lambda {', '.join(arguments)}: 0")
    assert isinstance(tree, ast.Lambda)
    tree.body = Indices(tensors).visit(body)
    code = compile(ast.fix_missing_locations(ast.Expression(tree)), "function_of", "eval")
    function: Callable[..., Tensor] = eval(code, {"__builtins__": {}, **names})
    return function
