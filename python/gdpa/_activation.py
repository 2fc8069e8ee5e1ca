"""Activation: the function of the score, which the operators receive as a text of the expression language."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch

from gdpa import _trace
from gdpa._library import describe_activation
from gdpa._text import describe
from gdpa._when_imported import assume_constant_result


@dataclass(frozen=True, init=False)
class Activation:
    """An elementwise function of the score s, with its derivative.

    Args:
        function: a name ("gelu"), an expression in s ("a * tanh(b * s)"), a Python function of the score, or of the
            score and positions, that uses torch operations, or another Activation. docs/functions.md describes names
            and expressions. Further arguments of a Python function are parameters.
        params: a finite number for each named parameter.

    Attributes:
        text: the canonical text that identifies the function. Activation(text) is the same function.
        derivative: f' as a simplified expression in s.

    Raises:
        ValueError: the text has an error (the message marks it with a caret), a name is unknown, a parameter is missing
            or unknown, or the Python function has an operation that the expression language does not have.
        TypeError: function or params has the wrong type.

    Example::

        >>> swish = gdpa.Activation("s * sigmoid(b * s)", {"b": 1.702})
        >>> swish == gdpa.Activation(lambda s, b: s * torch.sigmoid(b * s), {"b": 1.702})
        True
    """

    text: str
    derivative: str = field(compare=False, repr=False)

    def __init__(
        self, function: "str | Callable[..., torch.Tensor] | Activation", params: Mapping[str, float] | None = None
    ) -> None:
        text, tensors = text_of(function, params)
        for name in tensors:
            if params is not None and name in params:
                raise TypeError(
                    f"params: expected a number for {name!r}, got Tensor; pass a Python number, or pass the tensor "
                    "with each call of varlen_attention"
                )
            raise ValueError(
                "activation: expected a function of the score and of numbers, got one that uses a tensor; pass the "
                "function itself to varlen_attention, or make the tensor a number (.item()), or a further argument of "
                "the function given through params={'a': 2.0}"
            )
        text, derivative = describe_activation(text)
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "derivative", derivative)

    def __str__(self) -> str:
        return self.text


_One = str | Callable[..., torch.Tensor] | Activation

#: A function for all query heads, or a list with one function for each query head.
ActivationLike = _One | Sequence[_One]

#: The value of a name: a number, which is a constant of the function, or a tensor that is passed with the call.
Param = float | torch.Tensor


def text_of(activation: ActivationLike, params: Mapping[str, Param] | None) -> tuple[str, dict[str, torch.Tensor]]:
    """Returns the text for the operators, with the numbers of `params`, and the tensors of the call with their names.

    The tensors of `params` come in sorted order, then the tensors that a Python function captures. A string without
    numbers is unchanged, because the operators parse and check each text.
    """
    if params is not None and not isinstance(params, (dict, Mapping)):
        raise TypeError(
            f"params: expected a dict of numbers and tensors, got {type(params).__name__}; write {{'a': 2.0}}"
        )
    params = params or {}
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(params):
        value = params[name]
        if isinstance(value, torch.Tensor):
            tensors[name] = value
    numbers = {name: number for name, number in params.items() if name not in tensors}
    if isinstance(activation, (list, tuple)):
        text, clauses = _joined([_text_of_one(one, params, tensors) for one in activation])
        text = f"{text} with {clauses}" if clauses else text
    else:
        text = _text_of_one(activation, params, tensors)
    return _with_params(text, numbers), tensors


def _text_of_one(activation: Any, params: Mapping[str, Param], tensors: dict[str, torch.Tensor]) -> str:
    """Returns the text of one function, and adds the tensors that a Python function captures."""
    if isinstance(activation, Activation):
        return activation.text
    if isinstance(activation, str):
        return activation
    if not callable(activation):
        raise TypeError(
            f"activation: expected a name, an expression, a function, a gdpa.Activation or a list of these, got "
            f"{type(activation).__name__}; see docs/functions.md"
        )
    text, captured = _trace.expression_of(activation, frozenset((*params, *tensors)))
    tensors.update(captured)
    return text


@assume_constant_result
def _joined(texts: list[str]) -> tuple[str, str]:
    """Returns the text of a list of functions, and the numbers of all their clauses."""
    if not texts:
        raise ValueError("activation: expected at least one function, got an empty list; pass one for each query head")
    numbers: dict[str, float] = {}
    functions = []
    for text in texts:
        said = describe(text)
        functions.append(text[: said.end].strip())
        for name, number in said.numbers.items():
            if numbers.setdefault(name, number) != number:
                raise ValueError(
                    f"activation: expected one number for {name!r} in a list of functions, got {numbers[name]} and "
                    f"{number}; rename one of them"
                )
    return "; ".join(functions), ", ".join(f"{name} = {number}" for name, number in numbers.items())


def _with_params(text: str, params: Mapping[str, Param]) -> str:
    for name, number in params.items():
        if not isinstance(number, Real):
            raise TypeError(
                f"params: expected a number or a tensor for {name!r}, got {type(number).__name__}; convert it"
            )
    clause = ", ".join(f"{name} = {float(number)!r}" for name, number in params.items())
    return _with_clause(text, clause) if clause else text


@assume_constant_result
def _with_clause(text: str, clause: str) -> str:
    return f"{text}, {clause}" if describe(text).numbers else f"{text} with {clause}"
