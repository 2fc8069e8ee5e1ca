"""The record reports/gpu.json: the runs of each part, and which parts cover the current sources."""

from __future__ import annotations

import datetime
import json
import subprocess
import threading
from typing import Any

from gpu_record import RECORD, ROOT
from gpu_record.coverage import hash_of
from gpu_record.parts import LEAST_PROBLEMS, PARTS

Runs = list[dict[str, Any]]
_writing = threading.Lock()


def recorded() -> dict[str, dict[str, Any]]:
    """Returns the parts of the record. A part has the hash of its sources, the number of its tests, and its runs."""
    return json.loads(RECORD.read_text())["parts"] if RECORD.is_file() else {}


def is_covered(name: str) -> bool:
    return recorded().get(name, {}).get("sources") == hash_of(PARTS[name])


def runs_of(name: str) -> Runs:
    """Returns the runs of a part with the current sources."""
    return recorded()[name]["runs"] if is_covered(name) else []


def missing() -> list[str]:
    return [name for name in PARTS if not is_covered(name)]


def covered_tests(name: str) -> set[str]:
    return {test for run in runs_of(name) for test in run["tests"]}


def add(name: str, number_of_tests: int, run: dict[str, Any]) -> None:
    """Adds a run. The runs of other sources of this part are removed."""
    with _writing:
        runs = [*runs_of(name), run]
        known = {other: part for other, part in recorded().items() if other in PARTS}
        known[name] = {"sources": hash_of(PARTS[name]), "of": number_of_tests, "runs": runs}
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(text_of(known))


def text_of(parts: dict[str, dict[str, Any]]) -> str:
    """Returns the text of the record, with one line for each part, so that a diff shows which parts ran."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(parts[name], sort_keys=True)}" for name in sorted(parts))
    return f'{{\n "parts": {{\n{lines}\n }}\n}}\n'


def problems() -> int:
    """Returns the number of problems in all runs without compute-sanitizer."""
    return sum(run["problems"] for name, part in PARTS.items() if not part.sanitizer for run in runs_of(name))


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def age_of(date: str) -> str:
    """Returns the age of a run in days, and in commits if git knows them: "2026-11-28, 3 days and 7 commits ago"."""
    day = datetime.date.fromisoformat(date[:10])
    days = (datetime.datetime.now(datetime.timezone.utc).date() - day).days
    command = ["git", "rev-list", "--count", f"--since={date if len(date) > 10 else f'{date}T23:59:59Z'}", "HEAD"]
    try:
        commits = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"{day}, {counted(days, 'day')} ago"
    return f"{day}, {counted(days, 'day')} and {counted(int(commits), 'commit')} ago"


def warnings() -> list[str]:
    """Returns a warning for each part that needs several GPUs and was recorded for older sources."""
    return [
        f"{name}, which needs {PARTS[name].gpus} GPUs, was recorded for older sources on "
        f"{age_of(recorded()[name]['runs'][-1]['date'])}"
        for name in missing()
        if PARTS[name].gpus > 1 and name in recorded()
    ]


def why_incomplete() -> str:
    """Returns why the record does not cover the current sources, or an empty text."""
    due = [name for name in missing() if PARTS[name].gpus == 1 or name not in recorded()]
    if due:
        return (
            f"{RECORD.relative_to(ROOT)} does not cover the current sources: {', '.join(due)}; "
            "run make gpu-test on a machine with a GPU and commit the record"
        )
    if problems() < LEAST_PROBLEMS:
        return (
            f"expected at least {LEAST_PROBLEMS} random problems in all runs, got {problems()}; run make gpu-test "
            "OPTIONS=--again, which draws other tests"
        )
    return ""


def union(name: str) -> str:
    """Returns the tests of all runs of a part: "41 of 90 in 2 runs, seeds 17, 23"."""
    runs = recorded()[name]["runs"]
    tests = {test for run in runs for test in run["tests"]}
    seeds = ", ".join(dict.fromkeys(str(run["seed"]) for run in runs))
    seed = "seed" if len(runs) == 1 else "seeds"
    return f"{len(tests)} of {recorded()[name]['of']} in {counted(len(runs), 'run')}, {seed} {seeds}"


def table() -> str:
    """Returns the parts, each with its machine, because several machines may have recorded parts."""
    rows = [("part", "state", "tests", "problems", "seconds", "date", "device", "driver", "NVRTC", "torch")]
    known, due = recorded(), missing()
    for name in PARTS:
        if name not in known:
            rows.append((name, "missing", *[""] * 8))
            continue
        runs = known[name]["runs"]
        last = runs[-1]
        total = [str(sum(run[fact] for run in runs)) for fact in ("problems", "seconds")]
        facts = [str(last.get(fact, "")) for fact in ("device", "driver", "nvrtc", "torch")]
        rows.append((name, "older" if name in due else "covered", union(name), *total, last["date"][:10], *facts))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)
