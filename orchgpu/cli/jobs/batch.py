"""The same work for many items, several at once, with progress on standard error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import click

from corekit.cli.progress import Bar
from corekit.cli.screen import Coloured, echo
from corekit.cli.text import padded, printable
from orchgpu.cli.jobs.report import NAME_WIDTH, echo_progress
from orchgpu.jobs.following import Followed, Tally
from orchgpu.jobs.transfers import for_each
from orchgpu.jobs.uploaded import Submitted

T = TypeVar("T")
R = TypeVar("R")

#: Uploads and downloads at once: more does not help one machine's network.
AT_ONCE = 8
at_once_option = click.option(
    "--at-once",
    type=click.IntRange(1, 64),
    default=AT_ONCE,
    show_default=True,
    help="The maximum number of concurrent uploads and downloads.",
)


class Progress:
    """Many jobs on standard error: a bar on a terminal, else a line for each change."""

    def __init__(self, total: int, *, quiet: bool, ids: bool) -> None:
        self._ids = ids  #: printed at once; otherwise the command prints them at the end
        self._quiet = quiet
        self._bar = Bar(total, quiet=quiet)
        self._tally = Tally()
        self._uploaded = 0

    def uploaded(self, stored: tuple[Submitted, bool]) -> None:
        """One input is stored: print the job's id now, in case of a later failure."""
        job, before = stored
        self._uploaded += 1
        how = "uploaded before" if before else "uploaded"
        if self._ids or before:
            name = padded(printable(job.file.name), NAME_WIDTH)
            self._bar.line(f"{name} {how}: {job.job_ids[0]}", err=True)
        self._bar.draw(self._uploaded, " uploaded")

    def changed(self, job: Followed) -> None:
        if not self._bar.shown:
            if not self._quiet:
                echo_progress(job)
            return
        if job.over and not job.succeeded:
            name = padded(printable(job.submitted.file.name), NAME_WIDTH)
            self._bar.line(f"{name} ", Coloured(job.where), f" {job.reason}", err=True)
        self._bar.draw(*self._tally.changed(job))

    def end(self) -> None:
        self._bar.clear()


def transfer(
    work: Callable[[T], R],
    things: Sequence[T],
    at_once: int,
    line: Callable[[R], str] | None,
    *,
    quiet: bool,
) -> list[R]:
    """`for_each`, with a bar on a terminal and, where given, a line on standard output for each."""
    progress, count = Bar(len(things), quiet=quiet), 0

    def done(one: R) -> None:
        nonlocal count
        count += 1
        if line is not None and not quiet:
            progress.clear()
            echo(line(one))
        progress.draw(count, "")

    try:
        return for_each(work, things, at_once, done)
    finally:
        progress.clear()
