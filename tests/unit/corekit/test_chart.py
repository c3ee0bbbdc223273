"""Bars and axes of block characters, and Gantts of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.cli.chart import ASCII, BLOCKS, Glyphs, Segment, axis_line, bar, glyphs_of
from corekit.cli.gantt import Row, gantt_lines
from corekit.cli.text import cells

SHARES = st.floats(-1, 2)
GLYPHS = st.sampled_from([BLOCKS, ASCII])


@pytest.mark.parametrize(
    ("share", "drawn", "in_ascii"),
    [
        (0.0, "····", "...."),
        (0.001, "▏···", "|..."),
        (0.25, "█···", "#..."),
        (0.375, "█▌··", "#=.."),
        (0.99, "████", "####"),
        (1.0, "████", "####"),
    ],
)
def test_bar(share: float, drawn: str, in_ascii: str) -> None:
    assert (bar(share, 4), bar(share, 4, ASCII)) == (drawn, in_ascii)


@pytest.mark.parametrize(
    ("start", "end", "drawn"),
    [
        (0.0, 1.0, "████"),
        (0.0, 0.125, "▌"),
        (0.125, 0.5, "▐█"),
        (0.5, 0.5, "  ▏"),
        (1.0, 1.0, "   ▕"),
        (0.25, 0.3, " ▎"),
    ],
)
def test_interval_on_an_axis(start: float, end: float, drawn: str) -> None:
    assert axis_line([Segment(start=start, end=end)], 4) == drawn


@given(SHARES, st.integers(1, 40), GLYPHS)
def test_a_bar_has_its_width_and_shows_every_share_above_zero(
    share: float, width: int, glyphs: Glyphs
) -> None:
    drawn = bar(share, width, glyphs)
    assert len(drawn) == width
    assert (drawn != glyphs.empty * width) == (share > 0)


@given(st.lists(st.tuples(SHARES, SHARES), min_size=1), st.integers(1, 40), GLYPHS)
def test_every_interval_has_a_mark_within_the_axis(
    ends: list[tuple[float, float]], width: int, glyphs: Glyphs
) -> None:
    drawn = axis_line([Segment(start=a, end=b) for a, b in ends], width, glyphs)
    assert len(drawn) <= width
    for start, _ in ends:
        at = min(width - 1, int(min(max(start, 0.0), 1.0) * width))
        assert drawn[at] != " "


@pytest.mark.parametrize(
    ("encoding", "glyphs"),
    [("utf-8", BLOCKS), ("ascii", ASCII), ("latin-1", ASCII), (None, BLOCKS), ("nothing", ASCII)],
)
def test_output_without_block_characters_is_ascii(encoding: str | None, glyphs: Glyphs) -> None:
    assert glyphs_of(encoding) is glyphs


ROWS = (
    Row(lane="queue", name="queued", bars=((100.0, 101.0),)),
    Row(lane="function", name="running", bars=((101.0, 101.5), (102.0, 104.0)), lasts=True),
)


def test_gantt() -> None:
    assert gantt_lines(ROWS, 61) == [
        "                   0                   4 s",
        "queue     queued   █████▊                                 1 s",
        "function  running       ▕██▋  ▐███████████  2.5 s in 2 so far",
    ]


def test_a_narrow_gantt_leaves_out_lengths_then_the_axis() -> None:
    assert gantt_lines(ROWS, 30) == [
        "                   0       4 s",
        "queue     queued   ██▊",
        "function  running    ▕█▏▐█████",
    ]
    assert gantt_lines(ROWS, 24) == ["queue     queued   1 s", "function  running  2.5 …"]


@given(st.integers(4, 200))
def test_a_gantt_is_never_wider_than_its_terminal(width: int) -> None:
    assert all(cells(line) <= width for line in gantt_lines(ROWS, width))


def test_a_gantt_without_bars_is_empty() -> None:
    assert gantt_lines([Row(lane="queue", name="queued", bars=())], 80) == []
