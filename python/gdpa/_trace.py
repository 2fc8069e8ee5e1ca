"""Converts a Python function with torch operations to an expression of docs/functions.md.

The function is called once with a Score instead of a tensor. The tensors that it captures and indexes with positions,
or uses as a number, become tensors of the call.
"""

import inspect
import os
import weakref
from collections.abc import Callable
from numbers import Real
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from gdpa._score import WITHOUT_INDEX, Condition, Element, Score, text_of
from gdpa._when_imported import assume_constant_result

#: The names of the positions in the language: the batch entry, the query head, the query and the key.
_positions = ("b", "h", "i", "j")

_torch_folder = os.path.dirname(torch.__file__)

_cache: "weakref.WeakKeyDictionary[Callable[..., Any], dict[frozenset[str], str]]" = weakref.WeakKeyDictionary()


def expression_of(function: Callable[..., Any], names: frozenset[str]) -> tuple[str, dict[str, torch.Tensor]]:
    """Returns the expression of the function and the tensors that it captures, with their names in the expression.

    Traces once for each function object and set of names of params. A function that captures tensors is traced in each
    call, because a variable or an attribute may have another tensor in the next call. torch.compile traces the function
    as a part of the graph, so that the tensors are inputs of the graph.
    """
    if torch.compiler.is_compiling():
        return _trace(function, names)
    try:
        texts = _cache.setdefault(function, {})
    except TypeError:  # without a weak reference or a hash, the function is traced each time
        texts = {}
    if names in texts:
        return texts[names], {}
    text, tensors = _trace(function, names)
    if not tensors:
        texts[names] = text
    return text, tensors


def _trace(function: Callable[..., Any], names: frozenset[str]) -> tuple[str, dict[str, torch.Tensor]]:
    positions, further = _arguments(function, names)
    parameters = {name: Element(name, (), None, False) for name in further}
    captures = Captures(names)
    with captures:
        result = function(Score("s"), *[Score(name, is_integer=True) for name in positions], **parameters)
    if isinstance(result, torch.Tensor):
        raise ValueError(
            "activation: expected a function of the score, got one that returns a tensor; make the tensor a number "
            "(.item()), or pass it through params={'a': tensor}"
        )
    if not isinstance(result, (Score, Real)):
        raise ValueError(
            f"activation: expected a function that returns one tensor, got {type(result).__name__}; return the value "
            "of f"
        )
    return text_of(result), captures.tensors


def condition_of(function: Callable[..., Any]) -> tuple[str, dict[str, torch.Tensor]]:
    """Returns the condition of a function (b, h, q_idx, kv_idx) and the tensors that it captures.

    A value that is not a comparison holds where it is not 0. The function is traced in each call.
    """
    captures = Captures(frozenset())
    with captures:
        result = function(*[Score(name, is_integer=True) for name in _positions])
    if isinstance(result, (bool, int)):
        return ("j >= 0" if result else "j < 0"), captures.tensors
    if not isinstance(result, Score):
        raise ValueError(
            f"mask: expected a function of positions that returns a condition, got {type(result).__name__}; compare "
            "positions and elements of tensors, as in kv_idx <= q_idx"
        )
    condition = result if isinstance(result, Condition) else result != 0
    return condition.text, captures.tensors


def _arguments(function: Callable[..., Any], names: frozenset[str]) -> tuple[tuple[str, ...], list[str]]:
    """Returns the positions that the function takes after the score, and the names of its further arguments.

    A function of positions has five positional arguments (s, b, h, q_idx, kv_idx) without defaults, none of them in
    params. Further arguments have no default, or are in params.
    """
    signature = _signature(function.forward if isinstance(function, torch.nn.Module) else function)
    required = [name for name in signature.by_position[:5] if name not in signature.optional and name not in names]
    positions = _positions if len(required) == 5 else ()
    if positions and not names.isdisjoint(positions):
        hidden = min(names.intersection(positions))
        raise ValueError(
            f"params: expected other names than {', '.join(positions)} for a function of positions, got {hidden!r}; "
            "rename it"
        )
    further = (*signature.by_position[1 + len(positions) :], *signature.by_name)
    return positions, [name for name in further if name not in signature.optional or name in names]


class _Signature(NamedTuple):
    by_position: tuple[str, ...]
    by_name: tuple[str, ...]
    optional: tuple[str, ...]  # the arguments with a default


def _signature(function: Callable[..., Any]) -> _Signature:
    """Returns the arguments of the function. torch.compile cannot call inspect.signature."""
    if not hasattr(function, "__code__") or hasattr(function, "__wrapped__"):
        return _Signature(*_inspected(function))
    code = function.__code__
    if isinstance(function, FunctionType) and code.co_filename.startswith(_torch_folder):
        return _Signature(*_inspected(function))  # torch.compile hides the defaults of torch's functions
    of_names = (function.__kwdefaults__ or {}) if code.co_kwonlyargcount else {}
    end = code.co_argcount
    by_position = code.co_varnames[int(isinstance(function, MethodType)) : end]
    by_name = code.co_varnames[end : end + code.co_kwonlyargcount]
    with_default = len(function.__defaults__ or ())
    return _Signature(by_position, by_name, (*by_position[len(by_position) - with_default :], *of_names))


@assume_constant_result
def _inspected(function: Callable[..., Any]) -> tuple[tuple[str, ...], ...]:
    try:
        arguments = inspect.signature(function).parameters.values()
    except ValueError:  # torch's builtin functions have no signature
        return ("s",), (), ()
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return (
        tuple(a.name for a in arguments if a.kind in by_position),
        tuple(a.name for a in arguments if a.kind is inspect.Parameter.KEYWORD_ONLY),
        tuple(a.name for a in arguments if a.default is not a.empty),
    )


class Captures(TorchFunctionMode):
    """Gives names to the tensors that a function captures. Indexing a tensor with a Score reaches only a mode."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__()
        self.tensors: dict[str, torch.Tensor] = {}
        self._names = names  # of params

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function is torch.Tensor.__getitem__ and isinstance(arguments[0], torch.Tensor):
            tensor, index = arguments
            if index is WITHOUT_INDEX:
                return self._number(tensor)
            if any([isinstance(one, Score) for one in (index if isinstance(index, tuple) else (index,))]):
                return self._element(tensor)[index]
        keywords = keywords or {}
        if any([isinstance(value, Score) for value in (*arguments, *keywords.values())]):
            arguments = [self._operand(value) for value in arguments]
            keywords = {name: self._operand(value) for name, value in keywords.items()}
            return Score.__torch_function__(function, types, arguments, keywords)
        return function(*arguments, **keywords)

    def _operand(self, value: Any) -> Any:
        return self._number(value) if isinstance(value, torch.Tensor) else value

    def _number(self, tensor: torch.Tensor) -> Element:
        if tensor.dim() > 0:
            raise ValueError(
                f"activation: expected a captured tensor with one number or with an index for each axis, got shape "
                f"{tuple(tensor.shape)}; index it with positions, as in table[h], or make it a further "
                "argument of the function given through params={'a': tensor}"
            )
        is_integer = not tensor.is_floating_point()
        return self._element(tensor.to(torch.get_default_dtype()) if is_integer else tensor)

    def _element(self, tensor: torch.Tensor) -> Element:
        is_integer = tensor.dim() > 0 and not tensor.is_floating_point()
        return Element(self._name(tensor), (), tuple(tensor.shape), is_integer)

    def _name(self, tensor: torch.Tensor) -> str:
        for name, known in self.tensors.items():
            if known is tensor:
                return name
        number = 0
        while (name := f"captured{number}") in self.tensors or name in self._names:
            number += 1
        self.tensors[name] = tensor
        return name
