"""The same work for many things, some at once, and what a terminal shows of it."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, TypeVar

from contract.states import JobState
from orchgpu.cli.terminal.screen import Word, redraw, say
from orchgpu.cli.terminal.text import padded, printable

if TYPE_CHECKING:
    from orchgpu.cli.cloud import Submitted
    from orchgpu.cli.jobs.follow import Followed

T = TypeVar("T")
R = TypeVar("R")

#: Characters of the bar.
BAR_WIDTH = 24


def for_each(
    work: Callable[[T], R], things: Sequence[T], at_once: int, told: Callable[[R], None]
) -> list[R]:
    """What `work` gives for each, in their order; `told` hears each as it comes.

    After a failure or Ctrl-C nothing new begins; what has begun ends first, then it is raised.
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
            for done in as_completed(begun):
                if not isinstance(done.exception(), CancelledError):
                    told(done.result())
        except BaseException:
            stop.set()
            raise
    return [one.result() for one in begun]


def bar(done: int, total: int) -> str:
    """`[######      ] 6/12`."""
    full = BAR_WIDTH * done // total if total else BAR_WIDTH
    return f"[{'#' * full}{' ' * (BAR_WIDTH - full)}] {done}/{total}"


class Bar:
    """One line on standard error that is drawn over and over; lines that stay go above it.

    Nothing is drawn where there is no terminal, and for a single thing, whose lines say more.
    """

    def __init__(self, total: int, *, quiet: bool) -> None:
        self.total = total
        #: What is no terminal keeps all that is written.
        self.shown = not quiet and total > 1 and terminal()

    def draw(self, done: int, words: str) -> None:
        """So many of all are done."""
        if self.shown:
            redraw(f"{bar(done, self.total)}{words}")

    def say(self, *parts: str | Word, err: bool) -> None:
        """A line that stays, on standard output or error."""
        self.end()
        say(*parts, err=err)

    def end(self) -> None:
        """The bar goes; what comes next has a line of its own."""
        if self.shown:
            redraw("")


class Progress:
    """Tells of many jobs on standard error: a bar on a terminal, else a line for each news."""

    def __init__(self, total: int, *, quiet: bool, ids: bool) -> None:
        self._ids = ids  #: told at once; else the command tells them itself in the end
        self._quiet = quiet
        self._bar = Bar(total, quiet=quiet)
        self._states: dict[str, str] = {}
        self._over = 0
        self._uploaded = 0

    def uploaded(self, job: Submitted, *, before: bool) -> None:
        """One input is there: its job's id is told whatever happens later."""
        self._uploaded += 1
        how = "uploaded before" if before else "uploaded"
        if self._ids or before:
            self._bar.say(
                f"{padded(printable(job.file.name), 24)} {how}: {job.job_ids[0]}", err=True
            )
        self._bar.draw(self._uploaded, " uploaded")

    def told(self, job: Followed) -> None:
        """A job's state or reason changed."""
        from orchgpu.cli.jobs.report import say_progress

        if not self._bar.shown:
            if not self._quiet:
                say_progress(job)
            return
        if job.over and not job.succeeded:
            name = printable(job.submitted.file.name)
            self._bar.say(f"{padded(name, 24)} ", Word(job.where), f" {job.reason}", err=True)
        self._over += job.over
        self._states[job.submitted.key] = job.where
        counted = Counter(self._states.values())
        words = [*(state.value for state in JobState), *sorted(counted)]
        states = "  ".join(f"{word} {counted.pop(word)}" for word in words if word in counted)
        self._bar.draw(self._over, f"  {states}")

    def end(self) -> None:
        """The bar goes; what comes next has a line of its own."""
        self._bar.end()


def transfer(
    work: Callable[[T], R],
    things: Sequence[T],
    at_once: int,
    line: Callable[[R], str],
    *,
    quiet: bool,
) -> list[R]:
    """`for_each`, with a line on standard output for each thing and a bar on a terminal."""
    progress, done = Bar(len(things), quiet=quiet), 0

    def told(one: R) -> None:
        nonlocal done
        done += 1
        if not quiet:
            progress.say(line(one), err=False)
        progress.draw(done, "")

    try:
        return for_each(work, things, at_once, told)
    finally:
        progress.end()


def terminal() -> bool:
    """Whether standard error is one that can rewrite a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
