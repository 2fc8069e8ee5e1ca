"""From the operators' errors to Python's: the one place that knows how a kind of gdpa::Error travels."""

import re

# torch/operators.cpp puts the kind in front of the message, because the stable ABI carries text alone.
_MARKED = re.compile(r"\[(ValueError|TypeError)\] (.*)", re.DOTALL)
_KINDS: dict[str, type[Exception]] = {"ValueError": ValueError, "TypeError": TypeError}

# What torch says of an argument that does not fit the operator's schema.
_WRONG_TYPE = re.compile(
    r"Expected a value of type '([^']+)' for argument '([^']+)' but instead found type '([^']+)'", re.DOTALL
)


def translated(error: RuntimeError) -> Exception:
    """The exception to raise for one that an operator raised: the same words, of the right type."""
    message = str(error)
    if marked := _MARKED.search(message):
        return _KINDS[marked[1]](marked[2])
    if wrong := _WRONG_TYPE.search(message):
        expected, argument, came = wrong.groups()
        return TypeError(f"{argument}: expected {expected}, got {came}; convert it")
    return error
