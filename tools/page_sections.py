"""Sections of pages that are generated, between `<!-- NAME -->` and `<!-- end of NAME -->`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def with_section(page: str, name: str, text: str) -> str:
    """The page with this text as its section; the text ends with a newline."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{text}{end}{rest.partition(end)[2]}"


def renew(path: Path, renewed: Callable[[str], str]) -> None:
    """Write a page as it must be."""
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
