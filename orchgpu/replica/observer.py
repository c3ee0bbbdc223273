"""Observers of a replica: they see each event from outside, and each action at both its ends."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import NamedTuple

from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.job import Job


class Performed(NamedTuple):
    """An action, and the event that it led to."""

    job: Job | None  #: None: not in hand
    action: do.Action
    event: on.Event | None
    began: on.EventTimes


class Observer:
    """A method that is not overridden does nothing. An error in `performed` ends no job."""

    def noticed(self, event: on.Event) -> None:
        """An event came from outside: a message, a notice or a push."""

    def starting(self, job: Job | None, action: do.Action) -> None:
        """An action is about to be performed. `job`: None when it is not in hand."""

    def performed(self, done: Performed) -> None:
        """An action is over."""


class Progress(asyncio.Event, Observer):
    """Set whenever there may be room for a job."""

    def performed(self, _done: Performed) -> None:
        self.set()


class Window:
    """The receive window: the number of a function's jobs that one replica takes without devices.

    Its full size depends on the number of devices. It is halved whenever the scheduler refuses an
    attempt at a limit (EXHAUSTED), and grows by one with each accepted attempt and with each count
    of the devices since the last refusal: jobs that would only wait stay in SQS, where they cost
    nothing.

    At least 1 job: one attempt has to show that the scheduler accepts again.
    """

    def __init__(self, full: int) -> None:
        self._full = max(1, full)
        self._open = self._full
        self._was_refused = False  # since the last count

    @property
    def size(self) -> int:
        return self._open

    def resize(self, full: int) -> None:
        """Set the full size after a count of the devices."""
        narrowed, self._full = self._open < self._full, max(1, full)
        if narrowed and self._was_refused:
            self._open = min(self._open, self._full)
        else:
            self._open = min(self._open + 1, self._full) if narrowed else self._full
        self._was_refused = False

    def refused(self) -> None:
        self._open = max(1, self._open // 2)
        self._was_refused = True

    def admitted(self) -> None:
        """The scheduler accepted an attempt, whatever its outcome."""
        self._open = min(self._full, self._open + 1)


class Windows(Observer):
    """Back-pressure: a function's receive window, smaller while the scheduler is at a limit."""

    def __init__(self) -> None:
        self.of: defaultdict[str, Window] = defaultdict(lambda: Window(1))

    def performed(self, done: Performed) -> None:
        if done.job is None or not isinstance(done.action, do.OpenAttempt):
            return
        window = self.of[done.job.function.name]
        if not isinstance(done.event, on.CallFailed):
            window.admitted()
        elif done.event.exhausted:
            window.refused()
