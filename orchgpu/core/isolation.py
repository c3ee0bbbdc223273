"""Suspects are packed alone: an orchestrator that dies of one job must not strike its neighbours.

A replica packs many jobs at once, and when it dies all of them look alike: reserved, not staged,
without an owner. Adopting one counts a strike. So one is adopted at a time, when nothing else is
being packed here, and nothing else is begun until its envelope is stored: if this replica dies
too, that job alone is struck again. The others wait without an owner, which strikes nobody; a grant
that is pushed meanwhile is not taken, which costs no attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from orchgpu.core import actions as do
from orchgpu.core.job import Job, Phase

#: Between the request for a share and the scheduler's knowledge that the envelope is stored: who
#: dies in one of them has packed the job, as far as its record tells.
_PACKING = frozenset({Phase.OPENING, Phase.ACCEPTING, Phase.STAGING, Phase.RECORDING})
#: What a suspect is in from its adoption to the end of its packing.
_ALONE = frozenset({Phase.ADOPTING, Phase.STAGING, Phase.RECORDING})


class Isolation:
    """What is held back while a suspect is in hand, and which one that is."""

    def __init__(self) -> None:
        self._alone: str | None = None  #: the suspect that is adopted or packed now
        self._suspects: deque[do.AdoptRecord] = deque()
        self._held: deque[do.Action] = deque()

    def survived(self, job: str) -> None:
        """A call for it failed and this replica still lives: it is no danger to its neighbours."""
        if self._alone == job:
            self._alone = None

    def admitted(self, actions: Iterable[do.Action], jobs: Mapping[str, Job]) -> list[do.Action]:
        """What of the actions may be done now, with what was held back and may be done now."""
        if self._alone is not None and not _is_in(jobs.get(self._alone), _ALONE):
            self._alone = None
        self._forget_strangers(jobs)
        allowed = [action for action in actions if not self._keeps(action, jobs)]
        if self._alone is None and self._suspects and not self._packing(jobs):
            suspect = self._suspects.popleft()
            self._alone = suspect.job
            allowed.insert(0, suspect)
        if self._alone is None and not self._suspects:
            allowed += self._held
            self._held.clear()
        return allowed

    def _keeps(self, action: do.Action, jobs: Mapping[str, Job]) -> bool:
        if isinstance(action, do.AdoptRecord) and action.suspect:
            if all(known.job != action.job for known in self._suspects):
                self._suspects.append(action)
            return True
        if self._alone is None and not self._suspects:
            return False
        if not _begins(action, jobs):
            return False
        self._held.append(action)
        return True

    def _packing(self, jobs: Mapping[str, Job]) -> bool:
        held = {action.job for action in self._held}
        return any(job.phase in _PACKING and name not in held for name, job in jobs.items())

    def _forget_strangers(self, jobs: Mapping[str, Job]) -> None:
        self._suspects = deque(action for action in self._suspects if action.job in jobs)
        self._held = deque(action for action in self._held if action.job in jobs)


def _begins(action: do.Action, jobs: Mapping[str, Job]) -> bool:
    """With these the packing of a job begins: a request, or the first renewal of its lease."""
    if isinstance(action, do.RenewLease):
        return _is_in(jobs.get(action.job), {Phase.ACCEPTING})
    return isinstance(action, do.OpenAttempt)


def _is_in(job: Job | None, phases: Iterable[Phase]) -> bool:
    return job is not None and job.phase in phases
