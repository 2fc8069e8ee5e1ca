"""Makes packages importable from checkouts of their repositories: Meta's GDPA and generative-recommenders.

Both are Triton kernels in Python files, and no package registry has them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

META = Path("gdpa/triton/triton_generalized_dot_product_attention.py")
META_PACKAGE = "ads_mkl.ops.oss.gdpa"  # the files import one another under this name
GENERATIVE_RECOMMENDERS = Path("generative_recommenders/ops/triton/triton_hstu_attention.py")


def define_object(module: ModuleType) -> None:
    """Lets Triton 3.6 compile Meta's backward kernel, which annotates parameters with `object`.

    Triton looks annotations up among the globals of the module, where built-in names are unknown. The annotation has no
    other effect.
    """
    vars(module).setdefault("object", getattr(module, "tl", None))


def add_checkout(folder: Path) -> None:
    """Makes the package of a checkout importable.

    Raises:
        ValueError: the folder is no checkout of ads_model_kernel_library or of generative-recommenders.
    """
    folder = folder.resolve()
    if (folder / GENERATIVE_RECOMMENDERS).is_file():
        sys.path.append(str(folder))
    elif (folder / META).is_file():
        parts = META_PACKAGE.split(".")
        for end in range(1, len(parts) + 1):
            package = ModuleType(".".join(parts[:end]))
            package.__path__ = [str(folder / "gdpa")] if end == len(parts) else []
            sys.modules[package.__name__] = package
    else:
        raise ValueError(
            f"--checkout: expected a checkout of ads_model_kernel_library or generative-recommenders, got {folder}"
        )
