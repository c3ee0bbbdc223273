"""The page of figures: a benchmark replaces its section, with the notes that it states itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as page
from benchmarks import kaas, report
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


def test_a_commit_whose_pages_alone_differ_is_named_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "ROOT", tmp_path)
    assert report.commit() == ""
    program, written = tmp_path / "program.py", tmp_path / "docs" / "page.md"
    written.parent.mkdir()
    for path in (program, written):
        path.write_text("first\n")
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    for words in (("init", "-q"), ("add", "-A"), (*me, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    head = report.commit()
    assert re.fullmatch("[0-9a-f]{12}", head)
    written.write_text("second\n")
    assert report.commit() == head
    program.write_text("second\n")
    assert report.commit() == f"{head}+"
