"""The simulations and experiments that the Makefile names run.

`make` itself expands the recipe; the programs that it starts only write down their arguments.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")


def commands_of(target: str, folder: Path) -> list[list[str]]:
    """The commands that this target starts, each from the name of its program."""
    written = folder / "commands"
    for program in ("orchgpu", "python"):
        stand_in = folder / program
        stand_in.write_text(f'#!/bin/sh\nprintf "%s\\0" {program} "$@" ";" >> {written}\n')
        stand_in.chmod(0o755)
    make = ["make", "--silent", "--old-file=.venv/.installed", f"BIN={folder}", target]
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    subprocess.run(make, cwd=ROOT, env=environment, check=True, timeout=60)
    commands = written.read_text(encoding="utf-8").split(";\0")[:-1]
    return [command.split("\0")[:-1] for command in commands]


def test_the_papers_are_the_experiments_of_the_makefile(tmp_path: Path) -> None:
    ((program, *arguments),) = commands_of("papers", tmp_path)
    command = [sys.executable, *arguments, "--list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (program, done.returncode) == ("python", 0), done.stderr
    assert "thesis_worked" in done.stdout


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_experiment_of_the_papers_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments", "--quick", "--docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert "not run" not in (tmp_path / "papers.md").read_text().partition("\n## ")[2]


def test_the_simulations_of_faults_run(tmp_path: Path) -> None:
    commands = commands_of("sim", tmp_path)
    assert len(commands) == 2
    for program, *arguments in commands:
        assert program == "python"
        command = [sys.executable, *arguments, "--seeds", "1"]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
