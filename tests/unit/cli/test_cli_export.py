"""`orchgpu fdl export`: a machine on standard output, or the reason with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commandline import done
from tests.unit.fdl.test_asl import FILM, is_valid


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "film.yaml"
    made.write_text(FILM)
    return made


@pytest.mark.parametrize("named", [[], ["--workflow", "film"]])
def test_a_workflow_is_printed_as_a_machine(file: Path, named: list[str]) -> None:
    shown = done(["fdl", "export", str(file), "--format", "asl", *named])
    assert shown.exit_code == 0, shown.output
    is_valid(json.loads(shown.stdout))


def test_what_cannot_be_expressed_is_refused_with_its_line(file: Path) -> None:
    file.write_text(FILM.replace("deadline: 10m", "max_cost: 0.5"))
    shown = done(["fdl", "export", str(file), "--format", "asl"])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "film.yaml:9:43: error: workflows.film.max_cost: a state machine" in shown.stderr


def test_an_unknown_workflow_is_named(file: Path) -> None:
    shown = done(["fdl", "export", str(file), "--format", "asl", "--workflow", "films"])
    assert shown.exit_code == 3
    assert "did you mean 'film'" in shown.stderr


def test_a_file_without_workflows_has_nothing_to_export(file: Path) -> None:
    lines = FILM.splitlines(keepends=True)
    file.write_text("".join(lines[:3]))
    shown = done(["fdl", "export", str(file), "--format", "asl"])
    assert (shown.exit_code, "has no workflows" in shown.stderr) == (2, True)
