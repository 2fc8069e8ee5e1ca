"""Every Python block of the README and of docs/ runs, the blocks of a page in their order, in one namespace."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
import torch

import gdpa

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITH_BLOCKS = [page for page in PAGES if page.exists() and BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=[page.name for page in WITH_BLOCKS])
def test_the_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    text = page.read_text()
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        # Compiled with the page's own lines in front, so that a traceback names the line of the page.
        lines_before = text[: block.start(1)].count("\n")
        exec(compile("\n" * lines_before + block[1], str(page), "exec"), namespace)


def test_the_examples_of_the_docstrings_hold() -> None:
    namespace = {"gdpa": gdpa, "torch": torch}
    for documented in (gdpa.varlen_attention, gdpa.generalized_dot_product_attention, gdpa.Activation):
        for example in doctest.DocTestFinder(recurse=False).find(documented, globs=namespace):
            assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing
