"""The files of a report: a JSON document, a Markdown page and a picture with the same name."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gdpa.bench.rows import Refused, not_run


@dataclass(frozen=True)
class Document(ABC):
    subject: str  # the subject of the run, a part of the file names
    device: str
    torch: str
    commit: str
    method: str  # a sentence with the duration of the measurement

    caption = "rates of every system on every shape"  # of the picture

    @property
    def title(self) -> str:
        return f"{self.subject}: {self.device}, PyTorch {self.torch}, gdpa {self.commit}"

    @property
    @abstractmethod
    def rows(self) -> Sequence[Any]:
        """The rows, as dataclasses of one type."""

    @property
    @abstractmethod
    def refusals(self) -> list[Refused]: ...

    @abstractmethod
    def tables(self) -> list[str]:
        """Returns the headings and tables of the page, in Markdown."""

    @abstractmethod
    def draw(self, path: Path) -> None:
        """Writes the picture of the rows."""

    @abstractmethod
    def show(self) -> None:
        """Prints the tables and the refused cases."""

    def findings(self) -> dict[str, Any]:
        """Returns the entries of the JSON document in addition to the rows."""
        return {}

    def write(self, folder: Path) -> list[Path]:
        """Writes SUBJECT-DEVICE.json, SUBJECT-DEVICE.md and, if the report has rows, SUBJECT-DEVICE.png."""
        written = {ending: self.path(folder, ending) for ending in ("json", "md", "png")}
        self.write_document(folder)
        written["md"].write_text(self.as_markdown(written["png"].name))
        if self.rows:
            self.draw(written["png"])
        return [path for ending, path in written.items() if ending != "png" or self.rows]

    def write_document(self, folder: Path) -> None:
        """Writes SUBJECT-DEVICE.json, from which --merge reads the parts of a run."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path(folder, "json").write_text(self.as_json())

    def path(self, folder: Path, ending: str) -> Path:
        device = re.sub("[^a-z0-9]+", "-", self.device.lower().removeprefix("nvidia ")).strip("-")
        return folder / f"{self.subject}-{device}.{ending}"

    def as_json(self) -> str:
        document = {
            "subject": self.subject,
            "device": self.device,
            "torch": self.torch,
            "commit": self.commit,
            "method": self.method,
            **self.findings(),
            "not_run": [asdict(refused) for refused in dict.fromkeys(self.refusals)],
        }
        rows = ",\n".join("  " + json.dumps(asdict(row)) for row in self.rows)
        return json.dumps(document, indent=1).removesuffix("\n}") + f',\n "rows": [\n{rows}\n ]\n}}\n'

    def as_markdown(self, picture: str) -> str:
        parts = [f"# {self.title}", self.method, *self.tables()]
        if self.rows:
            parts.append(f"![{self.caption}]({picture})")
        refused = not_run(self.refusals)
        if refused:
            parts += ["## Not run", "\n".join(f"- {line}" for line in refused)]
        return "\n\n".join(parts) + "\n"


def markdown_table(columns: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, ("---",) * len(columns), *lines))
