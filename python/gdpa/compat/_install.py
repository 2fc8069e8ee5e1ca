"""Registers modules and operators under the names that existing code imports, when the caller asks for it."""

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator
from itertools import accumulate
from types import ModuleType
from typing import Any

import torch

_FBGEMM_HSTU = "gdpa.compat.hstu"
_META = "gdpa.compat.meta"
_GR = "gdpa.compat.generative_recommenders"

#: For each package that `install` accepts: the modules that existing code imports, and gdpa's module for each.
MODULES = {
    "hstu": {
        "hstu": _FBGEMM_HSTU,
        "hstu.cuda_hstu_attention": _FBGEMM_HSTU,
        "hstu.hstu_ops_gpu": _FBGEMM_HSTU,  # imported for its operators
        "fbgemm_gpu.experimental.hstu": _FBGEMM_HSTU,
        "fbgemm_gpu.experimental.hstu.cuda_hstu_attention": _FBGEMM_HSTU,
        "fbgemm_gpu.experimental.hstu.hstu_ops_gpu": _FBGEMM_HSTU,
        "hstu_attn": "gdpa.compat.hstu_attn",
        "hstu_attn.hstu_attn_interface": "gdpa.compat.hstu_attn",
        "hstu_attn_interface": "gdpa.compat.hstu_attn_interface",
    },
    "hammer": {
        "hammer.ops.triton.cc.hstu_attention.triton_cc_hstu_attention": _GR,
        "hammer.v2.ops.triton.template.tlx_bw_hstu_attention": _GR,
    },
    "ads_mkl": {
        "ads_mkl.ops.oss.gdpa.triton.triton_generalized_dot_product_attention": _META,
        "gdpa.triton.triton_generalized_dot_product_attention": _META,
    },
}

# For each package, the module with the schemas and the functions of its operators.
_OPERATORS = {"hstu": "gdpa.compat._hstu_operators", "hammer": "gdpa.compat._hammer_operators", "ads_mkl": _META}

# The registrations of operators end with these objects.
_libraries: list[torch.library.Library] = []
_installed: dict[str, ModuleType] = {}


def install(package: str) -> None:
    """Registers gdpa under the names of another package, so that existing imports find gdpa.

    Args:
        package: "hstu" for FBGEMM's HSTU (`hstu`, `fbgemm_gpu.experimental.hstu`), the older wheels (`hstu_attn`,
            `hstu_attn_interface`) and the operators fbgemm::hstu_varlen_{fwd,bwd}_{80,90}. "hammer" for the kernels
            TRITON_CC and TLX of generative-recommenders and its operators hstu::hstu_mha, hstu_mha_fwd and
            hstu_mha_bwd. "ads_mkl" for Meta's GDPA (`ads_mkl.ops.oss.gdpa.triton`, `gdpa.triton`) and the operators
            generalized_dot_product_attention in `torch.ops.gdpa` and `torch.ops.ads_mkl`.

    A second call has no effect. docs/compat.md lists the names.

    Raises:
        ValueError: the package is another one.
        ImportError: one of the modules is installed or imported. Nothing is registered.

    Example::

        >>> gdpa.compat.install("hstu")
        >>> from hstu import hstu_attn_varlen_func
    """
    if package not in MODULES:
        raise ValueError(f"install: expected one of {', '.join(MODULES)}, got {package!r}; correct the name")
    modules = MODULES[package]
    for name in modules:
        _refuse_installed(package, name)
    for name, source in modules.items():
        _register(name, importlib.import_module(source))
    for name, (schema, kernel) in importlib.import_module(_OPERATORS[package]).OPERATORS.items():
        _define(name, schema, kernel)


def _refuse_installed(package: str, name: str) -> None:
    """Refuses to hide a module that Python would find."""
    for part in _with_packages_above(name):
        if part in _installed or (part == "gdpa" and part != name):
            continue
        if part not in sys.modules and _spec(part) is None:
            return  # nor is a module below it
        if part == name and not _is_folder(part):
            raise ImportError(
                f"install({package!r}): expected no module {name}, because gdpa does not hide a package, but one is "
                f"installed or imported; uninstall it, or import {MODULES[package][name]} instead"
            )


def _with_packages_above(name: str) -> Iterator[str]:
    return accumulate(name.split("."), "{}.{}".format)


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Returns the spec of a module that is imported or that Python finds, or None."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _is_folder(name: str) -> bool:
    """Returns whether the module is a folder without code, such as a folder hstu in the current directory."""
    spec = _spec(name)
    return spec is not None and spec.origin is None and spec.submodule_search_locations is not None


def _register(name: str, source: ModuleType) -> None:
    """Makes a module with the public names of `source`, and the packages above it."""
    parent: ModuleType | None = None
    for part in _with_packages_above(name):
        module = sys.modules.get(part) or _imported(part)
        if module is None:
            module = _installed[part] = sys.modules[part] = _package(part)
            if parent is not None:
                setattr(parent, part.rpartition(".")[2], module)
        parent = module
    assert parent is not None
    for public in source.__all__:
        setattr(parent, public, getattr(source, public))
    parent.__doc__ = f"gdpa in place of {name}: the functions of {source.__name__}."


def _imported(name: str) -> ModuleType | None:
    """Returns an installed package above the module, such as fbgemm_gpu without its HSTU."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _package(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    return module


def _define(name: str, schema: str, kernel: Callable[..., Any]) -> None:
    """Registers an operator that PyTorch does not have, for all devices. The functions inside it record gradients."""
    space, _, operator = name.partition("::")
    if hasattr(getattr(torch.ops, space), operator):
        return
    library = torch.library.Library(space, "FRAGMENT")
    library.define(f"{operator}{schema}")
    library.impl(operator, kernel, "CompositeImplicitAutograd")
    _libraries.append(library)
