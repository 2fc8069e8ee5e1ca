"""The README and the pages of docs/: their Python blocks run, their links lead to files, and their names exist."""

from __future__ import annotations

import doctest
import functools
import re
import runpy
from pathlib import Path

import pytest
import torch

import gdpa

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A notebook also names code of earlier versions.
CURRENT_PAGES = [page for page in PAGES if page.parent.name != "notebook"]
SOURCES = ["CMakeLists.txt", "Makefile", "pyproject.toml", "LICENSE", ".clang-tidy"]
SOURCE_FOLDERS = [
    "cmake",
    "examples",
    "include",
    "kernels",
    "python",
    "requirements",
    "scripts",
    "src",
    "tests",
    "tools",
    "torch",
]
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
    functions = [getattr(gdpa, name) for name in gdpa.__all__ if callable(getattr(gdpa, name))]
    modules = [getattr(module, name) for module in (gdpa.nn, gdpa.distributed) for name in module.__all__]
    for documented in (*functions, gdpa.Activation, gdpa.Warmup, *modules):
        for example in doctest.DocTestFinder(recurse=False).find(documented, globs=namespace):
            assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_the_picture_of_a_call_names_functions_of_its_files() -> None:
    """docs/pictures/call-path.svg is what its script draws, and each function is in the file that the picture names."""
    drawn = runpy.run_path(str(ROOT / "docs/pictures/draw_call_path.py"))
    assert (ROOT / "docs/pictures/call-path.svg").read_text() == drawn["draw"]()
    for step in drawn["STEPS"]:
        folder = Path(step.file).parent
        files = {step.file: (ROOT / step.file).read_text()}
        for functions, name, _ in step.calls:
            file = name if "/" in name else str(folder / name)
            files[file] = (ROOT / file).read_text()
            for function in re.findall(r"\w+", functions):
                assert re.search(rf"\b{function}\b", files[file]), (function, file)
        # An arrow of a step leads through the files of its calls.
        for function in re.findall(r"\w+", step.functions):
            assert any(re.search(rf"\b{function}\b", text) for text in files.values()), (function, list(files))


@functools.cache
def words_of_the_sources() -> frozenset[str]:
    """Returns every word in the sources, and in the names of the files of the checkout."""
    listed = [
        path for folder in SOURCE_FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts
    ]
    sources = [path for path in (*(ROOT / name for name in SOURCES), *listed) if path.is_file()]
    names = [
        str(path.relative_to(ROOT)) for path in (*listed, *(ROOT / "docs").rglob("*"), *(ROOT / "reports").rglob("*"))
    ]
    texts = [path.read_text(errors="replace") for path in sources if path != Path(__file__)]
    return frozenset(word for text in (*names, *texts) for word in re.findall(r"\w+", text))


@pytest.mark.parametrize("page", CURRENT_PAGES, ids=[page.name for page in CURRENT_PAGES])
def test_a_name_in_backticks_exists_in_the_sources(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    spans = [re.sub(r"\w*<\w+>\w*", "", span) for span in re.findall(r"`([^`]+)`", text)]  # <name> is a placeholder
    spans = [span for span in spans if not span.startswith("~")]  # a path outside the checkout
    names = {name for span in spans for name in re.findall(r"[A-Za-z_][A-Za-z0-9_]+", span)}
    prefixes = {name for name in names if name.endswith("_")}
    words = words_of_the_sources()
    missing = names - words - {prefix for prefix in prefixes if any(word.startswith(prefix) for word in words)}
    assert not missing, f"{page}: rename or remove these names, which no source contains"


@functools.cache
def anchors_of(page: Path) -> frozenset[str]:
    """Returns the anchors of a page as GitHub makes them from its headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_to_sections_lead_to_a_heading(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text())
    targets = [(page.parent / file if file else page, anchor) for file, anchor in links]
    missing = [f"{target}#{anchor}" for target, anchor in targets if anchor not in anchors_of(target)]
    assert not missing
