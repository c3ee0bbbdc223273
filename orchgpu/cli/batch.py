"""The same work for many things, some at once, and what a terminal shows of it."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, TypeVar

import click

from contract.states import JobState
from orchgpu.cli.screen import coloured

if TYPE_CHECKING:
    from orchgpu.cli.cloud import Submitted
    from orchgpu.cli.follow import Followed

T = TypeVar("T")
R = TypeVar("R")

#: Characters of the bar.
BAR_WIDTH = 24
#: Clears what is left of a line that was longer before.
_CLEAR_REST = "\x1b[K"


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


class Progress:
    """Tells of many jobs on standard error: a bar on a terminal, else a line for each news."""

    def __init__(self, total: int, *, quiet: bool, ids: bool) -> None:
        self._total = total
        self._ids = ids  #: told at once; else the command tells them itself in the end
        self._quiet = quiet
        #: A single job says more by its lines; what is no terminal keeps all that is written.
        self._bar = not quiet and total > 1 and terminal()
        self._states: dict[str, str] = {}
        self._over = 0
        self._uploaded = 0

    def uploaded(self, job: Submitted, *, before: bool) -> None:
        """One input is there: its job's id is told whatever happens later."""
        self._uploaded += 1
        how = "uploaded before" if before else "uploaded"
        if self._ids or before:
            self._say(f"{job.file.name:<24} {how}: {job.job_ids[0]}")
        self._draw(f"{bar(self._uploaded, self._total)} uploaded")

    def told(self, job: Followed) -> None:
        """A job's state or reason changed."""
        from orchgpu.cli.report import say_progress

        if not self._bar:
            if not self._quiet:
                say_progress(job)
            return
        if job.over and not job.succeeded:
            self._say(f"{job.submitted.file.name:<24} {coloured(job.where)} {job.reason}")
        self._over += job.over
        self._states[job.submitted.key] = job.where
        counted = Counter(self._states.values())
        words = [*(state.value for state in JobState), *sorted(counted)]
        states = "  ".join(f"{word} {counted.pop(word)}" for word in words if word in counted)
        self._draw(f"{bar(self._over, self._total)}  {states}")

    def end(self) -> None:
        """The bar goes; what comes next has a line of its own."""
        if self._bar:
            click.echo("\r" + _CLEAR_REST, nl=False, err=True, color=True)

    def _say(self, line: str) -> None:
        self.end()
        click.echo(line, err=True)

    def _draw(self, line: str) -> None:
        if self._bar:
            click.echo(f"\r{line}{_CLEAR_REST}", nl=False, err=True, color=True)


def terminal() -> bool:
    """Whether standard error is one that can rewrite a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
