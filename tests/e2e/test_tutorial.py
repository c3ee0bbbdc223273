"""docs/tutorial.md, executed line by line: each command prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import ROOT, pattern, perform, shell_in


def test_what_is_shown_leaves_open_only_what_differs() -> None:
    shown = pattern(("a", "…", "b … c", "…"))
    assert shown.fullmatch("a\nx\ny\nb 1 c\n")
    assert shown.fullmatch("a  \nb 1 c\nz\n")
    assert not shown.fullmatch("a\nb 1 d\n")
    assert not shown.fullmatch("z\na\nb 1 c\n")


@pytest.mark.timeout(600)
def test_every_command_of_the_tutorial_does_what_it_shows(tmp_path: Path) -> None:
    # what runs here needs no profile
    with shell_in(tmp_path, {"orchgpu": "orchgpu"}, AWS_PROFILE="no-such-profile") as shell:
        perform(ROOT / "docs" / "tutorial.md", shell, tmp_path)
