"""The tests that a run draws from the tests of a part: a seeded sample that contains each subject."""

from __future__ import annotations

import collections
import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass


def words_of(text: str) -> list[str]:
    return re.findall(r"[A-Za-z0-9.]+", text)


@dataclass(frozen=True)
class Test:
    """A test, with the name that selects it, and with words about its parameter."""

    name: str  # Drawn/GpuProblems.AgreeWithTheDefinition/score_3, or tests/gpu/test_fuzz.py::test_one[gelu-64]
    description: str = ""  # bfloat16 192 192 gelu

    @property
    def parameter(self) -> str:
        """The name of the parameter: score_3, gelu-64."""
        if "::" in self.name:
            return self.name.partition("[")[2]
        return self.name.partition(".")[2].partition("/")[2]

    @property
    def words(self) -> list[str]:
        return words_of(f"{self.parameter} {self.description}")

    @property
    def is_wide(self) -> bool:
        """Whether a head dim is above 128, by the numbers of the description, or else of the parameter."""
        words = words_of(self.description or self.parameter)
        return any(word == "wide" or (word.isdigit() and 128 < int(word) <= 256) for word in words)


def tests_of_gtest(listed: str) -> list[Test]:
    """Reads the output of --gtest_list_tests. A comment contains the parameter, which a test may print in words."""
    tests, suite = [], ""
    for line in listed.splitlines():
        name, _, comment = line.partition("  # ")
        if not line.startswith(" "):
            suite = name.split()[0] if name.strip().endswith(".") else ""
        elif suite:
            printed = comment.partition(" = ")[2]
            is_in_words = not (printed.isdigit() or "byte object <" in printed)
            tests.append(Test(suite + name.strip(), printed.strip('"') if is_in_words else ""))
    return tests


def tests_of_pytest(listed: str) -> list[Test]:
    """Reads the output of pytest --collect-only -q."""
    return [Test(line.strip()) for line in listed.splitlines() if re.match(r"\S+\.py::", line)]


def subjects_of(tests: Iterable[Test]) -> dict[Test, set[str]]:
    """Returns the subjects of each test: its name without the parameter, and each word that several tests have."""
    subjects = {}
    for test in tests:
        name = test.name.removesuffix(test.parameter)
        subjects[test] = {name, *(word for word in test.words if not word.isdigit())}
    number = collections.Counter(subject for of_test in subjects.values() for subject in of_test)
    return {
        test: {subject for subject in of_test if number[subject] > 1 or "." in subject}
        for test, of_test in subjects.items()
    }


def draw(tests: list[Test], share: float, seed: int, covered: set[str]) -> list[Test]:
    """Draws a share of the tests. Tests that an earlier run has covered come last, so that the union of runs grows.

    The sample contains each subject at least once, and may therefore be larger than the share. Parts with the same
    tests and the same seed have the same order, so that they use the same kernels.
    """

    def place(test: Test) -> tuple[bool, str]:
        return test.name in covered, hashlib.sha256(f"{seed} {test.name}".encode()).hexdigest()

    order = sorted(tests, key=place)
    subjects = subjects_of(tests)
    drawn, present = [], set[str]()
    for test in order:
        if subjects[test] - present:
            drawn.append(test)
            present |= subjects[test]
    left = [test for test in order if test not in drawn]
    drawn += left[: max(0, math.ceil(share * len(tests)) - len(drawn))]
    return drawn
