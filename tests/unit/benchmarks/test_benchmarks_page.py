"""The page of figures: a benchmark replaces its section, with the notes that it states itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as page
from benchmarks import kaas
from benchmarks.hardless.__main__ import NOTE as HARDLESS_NOTE

DOCS = Path(__file__).parents[3] / "docs" / "reference/benchmarks.md"
FIGURE = {"metric": "rate", "value": 2.0, "unit": "1/s", "ratio": 0.5}


def answer(*notes: str) -> dict[str, Any]:
    return {"results": [FIGURE], "skipped": [], "notes": list(notes)}


def test_a_section_is_replaced_whole_and_the_others_stay(tmp_path: Path) -> None:
    output = tmp_path / "page.md"
    for name in ("simulator", "kaas"):
        page._write(output, name, page._section(name, "some day", answer(f"Of {name}.")))
    page._write(output, "kaas", page._section("kaas", "another day", answer("New.")))
    text = output.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["kaas", "simulator"]
    assert "Of kaas." not in text
    assert text.index("At another day.") < text.index("New.") < text.index("## simulator")
    assert "| rate | 2 1/s |  | 0.5 |\n" in text
    assert text.endswith("\nOf simulator.\n")


def test_a_note_has_lines_of_bounded_length() -> None:
    section = page._section("kaas", "some day", answer("word " * 100))
    assert max(map(len, section.splitlines())) <= page.NOTE_WIDTH


@pytest.mark.parametrize(("name", "note"), [("kaas", kaas.NOTE), ("hardless", HARDLESS_NOTE)])
def test_the_note_on_the_page_is_that_of_the_benchmark(name: str, note: str) -> None:
    """Prose below the figures comes with them; what a person writes there would be lost."""
    section = page._sections(DOCS)[name]
    below = section.rpartition("|\n")[2]
    assert " ".join(below.split()) == note


def test_no_section_has_prose_of_its_own() -> None:
    noted = {"kaas", "hardless", "remote_gpu.relays"}
    for name, section in page._sections(DOCS).items():
        below = section.rpartition("|\n")[2].split("\n\n")
        assert name in noted or all("skipped" in one for one in below if one.strip()), name
