"""The state that the transitions of all jobs of one replica share, with the turns of packing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from corekit.budget import Budget
from corekit.ids import RandomStream
from orchgpu.core import actions as do
from orchgpu.core.execution import HostFacts
from orchgpu.core.function import Function
from orchgpu.core.job import Job, Phase

#: Phases from the request for a share until the scheduler knows of the stored envelope: when the
#: orchestrator dies in one of them, the record shows that the job was being packed.
_PACKING = frozenset({Phase.OPENING, Phase.ACCEPTING, Phase.STAGING, Phase.RECORDING})
#: Phases of a suspect from its adoption to the end of its packing.
_ALONE = _PACKING | {Phase.ADOPTING}


class Isolation:
    """Isolation of suspects: a job that ends orchestrators must not add strikes to other jobs.

    A replica packs many jobs at once, and when it dies all of them look alike: reserved, not
    staged, without an owner, with one more strike. So suspects are packed one at a time, while
    nothing else is packed here, and nothing else begins until the envelope is stored: if this
    replica dies too, only that job gets another strike. Suspects are the jobs that are adopted so,
    and later every job with strikes: its reservation may expire before it is packed, and it opens
    another attempt. The others wait without an owner, which adds no strike; a grant that is pushed
    meanwhile is not accepted, which costs no attempt.

    A transition that begins to pack a job asks for its turn (`begin`); the machine gives the turns
    that are due after each event (`due`).
    """

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs  #: in hand
        self._alone: str | None = None  #: the suspect that is adopted or packed now
        self._suspects: list[do.Action] = []  #: the first step of each
        self._held: list[do.Action] = []

    def begin(self, job: Job, step: do.Action) -> list[do.Action]:
        """The first step of packing a job, or of adopting a suspect, if it is its turn."""
        if self._alone == job.id:
            return [step]
        if job.strikes > 0 or isinstance(step, do.AdoptRecord):
            if all(other.job != job.id for other in self._suspects):
                self._suspects.append(step)
            return []
        if self._alone is None and not self._suspects:
            return [step]
        self._held.append(step)
        return []

    def repeat(self, job: Job, step: do.Action) -> list[do.Action]:
        """A call that failed, once more; one that begins to pack needs another turn."""
        match step:
            case do.OpenAttempt() | do.AdoptRecord(suspect=True):
                return self.begin(job, step)
            case do.RenewLease() if job.phase is Phase.ACCEPTING:
                return self.begin(job, step)
        return [step]

    def survived(self, job: Job) -> None:
        """A call for the job failed and this replica still lives: the job need not be alone."""
        if self._alone == job.id:
            self._alone = None

    def due(self) -> list[do.Action]:
        """The steps whose turn came with an event: the next suspect's, else all that were held."""
        self._suspects = [step for step in self._suspects if step.job in self._jobs]
        self._held = [step for step in self._held if step.job in self._jobs]
        alone = self._jobs.get(self._alone or "")
        if alone is not None and alone.phase in _ALONE:
            return []
        self._alone = None
        if not self._suspects:
            due, self._held = self._held, []
            return due
        if self._is_packing():
            return []
        suspect = self._suspects.pop(0)
        self._alone = suspect.job
        return [suspect]

    def _is_packing(self) -> bool:
        waiting = {step.job for step in (*self._held, *self._suspects)}
        return any(j.phase in _PACKING and j.id not in waiting for j in self._jobs.values())


@dataclass(slots=True)
class Context:
    """Mutable; one for each machine."""

    budget: Budget
    session: str  #: the name of this replica as owner of records
    jitter: RandomStream
    jobs: dict[str, Job] = field(default_factory=dict)  #: in hand, by id
    functions: Mapping[str, Function] = field(default_factory=dict)  #: deployed now
    #: What the scheduler knows of those with `execution: auto`, by name.
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    draining: bool = False
    turns: Isolation = field(init=False)

    def __post_init__(self) -> None:
        self.turns = Isolation(self.jobs)

    def choose_place(self, job: Job) -> None:
        """Of a job's next attempt."""
        job.choose_place(self.hosts.get(job.function.name, HostFacts()))

    def forget(self, job: Job) -> list[do.Action]:
        """Leave a job to its other owner, or to none."""
        self.jobs.pop(job.id, None)
        return [do.ForgetJob(job=job.id)]
