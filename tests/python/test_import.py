"""`import gdpa` imports nothing more of PyTorch than `import torch`; later imports get their registrations."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gdpa._when_imported import when_imported

PROGRAM = """
import json, sys
import torch
before = set(sys.modules)
import gdpa, gdpa.compat.generative_recommenders, gdpa.compat.hstu, gdpa.compat.hstu_attn, gdpa.compat.meta
print(json.dumps(sorted(set(sys.modules) - before)))
operand = torch.ones(1, 2, 3, 8, requires_grad=True)
gdpa.generalized_dot_product_attention(*[operand] * 3, lambda s: s * s, mask="kv_idx <= q_idx").sum().backward()
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_import_gdpa_imports_no_module_that_import_torch_does_not() -> None:
    """torch._dynamo, SymPy and Triton take longer than torch, and most programs need none of them."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    after_import, after_call = (json.loads(line) for line in run.stdout.splitlines())
    assert "gdpa.compat.meta" in after_import
    assert [name for name in after_import if name.partition(".")[0] not in {"gdpa", *sys.stdlib_module_names}] == []
    assert {"torch._dynamo", "sympy", "triton"}.isdisjoint(after_call)


def test_registers_at_the_end_of_the_first_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gdpa_test_late.py").write_text("first = 1\nlast = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    registered: list[int] = []
    when_imported("gdpa_test_late", lambda: registered.append(sys.modules["gdpa_test_late"].last))
    assert importlib.util.find_spec("gdpa_test_late") is not None
    assert registered == []
    late = importlib.import_module("gdpa_test_late")
    assert registered == [2]
    assert inspect.getsource(late) == "first = 1\nlast = 2\n"
    importlib.reload(late)
    assert registered == [2]
    when_imported("gdpa_test_late", lambda: registered.append(3))
    assert registered == [2, 3]
    monkeypatch.delitem(sys.modules, "gdpa_test_late")


def test_registers_after_the_import_that_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gdpa_test_broken.py").write_text("import gdpa_test_missing\n")
    (tmp_path / "gdpa_test_missing.py").write_text("raise ImportError('not yet')\n")
    monkeypatch.syspath_prepend(tmp_path)
    registered: list[int] = []
    when_imported("gdpa_test_broken", lambda: registered.append(1))
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module("gdpa_test_broken")
    assert registered == []
    (tmp_path / "gdpa_test_missing.py").write_text("")
    importlib.import_module("gdpa_test_broken")
    assert registered == [1]
    for name in ("gdpa_test_broken", "gdpa_test_missing"):
        monkeypatch.delitem(sys.modules, name)
