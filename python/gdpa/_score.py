"""Score: a value that records operators, tensor methods and torch functions as an expression of docs/functions.md.

It has no number, so a function cannot depend on one.
"""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import torch

_longest = 64 * 1024  # the limit in characters, as in src/expression/parser.cpp


def unsupported(what: str) -> ValueError:
    """Returns the error for an operation that the expression language does not have."""
    if "softmax" in what:
        return ValueError(
            f"activation: expected a function of one score, got {what}, which divides by a sum over the keys; use a "
            "function such as silu, or exp(s) and divide the output, or PyTorch's own attention"
        )
    return ValueError(
        f"activation: expected operations that the expression language has, got {what}; use arithmetic, comparisons "
        f"and {', '.join(sorted(_operations))}"
    )


# Precedence levels. An expression with a lower level than its place needs parentheses.
_SUM, _PRODUCT, _POWER, _ATOM = 1, 2, 3, 4
_level = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "^": _POWER}


def text_of(value: Any, place: int = _SUM) -> str:
    """Returns the text of a number or a Score as an operand in a place of precedence level `place`."""
    value = _score(value)
    return f"({value.text})" if value.level < place else value.text


def _score(value: Any) -> "Score":
    if isinstance(value, Condition):
        return Score(f"where({value.text}, 1, 0)", is_integer=True)
    if isinstance(value, Score):
        return value
    if isinstance(value, torch.Tensor):
        return value[WITHOUT_INDEX]  # type: ignore[return-value]
    if isinstance(value, Real):
        number = float(value)
        if math.isnan(number):
            raise ValueError("activation: expected numbers, got nan; remove it")
        return Score(_number(number), _SUM if math.copysign(1, number) < 0 else _ATOM, number.is_integer())
    raise ValueError(f"activation: expected scores and numbers as operands, got {type(value).__name__}; pass a number")


def _number(number: float) -> str:
    return repr(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


def _binary(sign: str) -> Callable[[Any, Any], "Score"]:
    level = _level[sign]
    left = _ATOM if sign == "^" else level  # ^ binds to the right, the others to the left
    keeps_integers = sign in "+-*"

    def operation(input: Any, other: Any) -> "Score":
        a, b = _score(input), _score(other)
        is_integer = keeps_integers and a.is_integer and b.is_integer
        return Score(f"{text_of(a, left)} {sign} {text_of(b, level + 1)}", level, is_integer)

    return operation


def _both_sides(operation: Callable[[Any, Any], "Score"]) -> tuple[Callable[..., "Score"], Callable[..., "Score"]]:
    """Returns the operator, and the one for a score on the right of another value."""
    return operation, lambda other, input: operation(input, other)


def _compare(sign: str) -> Callable[[Any, Any], "Condition"]:
    return lambda input, other: Condition(f"{text_of(input)} {sign} {text_of(other)}")


def _floor_divide(input: Any, other: Any) -> "Score":
    return Score(f"floor({text_of(input, _PRODUCT)} / {text_of(other, _POWER)})", is_integer=True)


def _remainder(input: Any, other: Any) -> "Score":
    return _score(input) - _floor_divide(input, other) * other


def _refuse_value(self: "Score", *arguments: Any) -> Any:
    raise ValueError(
        "activation: expected one expression for every score, got Python control flow or a conversion that asks for "
        "the value of a score; use &, | and ~ instead of and, or and not, torch.where(condition, a, b) instead of if, "
        "and torch functions instead of math functions"
    )


class Score:
    """A value that is computed from the score or from positions, with its expression.

    `is_integer` says that the value is a whole number, whatever the score is.
    """

    __array_ufunc__ = None  # numpy's numbers then use the operators of Score

    def __init__(self, text: str, level: int = _ATOM, is_integer: bool = False) -> None:
        if len(text) > _longest:
            raise ValueError(
                f"activation: expected an expression of at most {_longest} characters, got {len(text)}; use fewer "
                "intermediate values more than once"
            )
        self.text = text
        self.level = level
        self.is_integer = is_integer

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> "Score":
        name = getattr(function, "__name__", str(function))
        name = name[2:-2] if name.startswith("__") else name.removeprefix("special_")
        return _apply(name, function, *arguments, **(keywords or {}))

    def __getattr__(self, name: str) -> Callable[..., "Score"]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _operations:
            raise unsupported(f"Tensor.{name}")
        return lambda *arguments, **keywords: _apply(name, None, self, *arguments, **keywords)

    def __neg__(self) -> "Score":
        return Score(f"-{text_of(self, _POWER)}", _SUM, _score(self).is_integer)

    def __abs__(self) -> "Score":
        return _call("abs", self, is_integer=_score(self).is_integer)

    __pos__ = _score
    __add__, __radd__ = _both_sides(_binary("+"))
    __sub__, __rsub__ = _both_sides(_binary("-"))
    __mul__, __rmul__ = _both_sides(_binary("*"))
    __truediv__, __rtruediv__ = _both_sides(_binary("/"))
    __pow__, __rpow__ = _both_sides(_binary("^"))
    __floordiv__, __rfloordiv__ = _both_sides(_floor_divide)
    __mod__, __rmod__ = _both_sides(_remainder)
    __lt__, __le__, __gt__, __ge__ = _compare("<"), _compare("<="), _compare(">"), _compare(">=")
    __eq__, __ne__ = _compare("=="), _compare("!=")  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]
    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = _refuse_value

    def _no_operator(self, *operands: Any) -> "Score":
        raise unsupported("an operator of bits, of matrices or of containers (@ << >> & | ^ [])")

    __matmul__ = __rmatmul__ = __lshift__ = __rshift__ = __getitem__ = __setitem__ = _no_operator
    __and__ = __or__ = __xor__ = __invert__ = _no_operator


#: `tensor[WITHOUT_INDEX]` is the number of a tensor of the call that has one number. Only the mode of a trace
#: (_trace.Captures) knows the names of tensors, and indexing a tensor reaches this mode.
WITHOUT_INDEX = Score("")


class Element(Score):
    """A tensor of the call with the indices so far.

    `sizes` is the shape, or None for a tensor of params, whose shape is not known during the trace.
    """

    level = _ATOM

    def __init__(self, name: str, indices: tuple[str, ...], sizes: tuple[int, ...] | None, is_integer: bool) -> None:
        self.name = name
        self.indices = indices
        self.sizes = sizes
        self.is_integer = is_integer

    @property
    def text(self) -> str:  # type: ignore[override]
        if self.sizes is not None and len(self.indices) != len(self.sizes):
            raise ValueError(
                f"activation: expected {len(self.sizes)} indices, one for each axis of the captured tensor of shape "
                f"{tuple(self.sizes)}, got {len(self.indices)}; index each axis, as in table[head, q_idx]"
            )
        return f"{self.name}[{', '.join(self.indices)}]" if self.indices else self.name

    def __getitem__(self, index: Any) -> "Element":
        indices = list(self.indices)
        for one in index if isinstance(index, tuple) else (index,):
            indices.append(self._index(one, len(indices)))
        return Element(self.name, tuple(indices), self.sizes, self.is_integer)

    def _index(self, index: Any, axis: int) -> str:
        if isinstance(index, Score) and not isinstance(index, Condition):
            return text_of(index)
        if not isinstance(index, Integral) or isinstance(index, bool):
            raise ValueError(
                f"activation: expected positions and whole numbers as indices, got {type(index).__name__}; write an "
                "index for each axis, and round numbers with torch.floor"
            )
        if index < 0:  # counts from the end, but an index of the language is clamped to 0
            if self.sizes is None or axis >= len(self.sizes):
                raise ValueError(f"activation: expected an index of at least 0, got {index}; count from the start")
            index = index + self.sizes[axis]
        return str(int(index))


class Condition(Score):
    """A comparison, for the first argument of torch.where. In arithmetic it is 1 or 0."""

    def __and__(self, other: Any) -> "Condition":
        return Condition(f"({self.text}) & ({_condition(other).text})")

    def __or__(self, other: Any) -> "Condition":
        return Condition(f"({self.text}) | ({_condition(other).text})")

    def __invert__(self) -> "Condition":
        return Condition(f"~({self.text})")

    __rand__, __ror__ = __and__, __or__


class Flag(Condition):
    """An element of a bool tensor, which is a condition."""

    def __init__(self, element: Element) -> None:
        self.element = element
        self.level = _ATOM
        self.is_integer = True

    @property
    def text(self) -> str:  # type: ignore[override]
        return f"{self.element.text} != 0"

    def __getitem__(self, index: Any) -> "Flag":
        return Flag(self.element[index])


def _condition(value: Any) -> Condition:
    """Returns the condition itself, or the condition that a number is not 0."""
    return value if isinstance(value, Condition) else _compare("!=")(value, 0)


def _call(name: str, *arguments: Any, is_integer: bool = False) -> Score:
    return Score(f"{name}({', '.join([text_of(argument) for argument in arguments])})", is_integer=is_integer)


def _are_integers(*values: Any) -> bool:
    return all([_score(value).is_integer for value in values])


def _apply(name: str, function: Any, *arguments: Any, **keywords: Any) -> Score:
    """Applies the operation with this name. `function` is torch's function, or None for a method of a tensor."""
    operation = _operations.get(name)
    if operation is None:
        raise unsupported(_shown(name, function))
    try:
        return operation(*arguments, **keywords)
    except TypeError as error:
        raise unsupported(f"{_shown(name, function)} with these arguments ({error})") from None


def _shown(name: str, function: Any) -> str:
    if function is None:
        return f"Tensor.{name}"
    return torch.overrides.resolve_name(function) or name


# The operations, with the names and argument names of torch, torch.nn.functional and Tensor. --------------------------


def _where(condition: Any, input: Any, other: Any) -> Score:
    if not isinstance(condition, Condition):
        raise ValueError("activation: expected a comparison as the condition of where, got a number; compare it")
    is_integer = _are_integers(input, other)
    return Score(f"where({condition.text}, {text_of(input)}, {text_of(other)})", is_integer=is_integer)


def _clamp(input: Any, min: Any = None, max: Any = None) -> Score:
    is_integer = _are_integers(*[value for value in (input, min, max) if value is not None])
    low, high = -math.inf if min is None else min, math.inf if max is None else max
    return _call("clamp", input, low, high, is_integer=is_integer)


def _extreme(name: str) -> Callable[..., Score]:
    def operation(input: Any, other: Any) -> Score:
        if not (isinstance(input, Score) and isinstance(other, (Score, torch.Tensor))):
            raise unsupported(f"torch.{name} over a dimension")
        return _call(name, input, other, is_integer=_are_integers(input, other))

    return operation


def _sum(sign: str) -> Callable[..., Score]:
    return lambda input, other, *, alpha=1: _binary(sign)(input, other if alpha == 1 else _binary("*")(alpha, other))


def _function(name: str) -> Callable[..., Score]:
    return lambda input: _call(name, input)


def _floor(input: Any) -> Score:
    value = _score(input)
    return value if value.is_integer else _call("floor", value, is_integer=True)


def _ceil(input: Any) -> Score:
    value = _score(input)
    return value if value.is_integer else -_floor(-value)


def _trunc(input: Any) -> Score:
    value = _score(input)
    return value if value.is_integer else _where(value < 0, _ceil(value), _floor(value))


def _divide(input: Any, other: Any, *, rounding_mode: str | None = None) -> Score:
    if rounding_mode == "floor":
        return _floor_divide(input, other)
    quotient = _binary("/")(input, other)
    return _trunc(quotient) if rounding_mode == "trunc" else quotient


# A conversion to an integer type, as .long(), drops the digits after the point. A conversion to a wider floating type
# changes nothing, because the language has one type of numbers.
_integer_types = (torch.int64, torch.int32)
_wide_types = (torch.float32, torch.float64)


def _to(input: Any, dtype: Any) -> Score:
    if dtype in _integer_types:
        return _trunc(input)
    if dtype not in _wide_types:
        raise unsupported(f"Tensor.to({dtype})")
    return _score(input)


def _kept(input: Any, inplace: bool) -> Any:
    """Returns the input of a function that torch can compute in place."""
    if inplace:
        raise ValueError("activation: expected inplace=False, got True; a score cannot be changed, use the result")
    return input


def _activation(name: str) -> Callable[..., Score]:
    return lambda input, inplace=False: _call(name, _kept(input, inplace))


def _gelu(input: Any, approximate: str = "none") -> Score:
    names = {"none": "gelu", "tanh": "gelu_tanh"}
    if approximate not in names:
        raise ValueError(f"activation: expected approximate 'none' or 'tanh', got {approximate!r}; correct the name")
    return _call(names[approximate], input)


def _elu(input: Any, alpha: Any = 1.0, inplace: bool = False) -> Score:
    return _where(_kept(input, inplace) > 0, input, alpha * _call("expm1", input))


def _softplus(input: Any, beta: Any = 1, threshold: Any = 20) -> Score:
    # Above its default threshold, PyTorch's softplus(s) is s. The difference from log(1 + exp(s)) is below 3e-9.
    smooth = _call("softplus", input) if beta == 1 else _call("softplus", beta * input) / beta
    return smooth if threshold == 20 else _where(beta * input > threshold, input, smooth)


# Functions of one argument with the same name in the expression language and in torch.
_same_name = (
    *("sign", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log1p"),
    *("tanh", "sigmoid", "erf", "sin", "cos"),
)

_compared = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}

_operations: dict[str, Callable[..., Score]] = {
    **{name: _function(name) for name in _same_name},
    **{name: _activation(name) for name in ("relu", "silu", "hardswish")},
    **{name: _compare(sign) for name, sign in _compared.items()},
    **dict.fromkeys(("abs", "absolute"), lambda input: abs(input)),
    **dict.fromkeys(("trunc", "long", "int"), _trunc),
    **dict.fromkeys(("float", "double"), _score),
    **dict.fromkeys(("floordiv", "floor_divide"), _floor_divide),
    **dict.fromkeys(("sub", "subtract"), _sum("-")),
    **dict.fromkeys(("mul", "multiply"), _binary("*")),
    **dict.fromkeys(("div", "divide"), _divide),
    **dict.fromkeys(("neg", "negative"), lambda input: -input),
    **dict.fromkeys(("clamp", "clip"), _clamp),
    **dict.fromkeys(("min", "minimum"), _extreme("min")),
    **dict.fromkeys(("max", "maximum"), _extreme("max")),
    "floor": _floor,
    "ceil": _ceil,
    "to": _to,
    "bool": lambda input: input != 0,
    "remainder": _remainder,
    "expit": _function("sigmoid"),
    "add": _sum("+"),
    "true_divide": _binary("/"),
    "pow": lambda input, exponent: _binary("^")(input, exponent),
    "square": lambda input: input**2,
    "reciprocal": lambda input: 1 / input,
    "logical_and": lambda input, other: input & other,
    "logical_or": lambda input, other: input | other,
    "logical_not": lambda input: ~input,
    "where": _where,
    "clamp_min": lambda input, min: _clamp(input, min=min),
    "clamp_max": lambda input, max: _clamp(input, max=max),
    "gelu": _gelu,
    "leaky_relu": lambda input, negative_slope=0.01, inplace=False: _where(
        _kept(input, inplace) > 0, input, negative_slope * input
    ),
    "prelu": lambda input, weight: _where(input > 0, input, _score(weight) * input),
    "elu": _elu,
    # Klambauer et al., 2017
    "selu": lambda input, inplace=False: 1.0507009873554805 * _elu(input, 1.6732632423543772, inplace),
    "softplus": _softplus,
    "log_sigmoid": lambda input: -_call("softplus", -input),
    "softsign": lambda input: input / (1 + _call("abs", input)),
    "tanhshrink": lambda input: input - _call("tanh", input),
    "hardtanh": lambda input, min_val=-1.0, max_val=1.0, inplace=False: _clamp(_kept(input, inplace), min_val, max_val),
    "relu6": lambda input, inplace=False: _clamp(_kept(input, inplace), 0, 6),
    "hardsigmoid": lambda input, inplace=False: _clamp(_kept(input + 3, inplace), 0, 6) / 6,
    "mish": lambda input, inplace=False: _kept(input, inplace) * _call("tanh", _call("softplus", input)),
    "zeros_like": lambda input: _score(0),
    "ones_like": lambda input: _score(1),
}
