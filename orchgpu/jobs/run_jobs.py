"""The jobs of a run's steps as people see them: state, device and time, by result or by record.

Results show what has ended; what still runs is known to the scheduler alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from contract.states import RunState
from corekit.ids import JobId
from corekit.values import Value
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Record
from gpu_scheduler.protocol import ops
from orchgpu.core.runs.state import Step, StepJob
from orchgpu.jobs.runs import SeenRun
from orchgpu.jobs.summary import reason_of, shown_reason, state_of

#: Jobs of a run whose records are read, where their results were not; each costs a call.
ASKED_MAX = 200
_CALLS_AT_ONCE = 32

#: Records by job.
Records = Mapping[str, Record]
NO_RECORDS: Records = {}


class SeenJob(Value):
    """One job of a step. Times are of the wall clock."""

    id: str
    state: str  #: a JobState; ENDED: not read; "-": not known
    reason: str = ""  #: "" = none
    device: str = ""
    start_s: float | None = None  #: of the user's code
    end_s: float | None = None  #: of the user's code; None: it runs, or it never began

    @property
    def running(self) -> bool:
        return self.start_s is not None and self.end_s is None


class SeenStep(Value):
    """One step with its jobs."""

    step: Step
    jobs: tuple[SeenJob, ...]

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def ended(self) -> int:
        return sum(job.ended for job in self.step.jobs)

    @property
    def running(self) -> int:
        return sum(job.running for job in self.jobs)

    @property
    def devices(self) -> str:
        """The devices that its jobs had or have, each once."""
        return ", ".join(dict.fromkeys(job.device for job in self.jobs if job.device))

    @property
    def start_s(self) -> float | None:
        """The first start of its code."""
        return min((job.start_s for job in self.jobs if job.start_s is not None), default=None)

    @property
    def end_s(self) -> float | None:
        """The last end of its code; None while a job of it runs or may come."""
        if not self.step.state.terminal:
            return None
        return max((job.end_s for job in self.jobs if job.end_s is not None), default=None)

    def seconds(self, now_s: float) -> float | None:
        """From the first start of its code to the last end of it, or until now; None before it."""
        if self.start_s is None:
            return None
        return max(0.0, (now_s if self.end_s is None else self.end_s) - self.start_s)

    def spans(self, now_s: float) -> tuple[tuple[float, float], ...]:
        """The times at which its code ran; of a job that still runs until now."""
        return tuple(
            (job.start_s, max(job.start_s, now_s if job.end_s is None else job.end_s))
            for job in self.jobs
            if job.start_s is not None
        )


def steps_of(seen: SeenRun, records: Records = NO_RECORDS) -> tuple[SeenStep, ...]:
    """The steps of a run, in the order of the workflow."""
    return tuple(
        SeenStep(step=step, jobs=tuple(_job(job, records.get(job.id)) for job in step.jobs))
        for step in seen.state.steps.values()
    )


def _job(job: StepJob, record: Record | None) -> SeenJob:
    result = job.result
    if result is not None:
        start_s = result.times.get("EStart")
        end_s = result.times.get("EEnd", result.ended_at_s) if start_s is not None else None
        return SeenJob(
            id=job.id,
            state=result.state,
            reason=shown_reason(result.reason),
            device=_device(result.device),
            start_s=start_s,
            end_s=end_s,
        )
    if record is None or (record.outcome is not None) is not job.ended:  # of another try
        return SeenJob(id=job.id, state="ENDED" if job.ended else "-")
    return SeenJob(
        id=job.id,
        state=state_of(record),
        reason=shown_reason(reason_of(record)),
        device=_lent(record),
        start_s=record.times.get("RUNNING"),
        end_s=record.times.get("COMMITTED", record.updated_s) if job.ended else None,
    )


def _device(device: Mapping[str, object]) -> str:
    return f"{device.get('kind')} on {device.get('host')}" if device else ""


def _lent(record: Record) -> str:
    """The first device of its lease, in the words of a result."""
    if not record.with_device or not record.leases or not record.leases[-1].shares:
        return ""
    share = record.leases[-1].shares[0]
    return f"{share.kind} on {share.host}"


def unread_jobs(seen: SeenRun) -> Sequence[str]:
    """The jobs whose results were not read, which the scheduler may know; none of a run's end."""
    if seen.over or seen.state.state is not RunState.RUNNING:
        return ()
    jobs = [job for step in seen.state.steps.values() for job in step.jobs if job.result is None]
    jobs.sort(key=lambda job: job.ended)  # those that may run come first
    return [job.id for job in jobs[:ASKED_MAX]]


async def records_of(client: SchedulerClient, jobs: Sequence[str]) -> dict[str, Record]:
    """The scheduler's records of some jobs, by job; jobs that it does not know are left out."""
    at_once = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def read(job: str) -> Record | None:
        async with at_once:
            return (await client.ask(ops.RecordOf(holder=JobId(job)))).record

    found = await asyncio.gather(*map(read, jobs))
    return {record.holder: record for record in found if record is not None}
