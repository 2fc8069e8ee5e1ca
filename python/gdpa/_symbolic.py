"""Symbolic values: the proxies of torch.fx, and the numbers that torch.compile and torch.export keep symbolic."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeGuard, TypeVar

import torch
from torch.fx import Proxy

_P = ParamSpec("_P")
_R = TypeVar("_R")


def leaf(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes each call with a proxy one node of the graph. The function itself runs when the graph runs.

    A symbolic trace calls a function with proxies, which have no shape and no dtype, so that no argument could be
    checked. torch.fx.wrap has the same purpose, but only for calls through a global variable of the module that defines
    the function: `from gdpa.compat.hstu import hstu_attn_varlen_func` makes another variable.
    """

    @functools.wraps(function)
    def call(*arguments: _P.args, **keywords: _P.kwargs) -> _R:
        for argument in (*arguments, *keywords.values()):
            if isinstance(argument, Proxy):
                return argument.__torch_function__(call, (), arguments, keywords)  # type: ignore[return-value]
        return function(*arguments, **keywords)

    return call


def node_of(function: Callable[..., Any], proxy: Proxy, arguments: Mapping[str, Any]) -> Any:
    """Returns the node of a call with these arguments by name. One of them is the proxy.

    A function that is called often tests an argument itself, which takes less time than the decorator `leaf`.
    """
    return proxy.__torch_function__(function, (), (), dict(arguments))


def is_symbolic(number: Any) -> TypeGuard[float]:
    """Returns whether a graph is being traced, and the number may have several values in it, such as 1 / n.

    The operators take plain numbers. PyTorch would make a symbolic number a constant there, and compile another graph
    for each of them.
    """
    if isinstance(number, (torch.SymInt, torch.SymFloat)):
        return True
    if not torch.compiler.is_compiling() or isinstance(number, bool) or not isinstance(number, (int, float)):
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not has_static_value(number)
