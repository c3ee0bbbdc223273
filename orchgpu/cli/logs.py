"""`orchgpu logs`: what the programs of the local system wrote."""

from __future__ import annotations

import collections
import time
from collections.abc import Iterator
from pathlib import Path

import click

from corekit.errors import AppError, ErrorCode
from orchgpu.local.home import default_home

#: While following, files are looked at this often.
LOOK_EVERY_S = 0.2


@click.command(short_help="What the programs of the local system wrote.")
@click.argument("program", required=False)
@click.option("--lines", type=click.IntRange(0, 100_000), default=20, show_default=True,
              help="How many last lines of each log.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Go on with what is written from now on.")
def logs(program: str | None, lines: int, follow: bool) -> None:
    """Last lines of every program's log, or of one PROGRAM's; also after `down`.

    \b
    Example:  orchgpu logs orchestrator --follow
    """
    files = _files(program)
    width = max(len(file.stem) for file in files)
    ends = {}
    for file in files:
        with file.open(errors="replace") as text:
            for line in collections.deque(text, maxlen=lines):
                _say(file, line, width)
            ends[file] = text.tell()
    if follow:
        for file, line in _written(ends):
            _say(file, line, width)


def _files(program: str | None) -> list[Path]:
    folder = default_home().logs
    files = sorted(folder.glob("*.log"))
    chosen = [file for file in files if program in (None, file.stem)]
    if not chosen:
        known = ", ".join(file.stem for file in files) or "none; `orchgpu up` makes them"
        what = f"no log of {program!r}" if program else "no logs"
        raise AppError(ErrorCode.NOT_FOUND, f"{what} in {folder}; there is: {known}")
    return chosen


def _written(ends: dict[Path, int]) -> Iterator[tuple[Path, str]]:
    """Whole lines as they come; for ever."""
    while True:
        time.sleep(LOOK_EVERY_S)
        for file, end in ends.items():
            with file.open(errors="replace") as text:
                text.seek(end)
                while (line := text.readline()).endswith("\n"):
                    ends[file] = text.tell()
                    yield file, line


def _say(file: Path, line: str, width: int) -> None:
    click.echo(f"{file.stem.ljust(width)} | {line.rstrip()}")
