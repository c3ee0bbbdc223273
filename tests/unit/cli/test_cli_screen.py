"""Output on a terminal: control characters written out, colours, widths of tables, times."""

from __future__ import annotations

import ast
import io
import random
import sys
import time
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from corekit.cli.screen import Coloured, continued, echo, echo_raw, echo_table, folded, redraw
from corekit.cli.table import GAP, Column, fitted, unique_prefix
from corekit.cli.text import cells, cut, packed_to, printable, visible
from corekit.cli.times import shown_time, utc_option
from gpu_scheduler.client import commands
from orchgpu import cli
from orchgpu.cli.commands.definition import history
from orchgpu.cli.commands.jobs import cost, dlq, job, jobs
from orchgpu.cli.commands.local import status
from orchgpu.cli.commands.objects import ls
from orchgpu.cli.commands.operation import config, gpus, reconcile
from tests.commandline import Terminal

OSC_52 = "\x1b]52;c;ZXZpbA==\x07"
TABLES: dict[str, Sequence[Column]] = {
    "jobs": jobs.JOBS,
    "gpus": gpus.DEVICES,
    "gpus on a terminal": gpus.DEVICES_WITH_BARS,
    "job": job.MOMENTS,
    "status": status.PROCESSES,
    "dlq ls": dlq.COUNTS,
    "dlq ls FUNCTION": dlq.LETTERS,
    "ls": ls.FUNCTIONS,
    "ls PLACE": ls.OBJECTS,
    "history": history.REVISIONS,
    "config show": config.SETTINGS,
    "cost": cost.COSTS,
    "reconcile": reconcile.LOST,
}


def terminal_of(monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> Terminal:
    """Standard output from here on; pytest sets its own before a test begins."""
    found = Terminal()
    monkeypatch.setattr(sys, "stdout", found)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("NO_COLOR", raising=False)
    return found


# ---------------------------------------------------------------------- text of others


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (OSC_52, "\\x1b]52;c;ZXZpbA==\\x07"),
        ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
        ("\x9b31m", "\\x9b31m"),  # the same in one byte
        ("10%\r20%\b\x7f", "10%\\r20%\\x08\\x7f"),
        ("\u202etxt.exe\u2066", "\\u202etxt.exe\\u2066"),
        ("\ud83d", "\\ud83d"),
        ("ünï 日本", "ünï 日本"),
    ],
)
def test_control_sequences_are_written_out(text: str, shown: str) -> None:
    assert visible(text) == printable(text) == shown


def test_lines_keep_their_layout_and_names_are_one_line() -> None:
    assert visible("a\n\tb\u3000c\xa0d") == "a\n\tb\u3000c\xa0d"
    assert printable("a\n\tb") == "a\\n\\tb"


def test_no_control_reaches_the_output_but_our_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = terminal_of(monkeypatch)
    echo(OSC_52, Coloured("FAILED"), Coloured("\x1b[2J"))
    echo(OSC_52, Coloured("FAILED"), err=True)
    echo_table((Column(name="KEY"),), [("a\x1b[31m\nb",), ("ünï 日本",)], empty="")
    shown = terminal.getvalue()
    assert shown.replace("\x1b[31mFAILED\x1b[0m", "").replace("\n", "").isprintable()
    assert "a\\x1b[31m\\nb\nünï 日本\n" in shown
    assert capsys.readouterr().err == "\\x1b]52;c;ZXZpbA==\\x07FAILED\n"  # no terminal there


def test_every_unprintable_character_is_written_out() -> None:
    unprintable = (c for c in map(chr, range(sys.maxunicode + 1)) if not c.isprintable())
    controls = "".join(c for c in unprintable if unicodedata.category(c) != "Zs")
    assert set("\x1b\x00\x7f\x9b\u2028\u202e\n\t") <= set(controls)
    assert visible(controls).replace("\n", "").replace("\t", "").isprintable()


def test_raw_lines_are_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    echo_raw(OSC_52)
    assert capsys.readouterr().out == OSC_52 + "\n"


def test_the_line_that_is_drawn_again_is_visible_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    redraw("x" * 19)
    redraw("x" * 20)
    assert capsys.readouterr().err == f"\r{'x' * 19}\x1b[K\r{'x' * 18}…\x1b[K"
    redraw("1/2 \x1b[2J")
    assert capsys.readouterr().err == "\r1/2 \\x1b[2J\x1b[K"


def test_text_is_printed_in_one_place() -> None:
    found = {
        str(file)
        for folder in (Path(cli.__file__).parent, Path(commands.__file__).parent)
        for file in folder.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in ("echo", "secho"))
        or (isinstance(node, ast.Name) and node.id == "print")
    }
    assert found == set()


# ---------------------------------------------------------------------- colours, widths


def test_colour_is_for_terminals_and_not_with_no_color(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = terminal_of(monkeypatch)
    assert Coloured("FAILED").on(io.StringIO()) == "FAILED"
    assert Coloured("FAILED").on(terminal) == "\x1b[31mFAILED\x1b[0m"
    assert Coloured("healthy", 4, "ok").on(terminal) == "\x1b[32mok  \x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Coloured("FAILED").on(terminal) == "FAILED"


def test_long_lines_break_between_words_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "j1 waits: position 1 of 2\n  in its way: j-long-name:1 (4000 MiB)\n\n日本 日本 日本 日"
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert folded(text) == text
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert folded(text).splitlines() == [
        "j1 waits: position 1",
        "    of 2",
        "  in its way:",
        "      j-long-name:1",
        "      (4000 MiB)",
        "",
        "日本 日本 日本 日",
    ]


def test_a_line_of_a_log_is_folded_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert continued("one two\tthree", 4) == "one two\tthree"
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert continued("one two three four five", 6).splitlines() == [
        "one two three",
        "      four five",
    ]
    assert continued("", 6) == ""
    assert continued("x" * 40, 6) == "x" * 40  # nothing of it would fit better below
    assert "\x1b" not in continued("a" * 15 + OSC_52, 6)
    lines = continued("a word\tand others", 15).splitlines()
    assert lines == ["a", " " * 10 + "word   and", " " * 10 + "others"]


def test_items_are_packed_and_never_broken() -> None:
    items = ["RStart 0.000 s", "NStart 1.000 s", "日本 2.000 s"]
    assert packed_to(items, None, "  ") == "  RStart 0.000 s  NStart 1.000 s  日本 2.000 s"
    assert packed_to(items, 32, "  ").splitlines() == [
        "  RStart 0.000 s  NStart 1.000 s",
        "  日本 2.000 s",
    ]
    assert packed_to(items, 3, "").splitlines() == items
    assert packed_to([], 3, "  ") == ""


@pytest.mark.parametrize(
    ("text", "width"),
    [("abc", 3), ("日本", 4), ("e\u0301", 1), ("ｆ", 2), ("ﾊ", 1), ("", 0), ("a日", 3)],
)
def test_wide_characters_take_two_columns(text: str, width: int) -> None:
    assert cells(text) == width


def test_a_text_is_cut_where_it_matters_least() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdef", 4) == "abc…"
    assert cut("abcdef", 4, "end") == "…def"
    assert cut("abcdef", 4, "both") == "ab…f"
    assert cut("日本語", 4) == "日 …"  # three of four: half a character is a space
    assert cut("日本語", 4, "end") == "… 語"


# ---------------------------------------------------------------------- tables

VALUES = (
    "",
    "-",
    "x",
    "RUNNING",
    "HOST_UNREACHABLE",
    "2026-11-21 10:00:00",
    "x" * 300,
    "inputs/" + "very-long-folder/" * 12 + "file.fasta",
    "日本語の入力" * 20,
    "e\u0301" * 90,
    "j" + "0" * 25,
    "127.0.0.1:45055",
    "\x1b[31m" * 9,
)


def rows_of(columns: Sequence[Column], seed: int) -> list[list[str]]:
    choose = random.Random(seed)
    return [[choose.choice(VALUES) for _ in columns] for _ in range(6)]


@pytest.mark.parametrize("width", [1, 20, 60, 80, 120])
@pytest.mark.parametrize("name", TABLES)
def test_no_table_is_wider_than_the_terminal(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = terminal_of(monkeypatch, width)
    monkeypatch.setenv("NO_COLOR", "1")
    for seed in range(20):
        echo_table(TABLES[name], rows_of(TABLES[name], seed), empty="")
    narrowest = len(TABLES[name]) * (GAP + 1)
    assert max(map(cells, terminal.getvalue().splitlines())) <= max(width, narrowest)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_whole_at_a_pipe(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    columns = TABLES[name]
    row = [f"{number}-" + "日本x" * 50 for number, _ in enumerate(columns)]
    echo_table(columns, [row], empty="")
    head, line = capsys.readouterr().out.splitlines()
    assert all(one.name in head for one in columns)
    assert all(cell in line for cell in row)


def test_columns_are_shortened_then_dropped_in_their_declared_order() -> None:
    columns = (
        Column(name="A"),
        Column(name="B", shrink_order=2, width_min=3, drop_order=2),
        Column(name="C", shrink_order=1, width_min=4, keep="end", drop_order=1),
    )
    row = ["aaaa", "bbbbbbbb", "cccccccc"]  # 24 with gaps

    def shown(width: int | None) -> list[str]:
        return fitted(columns, [row], width).line(row)

    assert shown(None) == shown(24) == row
    assert shown(22) == ["aaaa", "bbbbbbbb", "…ccccc"]
    assert shown(20) == ["aaaa", "bbbbbbbb", "…ccc"]
    assert shown(16) == ["aaaa", "bbb…", "…ccc"]
    assert shown(14) == ["aaaa", "bbbbbbbb"]  # who stays gets back what it can have
    assert shown(9) == ["aaaa", "bb…"]
    assert shown(8) == ["aaaa"]
    assert shown(3) == ["aa…"]


def test_ids_are_shortened_to_unique_prefixes() -> None:
    columns = (Column(name="JOB", ids=True, shrink_order=1),)
    far, near = ["j1" + "0" * 24, "j2" + "0" * 24], ["j" + "0" * 24 + n for n in "12"]
    assert fitted(columns, [[one] for one in far], 8).line([far[0]]) == ["j1000000"]
    assert fitted(columns, [[one] for one in near], 26).line([near[0]]) == [near[0]]
    assert unique_prefix(["abc", "abd", "abd", "x"]) == 3
    assert unique_prefix([]) == unique_prefix(["a"]) == 1


# ---------------------------------------------------------------------- times


@pytest.fixture
def east_of_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XXX-09")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("east_of_greenwich")
def test_times_are_local_and_have_a_date_where_it_is_not_todays() -> None:
    noon_s = 1_600_000_000.25  # 2020-09-13 12:26:40 in UTC, 21:26:40 here
    assert shown_time(noon_s, now_s=noon_s + 3600) == "21:26:40"
    assert shown_time(noon_s, now_s=noon_s + 3 * 3600) == "2020-09-13 21:26:40"
    assert shown_time(noon_s) == "2020-09-13 21:26:40"
    assert shown_time(noon_s, milliseconds=True) == "2020-09-13 21:26:40.250"


@pytest.mark.usefixtures("east_of_greenwich")
def test_times_are_in_utc_where_that_is_asked_for() -> None:
    noon_s, said = 1_600_000_000.0, []

    @click.command
    @utc_option
    def show() -> None:
        said.append(shown_time(noon_s, now_s=noon_s + 3 * 3600))

    show.main(["--utc"], standalone_mode=False)
    show.main([], standalone_mode=False)
    assert said == ["12:26:40Z", "2020-09-13 21:26:40"]
