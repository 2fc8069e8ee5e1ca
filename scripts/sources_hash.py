#!/usr/bin/env python3
"""Hashes source files by their tokens, so that a changed comment or line break does not change the hash.

    scripts/sources_hash.py GROUPS [FILE ...]    prints the hash of the entries of cmake/gpu_sources.txt in these groups
                                                 ("library|tests"), and of the files

The build writes this hash into the libraries and programs (cmake/built_from.cmake). scripts/gpu-record compares it with
the hash of the checkout. Comments, Python docstrings and white space outside literals do not change the hash. Every
other character does. The rules do not depend on the version of Python, because the build and the tests may run on
different machines.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# The C++ tokens: raw strings, numbers with their digit separators, strings and characters, comments, spliced lines, and
# white space. The token `define` includes the name of the macro and the following white space, because this white space
# distinguishes a macro without parameters from a macro with parameters.
CXX_TOKENS = re.compile(
    r"""(?P<raw>\bu?8?[LU]?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)")"""
    r"""|(?P<number>(?<![\w'])\.?[0-9](?:'?[\w.]|(?<=[eEpP])[+-])*)"""
    r"""|(?P<define>(?<=\#)\s*define\s+\w+[ \t]*)"""
    r"""|(?P<literal>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')"""
    r"""|(?P<comment>//(?:[^\n\\]|\\.)*|/\*.*?\*/)"""
    r"""|(?P<space>(?:\s|\\\r?\n)+)""",
    re.DOTALL,
)
# The Python tokens: strings of every kind, comments, and white space.
PYTHON_TOKENS = re.compile(
    r"""(?P<literal>\b[rRbBfFuU]{0,2}(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''"""
    r"""|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))"""
    r"""|(?P<quoted>\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<comment>\#[^\n]*)"""
    r"""|(?P<space>\s+)""",
    re.DOTALL,
)
# Pairs of adjacent characters that begin an operator of C++ or Python.
OPERATORS = frozenset(
    [
        "++",
        "--",
        "<<",
        ">>",
        "<=",
        ">=",
        "==",
        "!=",
        "&&",
        "||",
        "->",
        "+=",
        "-=",
        "*=",
        "/=",
        "%=",
        "&=",
        "|=",
        "^=",
        "::",
        ".*",
        "**",
        "//",
        "/*",
        "##",
        ":=",
        "@=",
        "~=",
        "..",
    ]
)


def needs_space(before: str, after: str) -> bool:
    """Returns whether two characters would belong to one token without the white space between them."""

    def is_word(character: str) -> bool:
        return character.isalnum() or character == "_"

    return (is_word(before) and is_word(after)) or before + after in OPERATORS


class Normalised:
    """The normalised text, with pending white space before the next token."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._space = False

    @property
    def last(self) -> str:
        return self._parts[-1][-1] if self._parts else "\n"

    def add(self, text: str) -> None:
        if self._space and needs_space(self.last, text[0]):
            self._parts.append(" ")
        self._parts.append(text)
        self._space = False

    def space(self) -> None:
        self._space = True

    def drop_trailing_comma(self) -> None:
        """Removes the comma that a formatter adds after the last element if each element is on a separate line."""
        if self.last == ",":
            self._parts[-1] = self._parts[-1][:-1]
            if not self._parts[-1]:
                del self._parts[-1]

    def end_line(self) -> None:
        self._space = False
        if self.last != "\n":
            self._parts.append("\n")

    def text(self) -> str:
        return "".join(self._parts).strip("\n")


def normalised_cxx(text: str) -> str:
    """Normalises C++. Line breaks count only at the beginning and at the end of a preprocessor directive."""
    result, at, in_directive = Normalised(), 0, False

    def add_code(code: str) -> None:
        nonlocal in_directive
        if not in_directive and code[0] == "#" and (result.last == "\n" or starts_line):
            result.end_line()
            in_directive = True
        result.add(code)

    starts_line = True
    for match in CXX_TOKENS.finditer(text):
        if match.start() > at:
            add_code(text[at : match.start()])
            starts_line = False
        at = match.end()
        if match["raw"] is not None or match["literal"] is not None or match["number"] is not None:
            result.add(match[0])
            starts_line = False
            continue
        if match["define"] is not None:
            result.add(" ".join(match[0].split()) + ("" if match[0][-1].isspace() is False else " "))
            continue
        result.space()
        if match["space"] is not None and "\n" in re.sub(r"\\\r?\n", "", match[0]):
            starts_line = True
            if in_directive:
                result.end_line()
                in_directive = False
    if at < len(text):
        add_code(text[at:])
    return result.text()


def normalised_python(text: str) -> str:
    """Normalises Python. Line breaks and indentation count outside brackets. A string statement is a comment."""
    text = re.sub(r"\\\r?\n", "", text)
    result, at, depth, indentation = Normalised(), 0, 0, ""
    starts_line = True
    # The number of commas in each open bracket. The count of a call or an index starts at 1 and all other counts start
    # at 0. A trailing comma is dropped at a count above 1, so the comma of a tuple with one element remains.
    commas: list[int] = []

    def begin_line() -> None:
        nonlocal starts_line
        if starts_line and depth == 0:
            result.end_line()
            result.add(f"{len(indentation)}>")
        starts_line = False

    for match in PYTHON_TOKENS.finditer(text):
        if match.start() > at:
            code = text[at : match.start()]
            if starts_line and commas and code[0] in ")]}" and commas[-1] > 1:
                result.drop_trailing_comma()
            begin_line()
            for index, character in enumerate(code):
                before = code[index - 1] if index else result.last
                if character in "([{":
                    commas.append(1 if before.isalnum() or before in "_])" else 0)
                elif character in ")]}" and commas:
                    commas.pop()
                elif character == "," and commas:
                    commas[-1] += 1
            result.add(code)
            depth = len(commas)
        at = match.end()
        if match["literal"] is not None or match["quoted"] is not None:
            is_statement = starts_line and depth == 0 and re.match(r"[ \t]*(#[^\n]*)?(\n|$)", text[at:])
            if not is_statement:
                begin_line()
                result.add(match[0])
        elif match["space"] is not None:
            result.space()
            if "\n" in match[0]:
                starts_line = True
                indentation = match[0].rpartition("\n")[2]
    if at < len(text):
        begin_line()
        result.add(text[at:])
    return result.text()


def normalised(name: str, text: str) -> str:
    if name.endswith(".py"):
        return normalised_python(text)
    return normalised_cxx(text) if name.endswith((".h", ".cpp", ".cuh", ".in", ".inc")) else text


def listed_files(groups: str, root: Path = ROOT, files: Iterable[str] = ()) -> list[str]:
    """Returns `files` and the files of the entries of cmake/gpu_sources.txt in `groups`, such as "library|tests"."""
    listed = re.findall(rf"^(?:{groups}) (.+)$", (root / "cmake" / "gpu_sources.txt").read_text(), re.MULTILINE)
    paths = [root / entry for entry in (*listed, *files)]
    covered = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
    return sorted({file.relative_to(root).as_posix() for file in covered if not file.is_dir()})


@functools.cache
def digest_of(name: str, text: str) -> str:
    return hashlib.sha256(normalised(name, text).encode()).hexdigest()


def hash_of_files(names: list[str], root: Path = ROOT) -> str:
    lines = [f"{digest_of(name, (root / name).read_text())}  {name}\n" for name in names]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def sources_hash(groups: str, files: list[str], root: Path = ROOT) -> str:
    """Returns the hash of the files of these groups and of `files`."""
    return hash_of_files(listed_files(groups, root, files), root)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(sources_hash(sys.argv[1], sys.argv[2:]))
