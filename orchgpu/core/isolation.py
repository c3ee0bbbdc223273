"""Isolation of suspects: a job that kills orchestrators must not add strikes to other jobs.

A replica packs many jobs at once, and when it dies all of them look alike: reserved, not staged,
without an owner. Adopting a job counts a strike. So suspects are adopted one at a time, while
nothing else is packed here, and nothing else begins until the envelope is stored: if this replica
dies too, only that job gets another strike. The others wait without an owner, which adds no strike;
a grant that is pushed meanwhile is not accepted, which costs no attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from orchgpu.core import actions as do
from orchgpu.core.job import Job, Phase

#: Phases from the request for a share until the scheduler knows of the stored envelope: when the
#: orchestrator dies in one of them, the record shows that the job was being packed.
_PACKING = frozenset({Phase.OPENING, Phase.ACCEPTING, Phase.STAGING, Phase.RECORDING})
#: Phases of a suspect from its adoption to the end of its packing.
_ALONE = frozenset({Phase.ADOPTING, Phase.STAGING, Phase.RECORDING})


class Isolation:
    """The suspect that is packed alone, and the actions that wait for it."""

    def __init__(self) -> None:
        self._alone: str | None = None  #: the suspect that is adopted or packed now
        self._suspects: deque[do.AdoptRecord] = deque()
        self._held: deque[do.Action] = deque()

    def survived(self, job: str) -> None:
        """A call for the job failed and this replica still lives: the job need not be alone."""
        if self._alone == job:
            self._alone = None

    def admitted(self, actions: Iterable[do.Action], jobs: Mapping[str, Job]) -> list[do.Action]:
        """The actions that may be performed now, together with those that waited until now."""
        if self._alone is not None and not _is_in(jobs.get(self._alone), _ALONE):
            self._alone = None
        self._drop_unknown_jobs(jobs)
        allowed = [action for action in actions if not self._holds_back(action, jobs)]
        if self._alone is None and self._suspects and not self._packing(jobs):
            suspect = self._suspects.popleft()
            self._alone = suspect.job
            allowed.insert(0, suspect)
        if self._alone is None and not self._suspects:
            allowed += self._held
            self._held.clear()
        return allowed

    def _holds_back(self, action: do.Action, jobs: Mapping[str, Job]) -> bool:
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

    def _drop_unknown_jobs(self, jobs: Mapping[str, Job]) -> None:
        self._suspects = deque(action for action in self._suspects if action.job in jobs)
        self._held = deque(action for action in self._held if action.job in jobs)


def _begins(action: do.Action, jobs: Mapping[str, Job]) -> bool:
    """True for an action that begins packing: a request, or the first renewal of its lease."""
    if isinstance(action, do.RenewLease):
        return _is_in(jobs.get(action.job), {Phase.ACCEPTING})
    return isinstance(action, do.OpenAttempt)


def _is_in(job: Job | None, phases: Iterable[Phase]) -> bool:
    return job is not None and job.phase in phases
