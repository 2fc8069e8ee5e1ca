"""Converts a Python function with torch operations to an expression of docs/functions.md.

The function is called once with a Score instead of a tensor. The tensors that it captures and indexes with positions,
or uses as a number, become tensors of the call.
"""

import inspect
import operator
import os
import re
import weakref
from collections.abc import Callable, Iterator
from numbers import Real
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from gdpa._score import WITHOUT_INDEX, Condition, Element, Flag, Score, text_of
from gdpa._text import names_in
from gdpa._when_imported import assume_constant_result

#: The names of the positions in the language: the batch entry, the query head, the query and the key.
_positions = ("batch", "head", "q_idx", "kv_idx")
#: The names of the rows of the packed queries and keys. An argument of a function with such a name is the row.
_rows = ("q_row", "kv_row")

_torch_folder = os.path.dirname(torch.__file__)

#: What a mode sees of tensor[index]. torch.export with strict=True shows the operator.
_getitem = (torch.Tensor.__getitem__, operator.getitem)

# The texts of traced functions, by their code, the names of params and the values that the function reads. A program
# may change such a value without end, so a full dict is emptied.
_cache: "weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], str]]" = weakref.WeakKeyDictionary()
_most_texts = 64


def expression_of(function: Callable[..., Any], names: frozenset[str]) -> tuple[str, dict[str, torch.Tensor]]:
    """Returns the expression of the function and the tensors that it captures, with their names in the expression.

    A function is traced again if a number that it captures has changed. A function that captures tensors, lists or
    objects is traced in each call, because they may change unseen. torch.compile traces the function as a part of the
    graph, so that the tensors are inputs of the graph.
    """
    read = None if torch.compiler.is_compiling() else _values_read(function)
    if read is None:
        return _trace(function, names)
    texts = _cache.setdefault(_code_of(function), {})
    key = (names, *read)
    if key in texts:
        return texts[key], {}
    text, tensors = _trace(function, names)
    if not tensors:
        if len(texts) >= _most_texts:
            texts.clear()
        texts[key] = text
    return text, tensors


def _code_of(function: Callable[..., Any]) -> Any:
    """Returns what functions share that are made by the same line, or the function itself."""
    return type(function) if isinstance(function, torch.nn.Module) else getattr(function, "__code__", function)


def _values_read(function: Callable[..., Any]) -> tuple[Any, ...] | None:
    """Returns the values on which the trace of the function depends, or None if they may change unseen."""
    values: list[Any] = []
    pending, seen = [function], set()
    while pending:
        one = pending.pop()
        if one in seen or _is_fixed(one):
            continue
        seen.add(one)
        for value in _values_of(one):
            if isinstance(value, (int, float, str, bytes, type(None))):
                values.append((type(value), repr(value)))
            elif _is_fixed(value):
                values.append(value)
            elif type(value) is FunctionType:
                values.append(value.__code__)
                pending.append(value)
            elif not isinstance(value, (dict, list, set)) or value:
                return None
    return tuple(values)


def _values_of(function: Any) -> Iterator[Any]:
    """Yields the values that a function reads: of its closure, of global names, and defaults.

    A module of torch, such as nn.LeakyReLU, reads its attributes.
    """
    if isinstance(function, torch.nn.Module) and type(function).__module__.startswith("torch.nn.modules."):
        yield from vars(function).values()
        return
    if type(function) is not FunctionType:
        yield function  # of an unknown kind
        return
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a variable without a value yet
            yield None
    for name in _names_in(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _names_in(code: CodeType) -> Iterator[str]:
    """Yields the names of globals and attributes in a code and in the functions that it defines."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _is_fixed(value: Any) -> bool:
    """Whether a value always computes the same: a module or a function of torch, math or builtins, or a type.

    A built-in method of an object, such as dict.get of a dict, may compute something else after a change of the object.
    """
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in ("torch", "math", "builtins")
    if isinstance(value, FunctionType):
        return value.__code__.co_filename.startswith(_torch_folder)
    if isinstance(value, BuiltinFunctionType):
        if value.__self__ is None:  # torch.sigmoid
            return (value.__module__ or "").partition(".")[0] == "torch"
        return _is_fixed(value.__self__)
    return isinstance(value, torch.dtype) or value in (bool, int, float)


def _trace(function: Callable[..., Any], names: frozenset[str]) -> tuple[str, dict[str, torch.Tensor]]:
    positions, further = _arguments(function, names)
    parameters = {name: _integer(name) if name in _rows else Element(name, (), None, False) for name in further}
    captures = Captures(names)
    with captures:
        result = function(Score("s"), *[_integer(name) for name in positions], **parameters)
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
    text = text_of(result)
    return text, captures.tensors_of(text)


def _integer(name: str) -> Score:
    return Score(name, is_integer=True)


def condition_of(function: Callable[..., Any]) -> tuple[str, dict[str, torch.Tensor]]:
    """Returns the condition of a function (b, h, q_idx, kv_idx) and the tensors that it captures.

    A value that is not a comparison holds where it is not 0. The function is traced in each call.
    """
    captures = Captures(frozenset())
    rows = _rows_of_mask(function)
    with captures:
        try:
            result = function(*[_integer(name) for name in _positions], **{name: _integer(name) for name in rows})
        except ValueError as error:  # of gdpa._score, which names the activation
            raise ValueError(re.sub("^activation:", "mask:", str(error))) from None
    if isinstance(result, (bool, int)):
        return ("kv_idx >= 0" if result else "kv_idx < 0"), {}
    if not isinstance(result, Score):
        raise ValueError(
            f"mask: expected a function of positions that returns a condition, got {type(result).__name__}; compare "
            "positions and elements of tensors, as in kv_idx <= q_idx"
        )
    condition = result if isinstance(result, Condition) else result != 0
    return condition.text, captures.tensors_of(condition.text, is_condition=True)


def _rows_of_mask(function: Callable[..., Any]) -> list[str]:
    """Returns the rows among the arguments of a mask function. The other ones are the positions."""
    signature = _signature(function)
    names = (*signature.by_position, *signature.by_name)
    required = [name for name in names if name not in signature.optional and name not in _rows]
    if len(signature.by_position) > 1 and len(required) != len(_positions):
        raise ValueError(
            f"mask: expected a function of ({', '.join(_positions)}), and q_row or kv_row if it reads rows, got "
            f"({', '.join(names)}); give it these arguments"
        )
    return [name for name in names if name in _rows]


def _arguments(function: Callable[..., Any], names: frozenset[str]) -> tuple[tuple[str, ...], list[str]]:
    """Returns the positions that the function takes after the score, and the names of its further arguments.

    The positional arguments without a value of params, a default or the name of a row are the score, or (score, batch,
    head, q_idx, kv_idx).
    """
    signature = _signature(function)
    given = (*names, *_rows)
    required = [name for name in signature.by_position if name not in signature.optional and name not in given]
    missing = [name for name in signature.by_name if name not in signature.optional and name not in given]
    has_positions = len(required) == 1 + len(_positions) and tuple(required) == signature.by_position[: len(required)]
    if missing or not (len(required) <= 1 or has_positions):
        unknown = missing or required[1:]
        raise ValueError(
            "activation: expected a function of the score and of names in params, or of (score, batch, head, q_idx, "
            f"kv_idx), got a function of ({', '.join((*signature.by_position, *signature.by_name))}); pass "
            f"params={{{unknown[0]!r}: 2.0}}, or give it all five arguments"
        )
    positions = _positions if has_positions else ()
    if positions and not names.isdisjoint((*positions, *_rows)):
        hidden = min(names.intersection((*positions, *_rows)))
        raise ValueError(
            f"params: expected other names than {', '.join((*positions, *_rows))} for a function of positions, got "
            f"{hidden!r}; rename it"
        )
    further = (*signature.by_position[1 + len(positions) :], *signature.by_name)
    return positions, [name for name in further if name not in signature.optional or name in names]


class _Signature(NamedTuple):
    by_position: tuple[str, ...]
    by_name: tuple[str, ...]
    optional: tuple[str, ...]  # the arguments with a default


def _signature(function: Callable[..., Any]) -> _Signature:
    """Returns the arguments of the function. torch.compile cannot call inspect.signature."""
    function = function.forward if isinstance(function, torch.nn.Module) else function
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

    def tensors_of(self, text: str, is_condition: bool = False) -> dict[str, torch.Tensor]:
        """Returns the tensors that the text reads. A function may index a tensor and not use the element."""
        if not self.tensors:
            return {}
        names = names_in(text, is_condition)
        return {name: one for name, one in self.tensors.items() if name in names}

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function in _getitem and isinstance(arguments[0], torch.Tensor):
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
        if tensor.numel() > 1 or tensor.dim() > 1:
            raise ValueError(
                f"activation: expected a captured tensor with one number or with an index for each axis, got shape "
                f"{tuple(tensor.shape)}; index it with positions, as in table[head], or make it a further "
                "argument of the function given through params={'a': tensor}"
            )
        number = tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
        return Element(self._name(number), (), None, False)

    def _element(self, tensor: torch.Tensor) -> Element | Flag:
        is_integer = not tensor.is_floating_point()
        element = Element(self._name(tensor), (), tuple(tensor.shape), is_integer)
        return Flag(element) if tensor.dtype == torch.bool else element

    def _name(self, tensor: torch.Tensor) -> str:
        for name, known in self.tensors.items():
            if known is tensor:
                return name
        number = 0
        while (name := f"captured{number}") in self.tensors or name in self._names:
            number += 1
        self.tensors[name] = tensor
        return name
