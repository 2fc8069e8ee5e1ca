"""Converts a Python function with torch operations to an expression of docs/functions.md.

The function is called once with a Score instead of a tensor. A Score records operators, tensor methods and torch
functions as text. It has no value, so the function cannot depend on a value.
"""

import inspect
import math
import weakref
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch

_longest = 64 * 1024  # the limit in characters, as in src/activation/parser.cpp

_Traced = dict[frozenset[str], str]
_cache: "weakref.WeakKeyDictionary[Callable[..., Any], _Traced]" = weakref.WeakKeyDictionary()


def expression_of(function: Callable[..., Any], names: frozenset[str]) -> str:
    """Returns the expression of the function. Traces once for each function object and set of parameter names."""
    try:
        traced = _cache.setdefault(function, {})
    except TypeError:  # without a weak reference or a hash, the function is traced each time
        traced = {}
    if names not in traced:
        traced[names] = _trace(function, names)
    return traced[names]


def _trace(function: Callable[..., Any], names: frozenset[str]) -> str:
    parameters = {name: Score(name) for name in _parameters(function, names)}
    result = function(Score("s"), **parameters)
    if isinstance(result, torch.Tensor):
        raise _captured("returns")
    if not isinstance(result, (Score, Real)):
        raise ValueError(
            f"activation: expected a function that returns one tensor, got {type(result).__name__}; return the value "
            "of f"
        )
    return _text(result)


def _parameters(function: Callable[..., Any], names: frozenset[str]) -> list[str]:
    """Returns the arguments after the score that have no default or that params names."""
    try:
        arguments = list(inspect.signature(function).parameters.values())[1:]
    except ValueError:  # torch's builtin functions have no signature
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [a.name for a in arguments if a.kind in named and (a.default is a.empty or a.name in names)]


def _unsupported(what: str) -> ValueError:
    return ValueError(
        f"activation: expected operations that the expression language has, got {what}; use arithmetic, comparisons "
        f"and {', '.join(sorted(_operations))}"
    )


def _captured(verb: str) -> ValueError:
    return ValueError(
        f"activation: expected a function of the score and of numbers, got one that {verb} a tensor; make the tensor a "
        "number (.item()), or a further argument of the function given through params={'a': 2.0}"
    )


def _control_flow() -> ValueError:
    return ValueError(
        "activation: expected one expression for every score, got Python control flow or a conversion that asks for "
        "the value of a score; use torch.where(condition, a, b), and torch functions instead of math functions"
    )


# Precedence levels. An expression with a lower level than its place needs parentheses.
_SUM, _PRODUCT, _POWER, _ATOM = 1, 2, 3, 4
_level = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "^": _POWER}


def _text(value: Any, place: int = _SUM) -> str:
    """Returns the text of a number or a Score as an operand in a place of precedence level `place`."""
    value = _score(value)
    return f"({value.text})" if value.level < place else value.text


def _score(value: Any) -> "Score":
    if isinstance(value, Condition):
        return Score(f"where({value.text}, 1, 0)")
    if isinstance(value, Score):
        return value
    if isinstance(value, torch.Tensor):
        raise _captured("uses")
    if isinstance(value, Real):
        number = float(value)
        if math.isnan(number):
            raise ValueError("activation: expected numbers, got nan; remove it")
        return Score(_number(number), _SUM if math.copysign(1, number) < 0 else _ATOM)
    raise ValueError(f"activation: expected scores and numbers as operands, got {type(value).__name__}; pass a number")


def _number(number: float) -> str:
    return repr(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


def _binary(sign: str) -> Callable[[Any, Any], "Score"]:
    level = _level[sign]
    left = _ATOM if sign == "^" else level  # ^ binds to the right, the others to the left
    return lambda a, b: Score(f"{_text(a, left)} {sign} {_text(b, level + 1)}", level)


def _reflected(sign: str) -> Callable[[Any, Any], "Score"]:
    direct = _binary(sign)
    return lambda a, b: direct(b, a)


def _compare(sign: str) -> Callable[[Any, Any], "Condition"]:
    return lambda a, b: Condition(f"{_text(a)} {sign} {_text(b)}")


def _refuse_value(self: "Score", *arguments: Any) -> Any:
    raise _control_flow()


class Score:
    """A value that is computed from the score, with its expression."""

    __array_ufunc__ = None  # numpy's numbers then use the operators of Score

    def __init__(self, text: str, level: int = _ATOM) -> None:
        if len(text) > _longest:
            raise ValueError(
                f"activation: expected an expression of at most {_longest} characters, got {len(text)}; use fewer "
                "intermediate values more than once"
            )
        self.text = text
        self.level = level

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> "Score":
        name = getattr(function, "__name__", str(function))
        if function is getattr(torch.Tensor, name, None) and arguments and isinstance(arguments[0], torch.Tensor):
            raise _captured("uses")
        shown = torch.overrides.resolve_name(function) or name
        return _apply(shown.rpartition(".")[2], shown, *arguments, **(keywords or {}))

    def __getattr__(self, name: str) -> Callable[..., "Score"]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _operations:
            raise _unsupported(f"Tensor.{name}")
        return lambda *arguments, **keywords: _apply(name, f"Tensor.{name}", self, *arguments, **keywords)

    def __neg__(self) -> "Score":
        return Score(f"-{_text(self, _POWER)}", _SUM)

    def __pos__(self) -> "Score":
        return _score(self)

    def __abs__(self) -> "Score":
        return _call("abs", self)

    __add__, __radd__ = _binary("+"), _reflected("+")
    __sub__, __rsub__ = _binary("-"), _reflected("-")
    __mul__, __rmul__ = _binary("*"), _reflected("*")
    __truediv__, __rtruediv__ = _binary("/"), _reflected("/")
    __pow__, __rpow__ = _binary("^"), _reflected("^")
    __lt__, __le__, __gt__, __ge__ = _compare("<"), _compare("<="), _compare(">"), _compare(">=")
    __eq__, __ne__ = _compare("=="), _compare("!=")  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]
    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = _refuse_value

    def _no_operator(self, *operands: Any) -> "Score":
        raise _unsupported("an operator of whole numbers or of containers (// % @ << >> [])")

    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __matmul__ = __rmatmul__ = _no_operator
    __lshift__ = __rshift__ = __getitem__ = __setitem__ = _no_operator
    __and__ = __or__ = __xor__ = __invert__ = _no_operator


class Condition(Score):
    """A comparison, for the first argument of torch.where. In arithmetic it is 1 or 0."""

    def __and__(self, other: Any) -> "Condition":
        return Condition(f"{_text(self, _PRODUCT)} * {_text(other, _PRODUCT)} == 1")

    def __or__(self, other: Any) -> "Condition":
        return Condition(f"{_text(self)} + {_text(other)} > 0")

    def __invert__(self) -> "Condition":
        return Condition(f"{_text(self)} == 0")


def _call(name: str, *arguments: Any) -> Score:
    return Score(f"{name}({', '.join(_text(argument) for argument in arguments)})")


def _apply(name: str, shown: str, *arguments: Any, **keywords: Any) -> Score:
    operation = _operations.get(name)
    if operation is None:
        raise _unsupported(shown)
    if any(isinstance(value, torch.Tensor) for value in (*arguments, *keywords.values())):
        raise _captured("uses")
    try:
        inspect.signature(operation).bind(*arguments, **keywords)
    except TypeError as error:
        raise _unsupported(f"{shown} with these arguments ({error})") from None
    return operation(*arguments, **keywords)


# The operations, with the names and argument names of torch, torch.nn.functional and Tensor. --------------------------


def _where(condition: Any, input: Any, other: Any) -> Score:
    if not isinstance(condition, Condition):
        raise ValueError("activation: expected a comparison as the condition of where, got a number; compare it")
    return Score(f"where({condition.text}, {_text(input)}, {_text(other)})")


def _clamp(input: Any, min: Any = None, max: Any = None) -> Score:
    return _call("clamp", input, -math.inf if min is None else min, math.inf if max is None else max)


def _extreme(name: str) -> Callable[..., Score]:
    def operation(input: Any, other: Any) -> Score:
        if not (isinstance(input, Score) and isinstance(other, Score)):
            raise _unsupported(f"torch.{name} over a dimension")
        return _call(name, input, other)

    return operation


def _sum(sign: str) -> Callable[..., Score]:
    return lambda input, other, *, alpha=1: _binary(sign)(input, other if alpha == 1 else _binary("*")(alpha, other))


def _operator(symbol: str) -> Callable[..., Score]:
    return lambda input, other: _binary(symbol)(input, other)


def _comparison(symbol: str) -> Callable[..., Score]:
    return lambda input, other: _compare(symbol)(input, other)


def _function(name: str) -> Callable[..., Score]:
    return lambda input: _call(name, input)


def _activation(name: str) -> Callable[..., Score]:
    def operation(input: Any, inplace: bool = False) -> Score:
        _refuse_inplace(inplace)
        return _call(name, input)

    return operation


def _refuse_inplace(inplace: bool) -> None:
    if inplace:
        raise ValueError("activation: expected inplace=False, got True; a score cannot be changed, use the result")


def _gelu(input: Any, approximate: str = "none") -> Score:
    names = {"none": "gelu", "tanh": "gelu_tanh"}
    if approximate not in names:
        raise ValueError(f"activation: expected approximate 'none' or 'tanh', got {approximate!r}; correct the name")
    return _call(names[approximate], input)


def _leaky_relu(input: Any, negative_slope: Any = 0.01, inplace: bool = False) -> Score:
    _refuse_inplace(inplace)
    return _where(input > 0, input, negative_slope * input)


def _elu(input: Any, alpha: Any = 1.0, inplace: bool = False) -> Score:
    _refuse_inplace(inplace)
    return _where(input > 0, input, alpha * _call("expm1", input))


def _selu(input: Any, inplace: bool = False) -> Score:
    alpha, scale = 1.6732632423543772, 1.0507009873554805  # Klambauer et al., 2017
    return scale * _elu(input, alpha, inplace)


def _softplus(input: Any, beta: Any = 1, threshold: Any = 20) -> Score:
    # Above its default threshold, PyTorch's softplus(s) is s. The difference from log(1 + exp(s)) is below 3e-9.
    smooth = _call("softplus", input) if beta == 1 else _call("softplus", beta * input) / beta
    return smooth if threshold == 20 else _where(beta * input > threshold, input, smooth)


def _hardtanh(input: Any, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False) -> Score:
    _refuse_inplace(inplace)
    return _clamp(input, min_val, max_val)


def _relu6(input: Any, inplace: bool = False) -> Score:
    return _hardtanh(input, 0, 6, inplace)


def _hardsigmoid(input: Any, inplace: bool = False) -> Score:
    return _relu6(input + 3, inplace) / 6


def _mish(input: Any, inplace: bool = False) -> Score:
    _refuse_inplace(inplace)
    return input * _call("tanh", _call("softplus", input))


def _constant(value: float) -> Callable[..., Score]:
    return lambda input: _score(value)


# Functions of one argument with the same name in the expression language and in torch.
_same_name = (
    *("abs", "sign", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log1p"),
    *("tanh", "sigmoid", "erf", "sin", "cos"),
)

_operations: dict[str, Callable[..., Score]] = {
    **{name: _function(name) for name in _same_name},
    **{name: _activation(name) for name in ("relu", "silu", "hardswish")},
    "absolute": _function("abs"),
    "expit": _function("sigmoid"),
    "add": _sum("+"),
    "sub": _sum("-"),
    "subtract": _sum("-"),
    "mul": _operator("*"),
    "multiply": _operator("*"),
    "div": _operator("/"),
    "divide": _operator("/"),
    "true_divide": _operator("/"),
    "pow": lambda input, exponent: _binary("^")(input, exponent),
    "neg": lambda input: -input,
    "negative": lambda input: -input,
    "square": lambda input: input**2,
    "reciprocal": lambda input: 1 / input,
    "lt": _comparison("<"),
    "le": _comparison("<="),
    "gt": _comparison(">"),
    "ge": _comparison(">="),
    "eq": _comparison("=="),
    "ne": _comparison("!="),
    "logical_and": lambda input, other: input & other,
    "logical_or": lambda input, other: input | other,
    "logical_not": lambda input: ~input,
    "where": _where,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda input, min: _clamp(input, min=min),
    "clamp_max": lambda input, max: _clamp(input, max=max),
    "min": _extreme("min"),
    "max": _extreme("max"),
    "minimum": _extreme("min"),
    "maximum": _extreme("max"),
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "selu": _selu,
    "softplus": _softplus,
    "logsigmoid": lambda input: -_call("softplus", -input),
    "softsign": lambda input: input / (1 + _call("abs", input)),
    "tanhshrink": lambda input: input - _call("tanh", input),
    "hardtanh": _hardtanh,
    "relu6": _relu6,
    "hardsigmoid": _hardsigmoid,
    "mish": _mish,
    "zeros_like": _constant(0),
    "ones_like": _constant(1),
}
