"""Converts the errors of the operators to Python exceptions. Only this module parses the kind of a gdpa::Error."""

import re

# torch/operators.cpp writes the kind before the message, because the stable ABI passes only text.
_MARKED = re.compile(r"\[(ValueError|TypeError)\] (.*)", re.DOTALL)
_KINDS: dict[str, type[Exception]] = {"ValueError": ValueError, "TypeError": TypeError}

# torch's message for an argument that does not match the schema of the operator.
_WRONG_TYPE = re.compile(
    r"Expected a value of type '([^']+)' for argument '([^']+)' but instead found type '([^']+)'(?:.*?\nValue: (\S+))?",
    re.DOTALL,
)


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
