"""AWS Batch: jobs by the states that AWS documents, without arrays, dependencies and retries.

Source: AWS Batch user guide, "Job states", and API reference (SubmitJob, ListJobs, TerminateJob).
Every name of a queue is that of one queue, and of a definition that of one image: the program which
starts the jobs' processes decides what they run. Jobs end with this process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from corekit.ids import IdSource
from local_cloud.model.arns import Account, new_uuid
from local_cloud.model.errors import refused

SUBMITTED, RUNNABLE, STARTING, RUNNING = "SUBMITTED", "RUNNABLE", "STARTING", "RUNNING"
SUCCEEDED, FAILED = "SUCCEEDED", "FAILED"
OVER = frozenset({SUCCEEDED, FAILED})
#: Ended jobs are kept for some days there; here so many jobs are.
JOBS_MAX = 10_000
#: Of a job's overrides (SubmitJob, `containerOverrides`).
_OVERRIDES_CHARS_MAX = 8192


@dataclass(slots=True, kw_only=True)
class BatchJob:
    """One job. Mutable; only `Batch` changes it."""

    id: str
    name: str
    queue: str
    definition: str
    created_s: float
    variables: Mapping[str, str]
    timeout_s: float | None
    status: str = SUBMITTED
    reason: str = ""
    started_s: float | None = None
    stopped_s: float | None = None
    exit_code: int | None = None
    container_reason: str = ""

    def is_ending(self) -> bool:
        """Whether it was terminated."""
        return bool(self.reason)


@dataclass(slots=True)
class Batch:
    """All queues of an account; `places` jobs run at the same time."""

    account: Account
    ids: IdSource
    places: int = 2
    _jobs: dict[str, BatchJob] = field(default_factory=dict)

    def arn(self, job: BatchJob) -> str:
        return f"arn:aws:batch:{self.account.region}:{self.account.id}:job/{job.id}"

    def submit(self, now_s: float, body: Mapping[str, Any]) -> BatchJob:
        """Accept a job. Raises KeyError for a missing field, ClientException for one too many,
        and for overrides that are too long."""
        if unknown := {"arrayProperties", "dependsOn", "nodeOverrides"}.intersection(body):
            raise refused("ClientException", f"{min(unknown)} is not part of the embedded cloud")
        overrides = body.get("containerOverrides", {})
        if len(json.dumps(overrides, ensure_ascii=False)) > _OVERRIDES_CHARS_MAX:
            message = f"Container Overrides length must be at most {_OVERRIDES_CHARS_MAX}"
            raise refused("ClientException", message)
        given = overrides.get("environment", ())
        job = BatchJob(
            id=new_uuid(self.ids, "batch"),
            name=body["jobName"],
            queue=_name(body["jobQueue"]),
            definition=_name(body["jobDefinition"]),
            created_s=now_s,
            variables={one["name"]: one.get("value", "") for one in given},
            timeout_s=body.get("timeout", {}).get("attemptDurationSeconds"),
        )
        while len(self._jobs) >= JOBS_MAX:
            del self._jobs[next(iter(self._jobs))]
        self._jobs[job.id] = job
        return job

    def next(self) -> BatchJob | None:
        """The next job to be started, STARTING from now on; None while there is no place.

        A job becomes RUNNABLE at the look after its submission, as Batch's scheduler does it.
        """
        for job in self._jobs.values():
            job.status = RUNNABLE if job.status == SUBMITTED else job.status
        if sum(job.status in (STARTING, RUNNING) for job in self._jobs.values()) >= self.places:
            return None
        due = next((one for one in self._jobs.values() if one.status == RUNNABLE), None)
        if due is not None:
            due.status = STARTING
        return due

    def started(self, now_s: float, job: BatchJob) -> None:
        """Its container runs."""
        if job.status == STARTING:
            job.status, job.started_s = RUNNING, now_s

    def ended(self, now_s: float, job: BatchJob, exit_code: int | None, why: str = "") -> None:
        """Its container has ended, or was never started (None). Idempotent."""
        if job.status in OVER:
            return
        job.status = SUCCEEDED if exit_code == 0 and not job.reason else FAILED
        job.stopped_s, job.exit_code, job.container_reason = now_s, exit_code, why
        if exit_code is not None:
            job.reason = job.reason or "Essential container in task exited"

    def terminate(self, now_s: float, job_id: str, reason: str) -> BatchJob | None:
        """Note the end of a job. The job that has a container to be stopped, else None."""
        job = self._jobs.get(job_id)
        if job is None or job.status in OVER:
            return None
        job.reason = reason
        if job.status in (STARTING, RUNNING):
            return job
        self.ended(now_s, job, None)
        return None

    def listed(self, queue: str, name: str) -> list[BatchJob]:
        """Jobs of a queue with a name, in any status, newest first."""
        queue, name = _name(queue), name.lower()
        found = reversed(self._jobs.values())
        return [one for one in found if (one.queue, one.name.lower()) == (queue, name)]


def _name(given: str) -> str:
    """The name in a name, a name with a revision, or an ARN."""
    return given.rpartition("/")[2].partition(":")[0]
