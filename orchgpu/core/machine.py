"""The job machine: the decisions of one replica about the jobs in hand.

Durable truth lives outside: the message in SQS, the record and the leases in the scheduler's
journal, the result in the intermediate bucket. This machine holds only what one replica needs for
its next action, so its death loses nothing: any replica adopts the record and resumes at its step.
`table.py` has the transitions of a job by its phase; `docs/explanation/orchestrator.md` draws them.

Invariants:
1. A message is deleted only after `FinishJob` was answered; a job is finished only with a result.
2. Attempt n+1 is opened only after attempt n's leases ended and a new read found no result.
3. A failed call is an event; it is repeated with a back-off and never dropped.
4. A replica that is not the owner passes the receipt handle on and forgets the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from corekit.budget import Budget
from corekit.ids import IdSource
from corekit.machine import Decision
from orchgpu.core import actions as do
from orchgpu.core import adopting, reading
from orchgpu.core import events as on
from orchgpu.core.context import Context
from orchgpu.core.execution import HostFacts
from orchgpu.core.function import Function
from orchgpu.core.job import NOT_STARTED, Job, Phase
from orchgpu.core.table import row_of

#: Phases without an open attempt: the next attempt uses the function deployed by then.
_BETWEEN_ATTEMPTS = (Phase.READING, Phase.BACKOFF, Phase.RECHECKING)


class OrchestratorMachine:
    """The decisions of one replica: events in, actions out, for every job in hand."""

    def __init__(self, *, budget: Budget, session: str, ids: IdSource) -> None:
        self._context = Context(budget=budget, session=session, jitter=ids.stream("jitter"))
        self.jobs = self._context.jobs

    def set_functions(self, functions: Mapping[str, Function]) -> None:
        """Replace the deployed functions. An attempt keeps the one it was opened with."""
        self._context.functions = dict(functions)

    def set_hosts(self, facts: Mapping[str, HostFacts]) -> None:
        """Replace what is known of the hosts for functions with `execution: auto`, by name."""
        self._context.hosts = dict(facts)

    def waiting_count(self, function: str) -> int:
        """The number of jobs of a function that wait for a device; it limits receiving."""
        return sum(
            j.function.name == function and j.phase in NOT_STARTED for j in self.jobs.values()
        )

    def count(self, function: str) -> int:
        return sum(j.function.name == function for j in self.jobs.values())

    def apply(self, change: None) -> None:
        """Do nothing: this machine has no durable changes."""

    def handle(self, event: on.Event) -> Decision[None, do.Action]:
        actions = self._actions(event)
        return Decision(actions=(*self._context.turns.due(), *actions))

    def _actions(self, event: on.Event) -> Iterable[do.Action]:
        job = self.jobs.get(event.job) if isinstance(event, on.JobEvent) else None
        match event:
            case on.MessageReceived():
                return reading.message(self._context, event)
            case on.Orphaned():
                return (
                    adopting.orphan(self._context, event) if job is None else self._move(job, event)
                )
            case on.JobEvent():
                return () if job is None else self._job_event(job, event)
            case on.DrainRequested():
                self._context.draining = True
        return [action for job in list(self.jobs.values()) for action in self._move(job, event)]

    def _job_event(self, job: Job, event: on.JobEvent) -> Iterable[do.Action]:
        if not isinstance(event, on.CallFailed | on.TimerFired | on.RepeatDue):
            job.failures.clear()
        if job.phase in _BETWEEN_ATTEMPTS:
            deployed = self._context.functions.get(job.function.name)
            if deployed is not None and deployed.endpoints == job.function.endpoints:
                job.function = deployed  # its code is deployed already: so are its variables
        return self._move(job, event)

    def _move(self, job: Job, event: on.Event) -> Iterable[do.Action]:
        row = row_of(job, event)
        return () if row is None else row.run(self._context, job, event)
