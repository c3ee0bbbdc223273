"""A table fits its terminal: columns go in a stated order, then the widest cells are shortened."""

from __future__ import annotations

import pytest

from gpu_scheduler.client.commands.terminal import table

HEAD = ("NAME", "STATE", "DETAIL")
ROWS = [("gpu-a", "UP", "one CPU shared with another host"), ("gpu-b-with-a-long-name", "LOST", "")]


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
def test_columns_are_left_out_in_their_order(width: int | None, columns: list[str]) -> None:
    shown = table(HEAD, ROWS, drop=("DETAIL", "STATE"), width=width).splitlines()
    assert shown[0].split() == columns
    assert max(map(len, shown)) <= (width or 63)
    assert ("…" in "".join(shown)) is (width == 10)


def test_what_is_not_a_terminal_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    del capsys  # standard output is no terminal
    long = [("x" * 500, "UP", "y" * 500)]
    assert len(table(HEAD, long, drop=("DETAIL",)).splitlines()[1]) > 1000


def test_without_columns_to_leave_out_the_widest_cell_gives_way() -> None:
    shown = table(HEAD, ROWS, width=40).splitlines()
    assert max(map(len, shown)) <= 40
    assert "LOST" in shown[2], "what is narrow stays whole"
