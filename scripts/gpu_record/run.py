"""Runs parts: lists their tests, draws a sample, divides it among processes, and records each part that passes."""

from __future__ import annotations

import collections
import datetime
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gpu_record import CACHE, ROOT, machine, record, sample
from gpu_record.compiled import headers_since, undeclared
from gpu_record.parts import PARTS, Part
from gpu_record.sample import Test


def settings_of(part: Part, function_seed: int) -> dict[str, str]:
    """Returns the environment variables of all processes of a part."""
    settings = {
        "GDPA_GPU_PROBLEMS": str(part.problems),
        "GDPA_DRAWN_FUNCTIONS": str(part.functions),
        "GDPA_DRAWN_SCORES": str(part.scores),
        "GDPA_FUNCTION_SEED": str(function_seed),
        # Several parts use the same kernels. With the default limit, the cache removed them before their next use.
        # Another program with this folder and the default limit would remove them too.
        "GDPA_CACHE_DIR": str(CACHE / part.kernels),
        "GDPA_CACHE_LIMIT": str(1 << 35),
    }
    if part.shared_kilobytes:
        settings["GDPA_SHARED_KILOBYTES"] = str(part.shared_kilobytes)
    if part.calls:
        settings["GDPA_STRESS_LAUNCHES"] = str(part.calls)
    return settings


def tests_of(part: Part, function_seed: int) -> list[Test]:
    """Returns the tests from which a run draws."""
    settings = settings_of(part, function_seed)
    if part.is_python:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", part.program]
        tests = sample.tests_of_pytest(machine.output_of(command, settings))
    else:
        filters = [f"--gtest_filter={part.tests}"] if part.tests else []
        tests = sample.tests_of_gtest(machine.output_of([part.program, "--gtest_list_tests", *filters], settings))
    tests = [test for test in tests if part.wide is None or test.is_wide == part.wide]
    return tests or sys.exit(f"gpu-record: expected tests in {part.program}, found none that the part selects")


def command_of(part: Part, tests: list[Test], report: Path) -> list[str]:
    """Returns the command that runs these tests and writes a report in XML."""
    if part.is_python:
        # Some tests have a kernel cache in tmp_path. It is in the folder of the kernels, as evidence of their headers.
        temporary = f"--basetemp={CACHE / part.kernels / f'{report.parent.name}-{report.stem}'}"
        options = ["-q", "--tb=short", temporary, f"--junitxml={report}"]
        return [sys.executable, "-m", "pytest", *options, *(test.name for test in tests)]
    names = ":".join(test.name for test in tests)
    command = [machine.path_of(part.program), "--gtest_brief=1", f"--gtest_filter={names}"]
    tool = ["compute-sanitizer", "--error-exitcode=9", f"--tool={part.sanitizer}"] if part.sanitizer else []
    return [*tool, *command, f"--gtest_output=xml:{report}"]


@dataclass
class PartRun:
    """A part in a run, with the tests that were drawn, and what its processes have done."""

    name: str
    all_tests: list[Test]
    drawn: list[Test]
    function_seed: int
    seed: int
    folder: Path  # of the reports and the logs of its processes
    gpu: str  # the GPU that its processes see, unless the part sees all of them
    began: float = 0.0  # the first start of a process
    ended: float = 0.0
    left: int = 0  # the number of processes that have not ended
    failed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def part(self) -> Part:
        return PARTS[self.name]

    def shares(self) -> list[list[Test]]:
        """Divides the tests among the processes."""
        number = min(self.part.processes, len(self.drawn))
        return [self.drawn[first::number] for first in range(number)]


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and all processes that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Run:
    """The processes of all parts, as many at the same time as there are processors."""

    def __init__(self, limit: float, jobs: int) -> None:
        self.limit = limit
        self.jobs = jobs
        self.began = time.time()
        self.given_up = threading.Event()  # the run is interrupted
        self.done = 0
        self.processes = 0
        self.output = threading.Lock()

    def say(self, text: str) -> None:
        with self.output:
            print(f"[{self.done:3}/{self.processes} {time.time() - self.began:4.0f} s] {text}", flush=True)

    def why_failed(self, run: PartRun, number: int, tests: list[Test]) -> str:
        """Runs a process to its end. Returns why it failed, or an empty text."""
        report = run.folder / f"{number}.xml"
        settings = {**os.environ, **settings_of(run.part, run.function_seed)}
        settings["COLUMNS"] = "240"  # pytest cuts the error of each failed test to this width
        if run.part.gpus == 1:
            # The contexts of all processes may need more memory than one GPU has.
            settings["CUDA_VISIBLE_DEVICES"] = run.gpu
        log_file = run.folder / f"{number}.log"
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                command_of(run.part, tests, report),
                cwd=ROOT,
                env=settings,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            end = time.monotonic() + self.limit
            try:
                while process.poll() is None:
                    if self.given_up.wait(0.1):
                        return "the run was interrupted"
                    if run.failed:
                        return "another process of the part failed"
                    if time.monotonic() > end:
                        return (
                            f"expected the process to end within {self.limit:g} s, stopped it; a kernel may hang, or "
                            f"--limit is too low; its tests: {', '.join(test.name for test in tests)}"
                        )
            finally:
                stop(process)
        return log_file.read_text(errors="replace")[-8000:] + "\nfailed" if process.returncode != 0 else ""

    def run_process(self, run: PartRun, number: int, tests: list[Test]) -> None:
        """Runs a process. The last process of a part records the part."""
        if self.given_up.is_set():
            return
        with run.lock:
            run.began = run.began or time.time()
        reason = "" if run.failed else self.why_failed(run, number, tests)
        with run.lock:
            run.left -= 1
            is_last = run.left == 0
            is_first_failure = bool(reason) and not run.failed
            run.failed = run.failed or bool(reason)
        with self.output:
            self.done += 1
        if self.given_up.is_set():
            return
        if is_first_failure:
            self.say(
                f"{run.name}: {reason}\ngpu-record: {run.name} failed; the part is not recorded. "
                f"GDPA_FUNCTION_SEED={run.function_seed} and --seed {run.seed} repeat its tests"
            )
        elif not is_last:
            self.say(f"{run.name}: {run.left} of {len(run.shares())} processes left")
        if is_last and not run.failed:
            run.ended = time.time()
            reason = self.why_not_recorded(run)
            run.failed = bool(reason)
            if reason:
                self.say(f"gpu-record: {run.name}: {reason}; the part is not recorded")

    def why_not_recorded(self, run: PartRun) -> str:
        """Records a part after all of its processes have passed.

        Returns an empty text if the part was recorded, otherwise the reason why not.
        """
        part = run.part
        trees = [ElementTree.parse(report).getroot() for report in sorted(run.folder.glob("*.xml"))]
        cases = [case for tree in trees for case in tree.iter("testcase")]
        skipped = {
            f"{case.get('classname')}.{case.get('name')}": skip.get("message", "")
            for case in cases
            for skip in case.iter("skipped")
        }
        if len(cases) != len(run.drawn):
            return f"expected {len(run.drawn)} tests, ran {len(cases)}"
        if len(skipped) == len(cases):
            return f"ran no test; {next(iter(skipped.values()), '')}"
        # The counters of the tests: the number of problems, and the number of problems with each option.
        counts: collections.Counter[str] = collections.Counter()
        for counted in (counted for case in cases for counted in case.iter("property")):
            counts[counted.attrib["name"]] += int(counted.attrib["value"])
        if part.needs and not counts[f"kernel {part.needs}"]:
            family = part.needs.partition(":")[0]
            return (
                f"expected at least one kernel {part.needs}, got none; run the part on a {family.capitalize()} GPU, "
                "without GDPA_SHARED_KILOBYTES"
            )
        headers = headers_since(CACHE / part.kernels, self.began)
        if not headers:
            return f"expected kernels in {CACHE / part.kernels}, got none, so their sources are unknown"
        if others := undeclared(headers, part.kernels):
            return (
                f"expected kernels that include headers of KERNELS[{part.kernels!r}] only, got kernels that include "
                f"{', '.join(others)}; correct scripts/gpu_record/parts.py"
            )
        problems = counts.pop("problems", 0)
        names = sorted(test.name for test in run.drawn)
        seconds = round(run.ended - run.began)
        entry = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "seed": run.seed,
            "function_seed": run.function_seed,
            "tests": names,
            "skipped": skipped,
            "problems": problems,
            "counts": dict(counts),
            "headers": dict(headers),
            "seconds": seconds,
            **machine.facts(),
        }
        record.add(run.name, len(run.all_tests), entry)
        self.say(f"{run.name}: recorded {len(names)} tests, {problems} problems, {len(skipped)} skipped, {seconds} s")
        return ""

    def run(self, names: list[str], seed: int, function_seed: int) -> list[str]:
        """Runs these parts. Returns the parts that failed."""
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max(1, self.jobs)) as pool:
            listed = list(pool.map(lambda name: tests_of(PARTS[name], function_seed), names))
            runs = []
            for index, (name, tests) in enumerate(zip(names, listed, strict=True)):
                drawn = sample.draw(tests, PARTS[name].share, seed, record.covered_tests(name))
                (CACHE / PARTS[name].kernels).mkdir(parents=True, exist_ok=True)
                (Path(folder) / name).mkdir()
                gpu = machine.gpus()[index % len(machine.gpus())]
                runs.append(PartRun(name, tests, drawn, function_seed, seed, Path(folder) / name, gpu))
            processes = [(run, number, tests) for run in runs for number, tests in enumerate(run.shares())]
            for run in runs:
                run.left = len(run.shares())
            self.processes = len(processes)
            tests = sum(len(run.drawn) for run in runs)
            self.say(f"{tests} tests of {len(runs)} parts, {self.jobs} processes at a time, seed {seed}")
            waiting = [pool.submit(self.run_process, *process) for process in processes]
            try:
                for one in waiting:
                    one.result()
            except BaseException:  # processes have their own sessions and do not receive an interrupt
                self.given_up.set()
                pool.shutdown(cancel_futures=True)
                raise
            return [run.name for run in runs if run.failed]
