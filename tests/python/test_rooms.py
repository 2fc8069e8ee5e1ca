"""scripts/check-rooms, which `make lint` runs, on this checkout and on small ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = """
[rooms]
hopper = ["kernels/hopper/*", "src/families/hopper/*"]
[words]
'hopper::' = ["hopper"]
stages = ["hopper", "src/plan.cpp"]
"""


def check(folder: Path) -> tuple[int, list[str]]:
    command = [sys.executable, ROOT / "scripts" / "check-rooms", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    files = {
        "kernels/hopper/forward.cuh": "int stages;",
        "src/families/hopper/plan.cpp": "hopper::Tile tile;",
        "src/plan.cpp": "int stages, more_stages;\n",
        "src/launch.cpp": "int more_stages;\n",
        "scripts/rooms.toml": TABLE,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


def test_every_word_of_this_checkout_stands_in_its_rooms() -> None:
    assert check(ROOT) == (0, [])


def test_a_word_may_stand_in_its_rooms(checkout: Path) -> None:
    assert check(checkout) == (0, [])


def test_a_word_outside_of_its_rooms_is_reported_with_its_line_and_the_rooms(checkout: Path) -> None:
    (checkout / "src" / "launch.cpp").write_text("int more_stages;\nint stages = hopper::stages;\n")
    status, lines = check(checkout)
    assert status == 1
    rooms = "kernels/hopper/*, src/families/hopper/*"
    assert lines[:2] == [
        f"src/launch.cpp:2: hopper:: may stand in {rooms} only",
        f"src/launch.cpp:2: stages may stand in {rooms}, src/plan.cpp only",
    ]
    assert lines[2:] == ["check-rooms: use the name where it belongs, or add the file in scripts/rooms.toml"]


def test_a_room_without_files_is_reported(checkout: Path) -> None:
    (checkout / "src" / "plan.cpp").unlink()
    status, lines = check(checkout)
    assert status == 1
    assert "scripts/rooms.toml: src/plan.cpp, a room of stages, matches no file; correct the pattern" in lines
