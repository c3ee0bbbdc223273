"""Writes the table of all keys into docs/fdl.md, from the tables that read definitions."""

from __future__ import annotations

from pathlib import Path

from fdl.reference import table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "fdl.md"
BEGIN, END = "<!-- keys -->\n", "<!-- end of keys -->"


def renewed(page: str) -> str:
    """The page with the table as it must be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
