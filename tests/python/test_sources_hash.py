"""The hash of the GPU record: edits that require a new run of the GPU tests, and edits that do not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sources() -> ModuleType:
    specification = importlib.util.spec_from_file_location("sources_hash", ROOT / "scripts" / "sources_hash.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


CXX = """// A comment.
#include "a.h"
int f(int a) {
  return a / 2;  // half
}
"""
SAME_CXX = [
    CXX.replace("// A comment.", "// Another comment, of\n// two lines."),
    CXX.replace("  // half", " /* a half,\n rounded */"),
    CXX.replace("int f(int a) {", "int f(\n    int a)\n{"),
    CXX.replace("return a / 2;", "return a /\n      2;"),
    CXX.replace("return a / 2;", "return a \\\n / 2;"),
]
OTHER_CXX = [
    CXX.replace("2;", "3;"),
    CXX.replace("return a / 2", "return a // 2\n"),
    CXX.replace('"a.h"', '"b.h"'),
    CXX.replace("int f", "intf"),
    CXX.replace("a / 2", "a - -2"),
    CXX.replace('#include "a.h"\n', '#include "a.h" '),
]
LITERALS = [
    ('f("a // b");', 'f("a // c");'),
    ('f("a b");', 'f("a  b");'),
    ('f(R"x(a // b)x");', 'f(R"x(a // c)x");'),
    ("f('\"'); // \"", "f('\\''); // \""),
    ("a - -b;", "a--b;"),
    ('R"(a\\\nb)"', 'R"(ab)"'),
    ('f(u8\'"\', "a // b");', 'f(u8\'"\', "a // c");'),
    ('case\'"\': f("a // b");', 'case\'"\': f("a // c");'),
    ('1\'000; "a // b"', '1\'000; "a // c"'),
    ("#define F (x)", "#define F(x)"),
]
PYTHON = """import a  # why


def f(b: int) -> int:
    if b:
        return g(b, "# no comment")
    return 2
"""
SAME_PYTHON = [
    PYTHON.replace("# why", "# for another reason"),
    PYTHON.replace("int:\n", 'int:\n    """What f does.\n\n    In words.\n    """\n'),
    PYTHON.replace('g(b, "# no comment")', 'g(\n            b,\n            "# no comment",\n        )'),
    PYTHON.replace("import a", '"""What the file has."""\n\nimport a'),
]
OTHER_PYTHON = [
    PYTHON.replace("# no comment", "# a comment"),
    PYTHON.replace("    return 2", "        return 2"),
    PYTHON.replace("2", "3"),
    PYTHON.replace("import a  # why", "import a; x = 1  # why"),
    PYTHON.replace("return 2", 'return """What f does."""'),
]
TUPLES = [("x = (\n    1,\n)", "x = (\n    1\n)"), ("x = y, (\n    1,\n)", "x = y, (\n    1\n)")]


SAME = [("a.cuh", CXX, text) for text in SAME_CXX] + [("a.py", PYTHON, text) for text in SAME_PYTHON]
OTHER = [("a.cuh", CXX, text) for text in OTHER_CXX] + [("a.py", PYTHON, text) for text in OTHER_PYTHON]
OTHER += [("a.h", *texts) for texts in LITERALS] + [("a.py", *texts) for texts in TUPLES]


@pytest.mark.parametrize(("name", "one", "other"), SAME)
def test_comments_docstrings_and_line_breaks_do_not_count(sources: ModuleType, name: str, one: str, other: str) -> None:
    assert one != other
    assert sources.normalised(name, one) == sources.normalised(name, other)


@pytest.mark.parametrize(("name", "one", "other"), OTHER)
def test_tokens_indentation_and_literals_count(sources: ModuleType, name: str, one: str, other: str) -> None:
    assert sources.normalised(name, one) != sources.normalised(name, other)


def test_every_file_of_the_record_keeps_its_tokens_without_its_comments(sources: ModuleType) -> None:
    """A file without comments is normalised to the same text again: nothing is lost on the way."""
    for folder, pattern in (("kernels", "*.cuh"), ("src", "*.cpp"), ("include", "*.h"), ("tests/gpu", "*.py")):
        for file in (ROOT / folder).rglob(pattern):
            if file.suffix == ".py":
                continue
            once = sources.normalised(file.name, file.read_text())
            assert "//" not in once.replace("://", "") or file.name in WITH_SLASHES, file
            assert sources.normalised(file.name, once) == once, file


# They have generated comments, or the sign of a floor division, in literals.
WITH_SLASHES = {
    *("inputs.cpp", "function.cpp", "nvrtc.cpp", "images.cpp"),
    *("lexer.cpp", "parser.cpp", "condition.cpp", "gradients.cpp"),
}


def test_clang_format_keeps_the_hash(sources: ModuleType, tmp_path: Path) -> None:
    """Other line lengths and other places for braces: every break of a line moves, and no token."""
    style = "{BasedOnStyle: LLVM, ColumnLimit: 60, SortIncludes: Never, BreakStringLiterals: false}"
    for name in ("kernels/hopper/backward.cuh", "src/gpu/plan.cpp", "include/gdpa/mask.h"):
        formatted = subprocess.run(
            ["clang-format-14", f"--style={style}", str(ROOT / name)], check=True, capture_output=True, text=True
        ).stdout
        assert formatted != (ROOT / name).read_text()
        assert sources.normalised(name, formatted) == sources.normalised(name, (ROOT / name).read_text()), name


def test_the_command_prints_the_hash_of_its_groups() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "sources_hash.py")]
    hashes = [
        subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout.strip()
        for arguments in (["library"], ["library|tests"], ["library", "tests/gpu/conftest.py"])
    ]
    assert all(len(one) == 64 for one in hashes) and len(set(hashes)) == 3
