"""Functions and operators of other packages, whose arguments become a record: a dataclass of gdpa."""

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import torch

from gdpa._symbolic import leaf

_P = ParamSpec("_P")
_Record = TypeVar("_Record")
_Result = TypeVar("_Result")


def _made(record: Callable[..., _Record], name: str, *arguments: Any, **keywords: Any) -> _Record:
    """Makes the record of a call. An error of Python names the function that the caller knows."""
    try:
        return record(*arguments, **keywords)
    except TypeError as error:
        raise TypeError(str(error).replace(f"{record.__name__}.__init__()", f"{name}()")) from None


def arguments_of(record: Callable[_P, _Record]) -> Callable[[Callable[[_Record], _Result]], Callable[_P, _Result]]:
    """Makes a function with the arguments of the record from a function of the record."""

    def decorate(function: Callable[[_Record], _Result]) -> Callable[_P, _Result]:
        @functools.wraps(function)
        def call(*arguments: _P.args, **keywords: _P.kwargs) -> _Result:
            return function(_made(record, function.__name__, *arguments, **keywords))

        call.__signature__ = inspect.signature(record)  # type: ignore[attr-defined]
        return leaf(call)

    return decorate


def in_order(
    record: Callable[..., Any], order: str, **defaults: Any
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Makes a function with arguments in another order from a function of the record and of further arguments.

    Args:
        order: the names of the arguments in their order. "N:max_seq_len" is called max_seq_len in the record.
        defaults: the values that arguments of the record have in place of their own defaults if they are missing.
    """
    target_of = {name: target or name for name, _, target in (word.partition(":") for word in order.split())}
    names = tuple(target_of)
    of_record = inspect.signature(record).parameters

    def decorate(function: Callable[..., _Result]) -> Callable[..., _Result]:
        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> _Result:
            given = dict(zip(names, arguments, strict=False))
            for name, value in keywords.items():
                if name in given or name not in target_of:
                    raise TypeError(f"{function.__name__}: expected each of {', '.join(names)} once, got {name!r}")
                given[name] = value
            if len(arguments) > len(names):
                raise TypeError(f"{function.__name__}: expected {', '.join(names)}, got {len(arguments)} arguments")
            passed = {target_of[name]: value for name, value in given.items()}
            further = {name: passed.pop(name) for name in tuple(passed) if name not in of_record}
            return function(_made(record, function.__name__, **{**defaults, **passed}), **further)

        known = {**inspect.signature(function).parameters, **of_record}
        parameters: list[inspect.Parameter] = []
        is_optional = True
        for name, target in reversed(target_of.items()):
            default = defaults.get(target, known[target].default)
            is_optional = is_optional and default is not inspect.Parameter.empty
            default = default if is_optional else inspect.Parameter.empty
            parameters.insert(0, known[target].replace(name=name, default=default))
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return leaf(call)

    return decorate


def operator_of(schema: str, kernel: Callable[[SimpleNamespace], Any]) -> Callable[..., Any]:
    """Returns the function of an operator, which calls `kernel` with all arguments of the schema by name.

    PyTorch passes them in the order of the schema, without those at the end that have their default.
    """
    arguments = torch._C.parse_schema(f"operator{schema}").arguments
    defaults = {one.name: one.default_value for one in arguments}

    def call(*given: Any) -> Any:
        return kernel(SimpleNamespace(**{**defaults, **dict(zip(defaults, given, strict=False))}))

    return call
