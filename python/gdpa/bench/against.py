"""`--against FOLDER` times this build and the build in FOLDER/gdpa on the same cases.

Each build runs in a separate process, because one process cannot load two builds. The processes alternate, so that both
run at the same clock and temperature of the GPU. Without alternation the error would be several percent. A row has the
median of the ratios of the rounds. At the limit of power, single rounds are up to 20 % slower than the others, with
every build. A row therefore also has the ratio of the fastest rounds.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import gdpa
from gdpa.bench.cases import Case
from gdpa.bench.measure import Effort
from gdpa.bench.progress import Progress
from gdpa.bench.report import Refused, Table

WORKER = Path(__file__).with_name("against_worker.py")
AfterRow = Callable[[Sequence[Any]], None]


@dataclass(frozen=True)
class Comparison:
    """One case in one direction: the median milliseconds of each build, and the speed-up of this build."""

    direction: str
    device: str
    shape: str | None
    dtype: str
    activation: str
    mask: str
    d: int
    other_ms: float
    ms: float
    speed_up: float  # the median over the rounds of the other time divided by this time
    rounds: list[float]  # the ratio of each round
    fastest: float  # the other time of its fastest round divided by this time of its fastest round


def table(folder: Path, rows: Sequence[Comparison]) -> Table:
    columns: dict[str, Callable[[Comparison], str]] = {
        "": lambda row: row.direction,
        "shape": lambda row: row.shape or "",
        "dtype": lambda row: row.dtype,
        "f": lambda row: row.activation,
        "mask": lambda row: row.mask,
        "d": lambda row: str(row.d),
        "other ms": lambda row: f"{row.other_ms:.3f}",
        "this ms": lambda row: f"{row.ms:.3f}",
        "speed-up": lambda row: f"{row.speed_up:.3f}",
        "fastest rounds": lambda row: f"{row.fastest:.3f}",
        "of each round": lambda row: " ".join(f"{ratio:.3f}" for ratio in row.rounds),
    }
    return Table.of(f"against {folder}", columns, rows, texts=5)


class Build:
    """A process that times one build of gdpa."""

    def __init__(self, folder: Path, device: str) -> None:
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), device],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        loaded = Path(self._answer()["gdpa"])
        if folder.resolve() not in loaded.resolve().parents:
            self.close()
            raise ValueError(f"--against: expected the package gdpa in {folder}, got {loaded}; name its parent folder")

    def ask(self, **question: Any) -> dict[str, Any]:
        """Raises RuntimeError with the message of the build if the build cannot run the request."""
        assert self._process.stdin is not None
        pickle.dump(question, self._process.stdin)
        self._process.stdin.flush()
        answer = self._answer()
        if "refused" in answer:
            raise RuntimeError(answer["refused"])
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            answer: dict[str, Any] = pickle.load(self._process.stdout)
        except EOFError:
            status = self._process.wait()
            raise OSError(f"--against: a timing process ended with status {status}; its error is above") from None
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def compare_case(case: Case, direction: str, builds: Sequence[Build], effort: Effort, device: str) -> Comparison:
    """Measures one case. `builds` are the other build and this build. Their order changes from round to round."""
    for build in builds:
        build.ask(prepare=case)
    times: list[list[float]] = [[], []]
    for round_index in range(effort.rounds):
        for index in (0, 1) if round_index % 2 == 0 else (1, 0):
            answer = builds[index].ask(time=direction, seconds=effort.seconds / effort.rounds)
            times[index].append(median(answer["times"]))
    ratios = [other / this for other, this in zip(*times, strict=True)]
    return Comparison(
        direction, device, case.name, case.dtype, case.activation, case.mask, case.head_dim,
        median(times[0]) * 1e3, median(times[1]) * 1e3, median(ratios), ratios, min(times[0]) / min(times[1]),
    )  # fmt: skip


def compare(
    work: Sequence[tuple[Case, str]], folder: Path, device: str, described: str, effort: Effort, after_row: AfterRow
) -> tuple[list[Comparison], list[Refused]]:
    """Measures every case in its direction. Returns the rows and the refused cases.

    Calls `after_row` with the rows so far after every case, because a run may be interrupted.
    """
    rows: list[Comparison] = []
    refusals: list[Refused] = []
    progress = Progress(len(work))
    builds: list[Build] = []
    try:
        builds += [Build(folder, device)]
        builds += [Build(Path(gdpa.__file__).parents[1], device)]
        for case, direction in work:
            progress(0.0, f"{case.name or 'case'} {case.activation} {direction}")
            try:
                rows.append(compare_case(case, direction, builds, effort, described))
            except RuntimeError as refused:
                refusals.append(Refused("gdpa", direction, str(refused), case.name))
            after_row(rows)
            progress.finish_case()
    finally:
        for build in builds:
            build.close()
    progress.finish()
    return rows, refusals
