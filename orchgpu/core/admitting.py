"""The promise of a job whose function has objectives: requested before its first attempt."""

from __future__ import annotations

from contract.states import JobState
from orchgpu.core import actions as do
from orchgpu.core import ending
from orchgpu.core import events as on
from orchgpu.core.context import Context
from orchgpu.core.dead_letters import DETAIL_CHARS_MAX
from orchgpu.core.job import Failure, Job, Phase


def begin(context: Context, job: Job, wall_s: float) -> list[do.Action]:
    """The first attempt; before it the promise, if the job needs one."""
    if not job.promise:
        return ending.next_attempt(context, job, wall_s)
    job.phase = Phase.ADMITTING
    return [
        do.RequestPromise(
            job=job.id,
            promise=job.promise,
            function=job.function,
            begun_at_s=job.begun_at_s(wall_s),
        )
    ]


def answered(context: Context, job: Job, event: on.PromiseAnswered) -> list[do.Action]:
    """The job begins, or it ends at once: one that was refused never waits for a device."""
    admission = event.admission
    if admission is None or admission.granted:
        return ending.next_attempt(context, job, event.wall_s)
    failure = Failure(reason=admission.reason, detail=admission.why[:DETAIL_CHARS_MAX])
    return ending.conclude(job, JobState.REJECTED, failure, event.wall_s)
