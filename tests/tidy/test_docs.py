"""Pages keep their table cells short, and name only what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_scheduler.protocol.ops import OPS
from tests.tidy.tracked import ROOT, tracked

CELL_CHARACTERS_MAX = 200
PAGES = [page for page in tracked("*.md") if page.name != "CHANGELOG.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_table_cells_stay_short(page: Path) -> None:
    long = [
        f"{page.name}:{number}: {len(cell)}"
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if line.startswith("|")
        for cell in re.split(r"(?<!\\)\|", line)
        if len(cell) > CELL_CHARACTERS_MAX
    ]
    assert not long


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_the_protocol_page_has_every_op() -> None:
    page = (ROOT / "docs/reference/protocol.md").read_text()
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert set(OPS) <= named
