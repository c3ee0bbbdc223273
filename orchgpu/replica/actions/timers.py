"""Timers of jobs, by name: an event is submitted when one is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from orchgpu.core import events as on


class Timers:
    """At most one timer of each name per job."""

    def __init__(self, submit: Callable[[on.JobEvent], None]) -> None:
        self._submit = submit
        self._jobs: dict[str, dict[str, asyncio.TimerHandle]] = {}

    def arm(self, job: str, name: str, in_s: float, due: Callable[[], on.JobEvent]) -> None:
        """Submit the event that `due` makes, `in_s` from now; a timer of that name is replaced."""
        timers = self._jobs.setdefault(job, {})
        if name in timers:
            timers[name].cancel()
        timers[name] = asyncio.get_running_loop().call_later(in_s, self._fire, job, name, due)

    def next_in_s(self, job: str, but: Collection[str] = ()) -> float | None:
        """Seconds to the next timer of a job, without those of some names; None: there is none."""
        due = [timer.when() for name, timer in self._jobs.get(job, {}).items() if name not in but]
        return min(due) - asyncio.get_running_loop().time() if due else None

    def forget(self, job: str) -> None:
        for handle in self._jobs.pop(job, {}).values():
            handle.cancel()

    def _fire(self, job: str, name: str, due: Callable[[], on.JobEvent]) -> None:
        del self._jobs[job][name]
        self._submit(due())
