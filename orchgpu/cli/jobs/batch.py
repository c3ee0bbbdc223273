"""The same work for many items, several at once, with progress on standard error."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from typing import TypeVar

from contract.states import JobState
from corekit.cli.progress import Bar
from corekit.cli.screen import Coloured, echo
from corekit.cli.text import padded, printable
from orchgpu.cli.jobs.follow import Followed
from orchgpu.cli.jobs.report import NAME_WIDTH, echo_progress
from orchgpu.jobs.cloud import Submitted

T = TypeVar("T")
R = TypeVar("R")


def for_each(
    work: Callable[[T], R], things: Sequence[T], at_once: int, done: Callable[[R], None]
) -> list[R]:
    """The result of `work` for each item, in order; `done` is called as each result arrives.

    After a failure or Ctrl-C nothing new begins; work in progress ends, then the error is raised.
    """
    stop = threading.Event()

    def unless_stopped(thing: T) -> R:
        if stop.is_set():
            raise CancelledError
        try:
            return work(thing)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(at_once) as pool:
        begun = [pool.submit(unless_stopped, thing) for thing in things]
        try:
            for finished in as_completed(begun):
                if not isinstance(finished.exception(), CancelledError):
                    done(finished.result())
        except BaseException:
            stop.set()
            raise
    return [one.result() for one in begun]


class Progress:
    """Many jobs on standard error: a bar on a terminal, else a line for each change."""

    def __init__(self, total: int, *, quiet: bool, ids: bool) -> None:
        self._ids = ids  #: printed at once; otherwise the command prints them at the end
        self._quiet = quiet
        self._bar = Bar(total, quiet=quiet)
        self._states: dict[str, str] = {}
        self._over = 0
        self._uploaded = 0

    def uploaded(self, job: Submitted, *, before: bool) -> None:
        """One input is stored: print the job's id now, in case of a later failure."""
        self._uploaded += 1
        how = "uploaded before" if before else "uploaded"
        if self._ids or before:
            name = padded(printable(job.file.name), NAME_WIDTH)
            self._bar.line(f"{name} {how}: {job.job_ids[0]}", err=True)
        self._bar.draw(self._uploaded, " uploaded")

    def changed(self, job: Followed) -> None:
        """A job's state or reason changed."""
        if not self._bar.shown:
            if not self._quiet:
                echo_progress(job)
            return
        if job.over and not job.succeeded:
            name = padded(printable(job.submitted.file.name), NAME_WIDTH)
            self._bar.line(f"{name} ", Coloured(job.where), f" {job.reason}", err=True)
        self._over += job.over
        self._states[job.submitted.key] = job.where
        counts = Counter(self._states.values())
        words = [*(state.value for state in JobState), *sorted(counts)]
        states = "  ".join(f"{word} {counts.pop(word)}" for word in words if word in counts)
        self._bar.draw(self._over, f"  {states}")

    def end(self) -> None:
        """Remove the bar."""
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
