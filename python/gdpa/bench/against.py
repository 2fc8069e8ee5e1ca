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
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import gdpa
from gdpa.bench.cases import Case
from gdpa.bench.device import Device
from gdpa.bench.measure import Effort, Plan, Progress, Result, row_of
from gdpa.bench.plot import Bar, Group, Panel
from gdpa.bench.report import Refused, Report, Row, Table, grouped, heading

SUBJECT = "against"  # of its documents
WORKER = Path(__file__).with_name("against_worker.py")


@dataclass(frozen=True, kw_only=True)
class Comparison(Row):
    """One case in one direction: the median milliseconds of each build, and the speed-up of this build."""

    mask: str
    d: int
    other_ms: float
    ms: float
    speed_up: float  # the median over the rounds of the other time divided by this time
    rounds: list[float]  # the ratio of each round
    fastest: float  # the other time of its fastest round divided by this time of its fastest round

    @property
    def place(self) -> tuple[object, ...]:
        return (*super().place, self.dtype, self.mask, self.d)


COLUMNS: dict[str, Callable[[Comparison], str]] = {
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


class AgainstReport(Report):
    row_type = Comparison
    caption = "speed-up of this build over the other build"

    def tables(self) -> list[Table]:
        return [Table.of("Two builds", COLUMNS, self.rows, texts=5)]

    def panels(self) -> list[Panel]:
        def group(row: Comparison) -> Group:
            label = f"{row.shape or row.mask}\n{row.activation}"
            return Group(label, {"speed-up": Bar(row.speed_up, f"{row.speed_up:.2f}")}, {"equal": 1.0})

        return [Panel(way, [group(row) for row in rows]) for way, rows in grouped(self.rows, COLUMNS[""]).items()]


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
        **row_of("gdpa", gdpa.__version__, direction, device, case),
        mask=case.mask,
        d=case.head_dim,
        other_ms=median(times[0]) * 1e3,
        ms=median(times[1]) * 1e3,
        speed_up=median(ratios),
        rounds=ratios,
        fastest=min(times[0]) / min(times[1]),
    )


def plan(suite: str, work: Sequence[tuple[Case, str]], folder: Path, device: Device, effort: Effort) -> Plan:
    """Returns a step for every case in its direction. The processes of the builds begin in the first step."""

    @cache
    def builds() -> list[Build]:
        return [Build(one, str(device.torch_device)) for one in (folder, Path(gdpa.__file__).parents[1])]

    def step(case: Case, direction: str, progress: Progress) -> Result:
        progress(0.0, f"{case.name or 'case'} {case.activation} {direction}")
        try:
            return Result([compare_case(case, direction, builds(), effort, device.describe())])
        except RuntimeError as refused:
            return Result(refusals=[Refused("gdpa", direction, str(refused), case.name)])

    name = f"{device.describe()}, {suite} against {folder}"
    report = AgainstReport(*heading(SUBJECT, name, effort.seconds, effort.rounds))
    return Plan(report, [partial(step, *one) for one in work], 2 * len(work))
