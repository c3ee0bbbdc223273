"""The release that results name is the one that is installed."""

import tomllib
from pathlib import Path

from contract.provenance import RELEASE

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_the_release_is_that_of_the_project() -> None:
    assert tomllib.loads(PROJECT.read_text())["project"]["version"] == RELEASE
