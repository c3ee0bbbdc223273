"""The output of `orchgpu jobs --watch`: a table in place, lines of changes, JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from corekit.cli.live import LiveScreen
from corekit.cli.screen import Line
from corekit.errors import AppError, ErrorCode
from orchgpu.cli.jobs.watching import (
    ChangedLines,
    Entry,
    JobChanges,
    LiveTable,
    display,
)
from tests.commandline import Terminal

DOWN = AppError(ErrorCode.UNAVAILABLE, "no scheduler answers")


def job(name: str, state: str = "WAITING", at_s: float = 1.0, **fields: Any) -> dict[str, Any]:
    return {
        "job_id": name,
        "function": "f",
        "state": state,
        "reason": "NONE",
        "attempt": 1,
        "updated_s": at_s,
        "input": "in/a.png",
        **fields,
    }


@pytest.mark.parametrize(
    ("second", "changed"),
    [
        ([job("j1"), job("j2")], []),
        ([job("j1"), job("j2", "RUNNING")], ["j2"]),
        ([job("j1", reason="BUSY"), job("j2")], ["j1"]),
        ([job("j1", attempt=2, at_s=9.0), job("j2", "RUNNING", 8.0)], ["j2", "j1"]),
        ([job("j3"), job("j1"), job("j2")], ["j3"]),
        ([job("j1", at_s=9.0)], []),
    ],
)
def test_jobs_that_changed_are_new_or_have_another_state_reason_or_attempt(
    second: list[Entry], changed: list[str]
) -> None:
    changes = JobChanges()
    assert [one["job_id"] for one in changes.fresh([job("j1"), job("j2")])] == ["j1", "j2"]
    assert [one["job_id"] for one in changes.fresh(second)] == changed


def test_a_pipe_gets_a_line_per_change(capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        to = display(lambda _: [], stack, as_json=False)
        to.show([job("j1"), job("j2")], None)
        to.show([job("j1"), job("j2", "FAILED", reason="KILLED", function="\x1b[2Jf")], None)
    first, second, third = capsys.readouterr().out.splitlines()
    assert re.sub(r"^\S+ \S+", "", first) == "  j1  f  WAITING     attempt 1  in/a.png"
    assert "  j2  " in second
    assert "\\x1b[2Jf  FAILED      KILLED  attempt 1" in third


def test_a_step_with_several_files_shows_the_first_one(capsys: pytest.CaptureFixture[str]) -> None:
    gather = job("j1", input="middle/runs/r1/inputs/table.json", files_text="in/1.x and 2 more")
    ChangedLines(as_json=False).show([gather], None)
    assert capsys.readouterr().out.endswith("attempt 1  in/1.x and 2 more\n")


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ChangedLines(as_json=True)
    lines.show([job("j1")], None)
    lines.show([job("j1")], DOWN)
    lines.show([job("j1")], DOWN)
    lines.show([job("j1", "RUNNING")], None)
    shown = capsys.readouterr()
    told = [json.loads(line) for line in shown.out.splitlines()]
    assert [one["version"] for one in told] == [1, 1, 1]
    assert told[0]["job"] == job("j1")
    assert told[1]["scheduler_error"]["code"] == "unavailable"
    assert told[2]["job"]["state"] == "RUNNING"
    assert shown.err == "orchgpu: no scheduler answers; it is asked again\n"


def rows(jobs: Sequence[Entry]) -> list[Line]:
    return [(str(one["job_id"]),) for one in jobs]


def test_a_terminal_is_redrawn_in_place_and_keeps_the_last_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "4")
    with ExitStack() as stack:
        to = display(rows, stack, as_json=False)
        assert isinstance(to, LiveTable)
        to.show([job("j1"), job("j2", "RUNNING")], None)
        to.show([job(f"j{n}") for n in range(5)], DOWN)
    _, first, second = terminal.getvalue().split("\x1b[H")
    assert first.startswith("RUNNING 1  WAITING 1  (Ctrl-C ends)\x1b[K\r\n\x1b[K\r\nj1\x1b[K\r\nj2")
    drawn, _, left = second.partition("\x1b[?25h\x1b[?1049l")
    assert drawn.startswith("no scheduler answers  (Ctrl-C ends)")
    assert drawn.endswith("… 4 more lines\x1b[K\x1b[J")
    assert left.splitlines()[1:] == ["", "j0", "j1", "j2", "j3", "j4"]


def test_the_terminal_is_restored_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    with pytest.raises(AppError), LiveScreen():
        raise DOWN
    assert terminal.getvalue().endswith("\x1b[?25h\x1b[?1049l")


def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("TERM", "dumb")
    with ExitStack() as stack:
        assert isinstance(display(rows, stack, as_json=False), ChangedLines)
