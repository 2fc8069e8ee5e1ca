"""How many examples a property test draws: all, or a quarter in the sample that make test runs."""

import os


def examples(number: int) -> int:
    return number // 4 if os.environ.get("GDPA_SAMPLE") else number
