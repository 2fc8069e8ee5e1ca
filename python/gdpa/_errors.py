"""Converts the errors of the operators to Python exceptions. Only this module parses the kind of a gdpa::Error.

It also has the check of numbers that the operators cannot make, because they receive plain numbers.
"""

import re
from collections.abc import Callable
from typing import Any

import torch

# torch/operators.cpp writes the kind before the message, because the stable ABI passes only text.
_MARKED = re.compile(r"\[(ValueError|TypeError|OutOfMemoryError)\] (.*)", re.DOTALL)
_KINDS: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "TypeError": TypeError,
    "OutOfMemoryError": torch.OutOfMemoryError,  # torch.cuda.OutOfMemoryError
}

# torch's message for an argument that does not match the schema of the operator.
_WRONG_TYPE = re.compile(
    r"Expected a value of type '([^']+)' for argument '([^']+)' but instead found type '([^']+)'(?:.*?\nValue: (\S+))?",
    re.DOTALL,
)


def refuse_gradient(**numbers: Any) -> None:
    """Raises ValueError for a number that is a tensor with a gradient, because its gradient would be lost."""
    for name, number in numbers.items():
        if isinstance(number, torch.Tensor) and number.requires_grad:
            raise ValueError(
                f"{name}: expected a number, got a tensor that requires a gradient, which would be lost; pass .item()"
            )


def translating(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function that raises translated errors from an operator, or from a function that calls operators."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except RuntimeError as error:
            raise translated(error) from None

    return call


def translated(error: RuntimeError) -> Exception:
    """Returns the exception to raise instead of an operator's exception, with the same message and the right type."""
    message = str(error)
    if marked := _MARKED.search(message):
        return _KINDS[marked[1]](marked[2])
    if wrong := _WRONG_TYPE.search(message):
        expected, argument, came, value = wrong.groups()
        if expected == came == "int":
            return ValueError(f"{argument}: expected a whole number of 64 bits, got {value}; pass another number")
        return TypeError(f"{argument}: expected {expected}, got {came}; convert it")
    return error
