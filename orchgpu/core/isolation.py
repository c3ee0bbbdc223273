"""Isolation of suspects: a job that ends orchestrators must not add strikes to other jobs.

A replica packs many jobs at once, and when it dies all of them look alike: reserved, not staged,
without an owner, with one more strike. So suspects are packed one at a time, while nothing else is
packed here, and nothing else begins until the envelope is stored: if this replica dies too, only
that job gets another strike. Suspects are the jobs that are adopted so, and later every job with
strikes: its reservation may expire before it is packed, and it opens another attempt. The others
wait without an owner, which adds no strike; a grant that is pushed meanwhile is not accepted, which
costs no attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from corekit.budget import Budget
from gpu_scheduler.model import Record
from orchgpu.core import actions as do
from orchgpu.core.job import Job, Phase

#: Phases from the request for a share until the scheduler knows of the stored envelope: when the
#: orchestrator dies in one of them, the record shows that the job was being packed.
_PACKING = frozenset({Phase.OPENING, Phase.ACCEPTING, Phase.STAGING, Phase.RECORDING})
#: Phases of a suspect from its adoption to the end of its packing.
_ALONE = _PACKING | {Phase.ADOPTING}


class Isolation:
    """The suspect that is packed alone, and the actions that wait for it."""

    def __init__(self) -> None:
        self._alone: str | None = None  #: the suspect that is adopted or packed now
        self._suspects: deque[do.Action] = deque()  #: the first step of each
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
        if self._alone == action.job:
            return False
        if _is_of_suspect(action, jobs):
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
        held = {action.job for action in (*self._held, *self._suspects)}
        return any(job.phase in _PACKING and name not in held for name, job in jobs.items())

    def _drop_unknown_jobs(self, jobs: Mapping[str, Job]) -> None:
        self._suspects = deque(action for action in self._suspects if action.job in jobs)
        self._held = deque(action for action in self._held if action.job in jobs)


def adoption(
    job: Job, record: Record, wall_s: float, budget: Budget, receipt_handle: str | None
) -> do.Action:
    """Adopt a record; before its last packing after a pause, for owners that were only silent."""
    suspect = record.owner is None and record.packing
    adopting = do.AdoptRecord(
        job=job.id, revision=record.revision, receipt_handle=receipt_handle, suspect=suspect
    )
    if not suspect or record.strikes != budget.strikes_max:
        return adopting
    longest_s = budget.last_packing_pause_s
    pause_s = min(record.updated_s + longest_s - wall_s, longest_s)
    if pause_s <= 0.0:
        return adopting
    return do.RepeatLater(job=job.id, action=adopting, in_s=pause_s)


def _is_of_suspect(action: do.Action, jobs: Mapping[str, Job]) -> bool:
    """True for the first step of a job that may have ended an orchestrator."""
    if isinstance(action, do.AdoptRecord):
        return action.suspect
    job = jobs.get(action.job)
    return job is not None and job.strikes > 0 and _begins(action, jobs)


def _begins(action: do.Action, jobs: Mapping[str, Job]) -> bool:
    """True for an action that begins packing: a request, or the first renewal of its lease."""
    if isinstance(action, do.RenewLease):
        return _is_in(jobs.get(action.job), {Phase.ACCEPTING})
    return isinstance(action, do.OpenAttempt)


def _is_in(job: Job | None, phases: Iterable[Phase]) -> bool:
    return job is not None and job.phase in phases
