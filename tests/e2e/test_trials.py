"""What users tried, as pages: each command prints what its page shows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import weather
from tests.pages import perform, shell_in

TRIALS = Path(__file__).parent / "trials"
PROGRAMS = {"orchgpu": "orchgpu", "ssgm": "gpu_scheduler.client"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("trial", ["sequences", "models"])
def test_every_command_of_a_trial_does_what_it_shows(trial: str, tmp_path: Path) -> None:
    if weather.chosen():
        pytest.skip("the pages show attempts and news of a calm cloud; test_tutorial has weather")
    with shell_in(tmp_path, PROGRAMS) as shell:
        python = tmp_path / "bin" / "python"  # the one that has orchgpu
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        perform(TRIALS / f"{trial}.md", shell, tmp_path)
