"""The report of a run: one JSON document, the tables in Markdown, and the picture, under one name."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from gdpa.bench.figures import COLUMNS, Figure
from gdpa.bench.measure import Result
from gdpa.bench.plot import case_of, draw, name
from gdpa.bench.rows import Row, has_cublas, lengths, not_run, share


@dataclass(frozen=True)
class Report:
    subject: str  # of the run: the suite's name, "figures", or "shapes"
    device: str
    torch: str
    commit: str
    method: str  # how long was measured, in a sentence
    result: Result
    figures: list[Figure]

    @property
    def title(self) -> str:
        return f"{self.subject}: {self.device}, PyTorch {self.torch}, gdpa {self.commit}"

    def write(self, folder: Path) -> list[Path]:
        """SUBJECT-DEVICE.json, .md and, where there are rows, .png."""
        folder.mkdir(parents=True, exist_ok=True)
        device = re.sub("[^a-z0-9]+", "-", self.device.lower().removeprefix("nvidia ")).strip("-")
        written = {ending: folder / f"{self.subject}-{device}.{ending}" for ending in ("json", "md", "png")}
        written["json"].write_text(self.as_json())
        written["md"].write_text(self.as_markdown(written["png"].name))
        if self.result.rows:
            draw(written["png"], self.title, self.result.rows)
        return [path for ending, path in written.items() if ending != "png" or self.result.rows]

    def as_json(self) -> str:
        document = {
            "subject": self.subject,
            "device": self.device,
            "torch": self.torch,
            "commit": self.commit,
            "method": self.method,
            "figures": [asdict(figure) | {"reached": figure.reached} for figure in self.figures],
            "not_run": [asdict(refused) for refused in dict.fromkeys(self.result.refusals)],
        }
        rows = ",\n".join("  " + json.dumps(asdict(row)) for row in self.result.rows)
        return json.dumps(document, indent=1).removesuffix("\n}") + f',\n "rows": [\n{rows}\n ]\n}}\n'

    def as_markdown(self, picture: str) -> str:
        parts = [f"# {self.title}", self.method]
        if self.figures:
            parts.append(markdown_table(COLUMNS, [figure.cells() for figure in self.figures]))
        for direction, heading in (("fwd", "Forward"), ("bwd", "Backward")):
            rows = [row for row in self.result.rows if row.direction == direction]
            if rows:
                unit = "TFLOP/s (share of cuBLAS)" if has_cublas(rows) else "GFLOP/s"
                parts += [f"## {heading}, {unit}", rate_table(rows)]
        if self.result.rows:
            parts.append(f"![rates of every system on every shape]({picture})")
        refused = not_run(self.result.refusals)
        if refused:
            parts += ["## Not run", "\n".join(f"- {line}" for line in refused)]
        return "\n\n".join(parts) + "\n"


def rate_table(rows: list[Row]) -> str:
    """One line a case, one column a system."""
    factor = 1.0 if has_cublas(rows) else 1e3
    series = list(dict.fromkeys(name(row) for row in rows))
    by_case: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        by_case.setdefault(case_of(row), []).append(row)
    lines = []
    for case in by_case.values():
        rates = {name(row): in_words(row.tflops * factor, share(row.tflops, row.cublas_tflops)) for row in case}
        first = case[0]
        shape = (first.dtype, first.mask, str(first.B), str(first.d), *lengths(first), f"{first.fill:.2f}")
        bounds = (f"{rate * factor:.0f}" if rate else "" for rate in (first.cublas_tflops, first.floor_tflops))
        lines.append((*shape, *bounds, *(rates.get(one, "") for one in series)))
    columns = ("dtype", "mask", "B", "d", "q", "kv", "fill", "cuBLAS", "floor", *series)
    return markdown_table(columns, lines)


def in_words(rate: float, of_cublas: str) -> str:
    return f"{rate:.1f}" + (f" ({of_cublas})" if of_cublas else "")


def markdown_table(columns: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, ("---",) * len(columns), *lines))
