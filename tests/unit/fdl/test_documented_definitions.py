"""The definitions that the manual shows are valid as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.fdl.definitions import errors

ROOT = Path(__file__).resolve().parents[3]
_BLOCK = re.compile(r"^```yaml\n(functions:\n.*?)^```$", re.MULTILINE | re.DOTALL)
DEFINITIONS = [
    pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}")
    for page in sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])
    for number, text in enumerate(_BLOCK.findall(page.read_text()), 1)
]


@pytest.mark.parametrize("text", DEFINITIONS)
def test_a_documented_definition_is_valid(text: str) -> None:
    assert errors(text) == []
