"""Shows the progress and the remaining time of a run: one changing line on a terminal, otherwise a line per case."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field


def in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@dataclass
class Progress:
    cases: int
    begin: float = field(default_factory=time.monotonic)
    case: int = 0
    reported: int = 0
    end_of_first: float = 0.0

    def __call__(self, done: float, text: str) -> None:
        """Shows a step. `done` is the finished part of the current case. The remaining time is extrapolated.

        The first case is not part of the extrapolation after a second case, because some systems compile only once.
        """
        begin, first = (self.end_of_first, 1) if self.case > 1 else (self.begin, 0)
        total = self.case + done
        pace = (time.monotonic() - begin) / (total - first) if total > first else 0.0
        left = f", about {in_words(pace * (self.cases - total))} left" if total > first else ""
        position = f"case {self.case + 1}/{self.cases}"
        if sys.stderr.isatty():
            print(f"\r\033[K{position}, {text}{left}", end="", file=sys.stderr, flush=True)
        elif self.case == self.reported:
            self.reported += 1
            print(f"{position}{left}", file=sys.stderr, flush=True)

    def finish_case(self) -> None:
        self.case += 1
        if self.case == 1:
            self.end_of_first = time.monotonic()

    def finish(self) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def silent(done: float, text: str) -> None:
    """Shows nothing, such as on all ranks except rank 0."""
