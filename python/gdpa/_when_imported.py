"""Registrations with parts of PyTorch that `import gdpa` does not import, because they take seconds.

They happen when something else imports the part. torch.compile, for example, imports torch._dynamo.
"""

import functools
import sys
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")

_waiting: dict[str, list[Callable[[], object]]] = {}


def when_imported(name: str, register: Callable[[], object]) -> None:
    """Calls `register` at the end of the first import of the module, or now if the module has been imported."""
    if name in sys.modules:
        register()
    else:
        _waiting.setdefault(name, []).append(register)


def assume_constant_result(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """torch.compiler.assume_constant_result, which imports torch._dynamo. It marks the function and returns it."""
    when_imported("torch._dynamo", lambda: torch.compiler.assume_constant_result(function))
    return function


def disable(reason: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """torch.compiler.disable, which imports torch._dynamo and wraps the function."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        current = function

        def replace() -> None:
            nonlocal current
            current = torch.compiler.disable(function, reason=reason)

        @functools.wraps(function)
        def call(*arguments: _P.args, **keywords: _P.kwargs) -> _R:
            return current(*arguments, **keywords)

        when_imported("torch._dynamo", replace)
        return call

    return decorate


class _Finder:
    """Finds the modules of `_waiting` as the other finders do. Their import then ends with the registrations."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not cls)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            _register_after(name, spec.loader)
        return spec


def _register_after(name: str, loader: Loader) -> None:
    # The loader belongs to this spec alone, and stays the loader that finds the source and the data of the module.
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        for register in _waiting.pop(name, ()):
            register()

    loader.exec_module = exec_module  # type: ignore[method-assign]


sys.meta_path.insert(0, _Finder)
