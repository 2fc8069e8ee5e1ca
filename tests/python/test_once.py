"""scripts/once: it runs a command again after a change of its input files, and after no other change."""

import subprocess
from pathlib import Path

ONCE = Path(__file__).resolve().parents[2] / "scripts" / "once"


def runs(folder: Path, *inputs: str) -> int:
    """Calls `once` with a command that counts its runs. Returns the number of runs so far."""
    subprocess.run([ONCE, "stamp", *inputs, "--", "bash", "-c", "echo run >> runs"], cwd=folder, check=True)
    return (folder / "runs").read_text().count("run")


def test_a_changed_input_runs_the_command_again(tmp_path: Path) -> None:
    file = tmp_path / "inputs" / "file"
    file.parent.mkdir()
    file.write_text("first")
    assert runs(tmp_path, "inputs") == 1
    file.touch()
    assert runs(tmp_path, "inputs") == 1, "the contents are the same"
    file.write_text("second")
    assert runs(tmp_path, "inputs") == 2


def test_a_command_without_inputs_depends_on_no_file(tmp_path: Path) -> None:
    assert runs(tmp_path) == 1
    (tmp_path / "another").write_text("file")
    assert runs(tmp_path) == 1


def test_a_failed_command_runs_again(tmp_path: Path) -> None:
    for _ in range(2):
        assert subprocess.run([ONCE, "stamp", "--", "false"], cwd=tmp_path, check=False).returncode != 0
    assert runs(tmp_path) == 1
