"""Observers of a replica: they see each event from outside, and each action at both its ends."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import NamedTuple

from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.job import Job
from orchgpu.core.window import Window


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
