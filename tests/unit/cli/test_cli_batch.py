"""The same work for many things, several at once, with its progress."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import click
import pytest

from corekit.cli.program import interrupted
from corekit.cli.progress import BAR_WIDTH, bar
from corekit.errors import AppError, invalid
from orchgpu.cli.jobs.batch import Progress, transfer
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.following import Followed
from orchgpu.jobs.outputs import is_content
from orchgpu.jobs.transfers import for_each, inputs_of
from orchgpu.jobs.uploaded import Submitted
from tests.commandline import Terminal
from tests.history_records import FUNCTION


def submitted(name: str) -> Submitted:
    return Submitted(
        function=FUNCTION, file=Path(name), key=name, job_ids=(f"j-{name}",), uploaded_s=100.0
    )


def test_answers_come_in_the_order_of_the_things_and_not_more_work_at_once() -> None:
    running, most, lock = [0], [0], threading.Lock()

    def work(thing: int) -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        with lock:
            running[0] -= 1
        return thing * 2

    told: list[int] = []
    assert for_each(work, range(50), 3, told.append) == [thing * 2 for thing in range(50)]
    assert sorted(told) == [thing * 2 for thing in range(50)]
    assert most[0] <= 3


def test_after_a_failure_nothing_new_begins() -> None:
    begun: list[int] = []

    def work(thing: int) -> None:
        begun.append(thing)
        if thing == 2:
            raise invalid("no")

    with pytest.raises(AppError, match="no"):
        for_each(work, range(2_000), 1, lambda _: None)
    assert begun == [0, 1, 2]


def test_a_bar_is_as_full_as_the_work() -> None:
    assert bar(0, 4) == f"[{' ' * BAR_WIDTH}] 0/4"
    assert bar(4, 4) == f"[{'#' * BAR_WIDTH}] 4/4"
    assert bar(1, 2).count("#") == BAR_WIDTH // 2


def test_without_a_terminal_every_change_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(2, quiet=False, ids=True)
    progress.uploaded((submitted("a"), False))
    progress.uploaded((submitted("b"), True))
    job = Followed(submitted=submitted("a"), job_id="j-a")
    progress.changed(job)
    job.state = "RUNNING"
    progress.changed(job)
    progress.end()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert [line.split(None, 1) for line in shown.err.splitlines()] == [
        ["a", "uploaded: j-a"],
        ["b", "uploaded before: j-b"],
        ["a", "not received yet"],
        ["a", "RUNNING"],
    ]


def test_two_files_that_would_be_one_input_are_refused(tmp_path: Path) -> None:
    files = [tmp_path / "x" / "q", tmp_path / "y" / "q"]
    for file in files:
        file.parent.mkdir()
        file.write_text("q")
    with pytest.raises(AppError, match="2 of the files are named 'q'"):
        inputs_of(JobCloud(), FUNCTION, list(map(str, files)), print)
    assert len(inputs_of(JobCloud(), FUNCTION, [str(files[0])], print)) == 1


def test_an_output_that_is_there_whole_is_not_fetched_again(tmp_path: Path) -> None:
    file = tmp_path / "out"
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert not is_content(file, empty)
    file.write_bytes(b"")
    assert is_content(file, empty)
    file.write_bytes(b"x")
    assert not is_content(file, empty)


def test_an_interrupted_command_may_have_a_message() -> None:
    def aborted(cause: BaseException) -> click.Abort:
        try:
            raise click.Abort from cause
        except click.Abort as abort:
            return abort

    assert interrupted(aborted(KeyboardInterrupt("interrupted; repeat"))) == "interrupted; repeat"
    assert interrupted(aborted(KeyboardInterrupt())) == "interrupted"


def test_lines_on_a_terminal_go_above_the_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", drawn := Terminal())
    assert transfer(str, range(2), 1, lambda line: line, quiet=False) == ["0", "1"]
    assert capsys.readouterr().out == "0\n1\n"
    clear = "\r\x1b[K"
    bars = [f"\r{bar(done, 2)}\x1b[K" for done in (1, 2)]
    assert drawn.getvalue() == f"{clear}{bars[0]}{clear}{bars[1]}{clear}"
