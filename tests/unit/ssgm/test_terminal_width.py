"""Columns without a shrink order, as those of `ssgm`: dropped in order, then the widest shrinks."""

from __future__ import annotations

import pytest

from corekit.cli.table import Column, fitted

COLUMNS = (
    Column(name="NAME"),
    Column(name="STATE", drop_order=2),
    Column(name="DETAIL", drop_order=1),
)
ROWS = [["gpu-a", "UP", "one CPU shared with another host"], ["gpu-b-with-a-long-name", "LOST", ""]]


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (None, ["NAME", "STATE", "DETAIL"]),
        (80, ["NAME", "STATE", "DETAIL"]),
        (63, ["NAME", "STATE", "DETAIL"]),
        (62, ["NAME", "STATE"]),
        (28, ["NAME"]),
        (10, ["NAME"]),
    ],
)
def test_columns_are_dropped_in_their_order(width: int | None, columns: list[str]) -> None:
    table = fitted(COLUMNS, ROWS, width)
    assert [column.name for column in table.columns] == columns
    assert sum(table.widths) + 2 * (len(columns) - 1) <= (width or 63)
    assert ("…" in table.line(ROWS[1])[0]) is (width == 10)


def test_without_columns_to_drop_the_widest_shrinks() -> None:
    columns = [Column(name=column.name) for column in COLUMNS]
    table = fitted(columns, ROWS, 40)
    assert sum(table.widths) + 4 == 40
    assert table.line(ROWS[1])[1] == "LOST", "narrow columns stay whole"
