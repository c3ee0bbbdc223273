"""The state that the transitions of all jobs of one replica share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from corekit.budget import Budget
from corekit.ids import RandomStream
from orchgpu.core import actions as do
from orchgpu.core.function import Function
from orchgpu.core.isolation import Isolation
from orchgpu.core.job import Job


@dataclass(slots=True)
class Context:
    """Mutable; one for each machine."""

    budget: Budget
    session: str  #: the name of this replica as owner of records
    jitter: RandomStream
    jobs: dict[str, Job] = field(default_factory=dict)  #: in hand, by id
    functions: Mapping[str, Function] = field(default_factory=dict)  #: deployed now
    draining: bool = False
    turns: Isolation = field(init=False)

    def __post_init__(self) -> None:
        self.turns = Isolation(self.jobs)

    def forget(self, job: Job) -> list[do.Action]:
        """Leave a job to its other owner, or to none."""
        self.jobs.pop(job.id, None)
        return [do.ForgetJob(job=job.id)]
