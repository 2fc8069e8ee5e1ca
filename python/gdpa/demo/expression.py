"""Evaluates an expression in s with PyTorch, as a reference for gdpa's evaluation of the same text.

This parser is independent of gdpa's parser, so that it can reveal errors. It supports only arithmetic and functions
that have the same name in PyTorch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

import torch
from torch import Tensor

from gdpa.demo.histories import DemoError

Elementwise = Callable[[Tensor], Tensor]

NAMED: dict[str, Elementwise] = {
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
FUNCTIONS = (
    *("abs", "erf", "exp", "exp2", "expm1", "log", "log1p", "relu"),
    *("sigmoid", "sign", "sin", "cos", "tanh", "sqrt"),
)
ALLOWED = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop),
    *(ast.Call, ast.Name, ast.Load, ast.Constant),
)


def in_pytorch(text: str) -> Elementwise:
    """Returns the differentiable function on tensors for a name or an expression."""
    if text in NAMED:
        return NAMED[text]
    names = {name: getattr(torch, name) for name in FUNCTIONS}
    names["softplus"] = torch.nn.functional.softplus
    try:
        tree = ast.parse(text.replace("^", "**"), mode="eval")
    except SyntaxError:
        raise DemoError(f'--activation "{text}" is not an expression in s, such as "s * sigmoid(1.702 * s)".') from None
    for node in ast.walk(tree):
        known = not isinstance(node, ast.Name) or node.id == "s" or node.id in names
        if not isinstance(node, ALLOWED) or not known:
            raise DemoError(
                f'--activation "{text}": to compare with PyTorch, the demo reads arithmetic in s and '
                f"{', '.join(names)}, or one of the names {', '.join(NAMED)}; got {ast.unparse(node)!r}."
            )
    code = compile(tree, "activation", "eval")
    return lambda s: eval(code, {"__builtins__": {}, **names}, {"s": s})
