"""Pages executed line by line: docs/start/tutorial.md, and what users tried (trials/).

Each command prints what its page shows.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests import weather
from tests.pages import ROOT, Command, pattern, perform, shell_in
from tests.warm_commands import command


def test_what_is_shown_leaves_open_only_what_differs() -> None:
    shown = pattern(("a", "…", "b … c", "…"))
    assert shown.fullmatch("a\nx\ny\nb 1 c\n")
    assert shown.fullmatch("a  \nb 1 c\nz\n")
    assert not shown.fullmatch("a\nb 1 d\n")
    assert not shown.fullmatch("z\na\nb 1 c\n")


def until_rules_are_in_force(home: Path) -> None:
    """Wait until the cloud's notification rules take effect, which takes minutes on AWS."""
    url = json.loads((home / "system.json").read_text())["endpoint"] + "/_local_cloud/weather"
    deadline_s = time.monotonic() + 60
    while True:
        with urllib.request.urlopen(url, timeout=10) as answer:
            if not json.load(answer)["late_rules"]:
                return
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.mark.timeout(600)
def test_every_command_of_the_tutorial_does_what_it_shows(tmp_path: Path) -> None:
    def compared(step: Command, told: str) -> tuple[str, tuple[str, ...]]:
        """In weather `doctor` shows it, and attempts that did not start are not counted."""
        if not weather.chosen():
            return told, step.shown
        if step.command.startswith("orchgpu deploy"):
            # nothing repeats the lost events of a function without a queue
            until_rules_are_in_force(tmp_path / "work" / ".orchgpu")
        lines = told.splitlines(keepends=True)
        shown = tuple(line.replace("attempt 1 (", "attempt … (") for line in step.shown)
        return "".join(x for x in lines if not x.startswith("ok      weather:")), shown

    # what runs here needs no profile
    variables = {"AWS_PROFILE": "no-such-profile", **weather.environment()}
    with shell_in(tmp_path, {"orchgpu": command("orchgpu")}, **variables) as shell:
        perform(ROOT / "docs" / "start/tutorial.md", shell, tmp_path, compared)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("trial", ["sequences", "models"])
def test_every_command_of_a_trial_does_what_it_shows(trial: str, tmp_path: Path) -> None:
    if weather.chosen():
        pytest.skip("the pages show attempts and news of a calm cloud; the tutorial has weather")
    programs = {"orchgpu": command("orchgpu"), "ssgm": command("gpu_scheduler.client")}
    with shell_in(tmp_path, programs) as shell:
        python = tmp_path / "bin" / "python"  # the one that has orchgpu
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        perform(Path(__file__).parent / "trials" / f"{trial}.md", shell, tmp_path)
