"""Functions and operators of other packages, whose arguments have other orders or names than those of gdpa."""

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from gdpa._leaf import leaf

Attention = Callable[..., torch.Tensor]


def in_order(function: Attention, order: str, **defaults: Any) -> Callable[[Callable[[], None]], Attention]:
    """Makes a function that passes its arguments on to `function`. The decorated function has its name and its text.

    Args:
        order: the names of the arguments in their order. "N:max_seq_len" is called max_seq_len in `function`, and
            "cu_seqlens_t:" has no effect.
        defaults: the values that arguments of `function` have in place of their own defaults if they are missing.
    """
    target_of = {name: target if colon else name for name, colon, target in (w.partition(":") for w in order.split())}
    names = tuple(target_of)

    def decorate(described: Callable[[], None]) -> Attention:
        @functools.wraps(described)
        def call(*arguments: Any, **keywords: Any) -> torch.Tensor:
            given = dict(zip(names, arguments, strict=False))
            for name, value in keywords.items():
                if name in given or name not in target_of:
                    raise TypeError(f"{described.__name__}: expected each of {', '.join(names)} once, got {name!r}")
                given[name] = value
            if len(arguments) > len(names):
                raise TypeError(f"{described.__name__}: expected {', '.join(names)}, got {len(arguments)} arguments")
            passed = {target_of[name]: value for name, value in given.items() if target_of[name]}
            return function(**{**defaults, **passed})

        known = inspect.signature(function).parameters
        parameters = [
            known[target].replace(name=name, default=defaults.get(target, known[target].default))
            if target
            else inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
            for name, target in target_of.items()
        ]
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
