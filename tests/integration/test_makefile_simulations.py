"""The simulations that the Makefile names: each command runs, at one seed.

`make` itself expands the recipe; the programs that it starts only write down their arguments.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchgpu.cli.main import cli

ROOT = Path(__file__).parents[2]
RUNS = "simulator/runs"
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


def at_one_seed(command: list[str], plots: Path | None) -> list[str]:
    """Its arguments, with one seed, one process, and plots in a folder of the test's own."""
    arguments = [*command[1:], "--seeds", "1", "--workers", "1"]
    if "--plots" in arguments:
        at = arguments.index("--plots")
        arguments[at : at + 2] = ["--plots", str(plots)] if plots else []
    return arguments


def run(arguments: list[str], root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, f"orchgpu {' '.join(arguments)}: {done.output}"


def test_every_simulation_of_the_makefile_runs_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own policies and options, on its run file of fewer seconds, without plots."""
    commands = commands_of("experiments", tmp_path)
    assert len(commands) >= 11
    shutil.copytree(ROOT / RUNS, tmp_path / RUNS)
    for file in (tmp_path / RUNS).glob("*.yaml"):
        text = re.sub(r"(?m)^(duration|measure_from): .*", "", file.read_text(encoding="utf-8"))
        file.write_text(f"{text}\nduration: 5\n", encoding="utf-8")
    for command in commands:
        assert command[:2] == ["orchgpu", "simulate"]
        run(at_one_seed(command, None), tmp_path, monkeypatch)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_simulation_of_the_makefile_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in commands_of("experiments", tmp_path):
        run(at_one_seed(command, tmp_path / "plots"), ROOT, monkeypatch)


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
