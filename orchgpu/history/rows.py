"""From a job record to the rows of the history. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from corekit.values import Value
from gpu_scheduler.model import JobLease, Record, Step
from orchgpu.core.job import input_from_payload
from orchgpu.jobs.intervals import uploaded_s

#: Outcome of an attempt after which the job was tried again.
RETRIED = "RETRIED"


class JobRow(Value):
    """One job as its record was last seen. Times are of the scheduler's wall clock."""

    job: str
    function: str
    tenant: str
    bucket: str
    key: str
    bytes: int
    state: str
    reason: str | None
    attempt: int
    device: str  #: of its newest lease, for people
    uploaded_s: float | None
    received_s: float | None
    waiting_s: float | None  #: the newest attempt began to wait
    reserved_s: float | None
    running_s: float | None  #: the function's session opened
    ended_s: float | None
    changed_s: float


#: One row of a table, by its columns, in their order.
Row: TypeAlias = dict[str, object]


def job_row(record: Record) -> JobRow:
    source, times = input_from_payload(record.block), record.times
    ended = record.step is Step.ENDED
    return JobRow(
        job=record.holder,
        function=_function(record),
        tenant=record.tenant or "",
        bucket="" if source is None else source.bucket,
        key="" if source is None else source.key,
        bytes=0 if source is None else source.size,
        state=record.outcome or record.step.value,
        reason=record.reason,
        attempt=record.attempt,
        device=record.device_text,
        uploaded_s=uploaded_s(record),
        received_s=times.get(Step.RECEIVED),
        waiting_s=times.get(Step.WAITING),
        reserved_s=times.get(Step.RESERVED),
        running_s=times.get(Step.RUNNING),
        ended_s=times.get(Step.ENDED, record.updated_s) if ended else None,
        changed_s=record.updated_s,
    )


def step_rows(record: Record) -> Iterator[Row]:
    """The run and the step of a job; none for a job of its own."""
    source = input_from_payload(record.block)
    if source is not None and source.step is not None:
        of = source.step
        yield {"job": record.holder, "run": of.run, "workflow": of.workflow, "step": of.step}


def lease_rows(record: Record) -> Iterator[Row]:
    """The rows of a job's leases, live (`ended_s` None) or over."""
    for one in record.leases:
        yield {
            "lease": one.lease,
            "job": record.holder,
            "attempt": one.attempt,
            "function": _function(record),
            "tenant": record.tenant or "",
            **_held(one),
            "ended_s": one.ended_s,
            "reason": None if one.reason is None else one.reason.value,
            "loading_s": one.loading_s,
        }


def _held(one: JobLease) -> Row:
    """The times of a lease; one that was granted ahead holds its device from its booking only."""
    since_s, freed_s = one.granted_s, one.freed_s
    if one.ahead and one.booked_s is None:
        since_s = freed_s = one.granted_s if one.ended_s is None else one.ended_s
    elif one.booked_s is not None:
        since_s = one.booked_s
    return {"granted_s": since_s, "active_s": one.active_s, "freed_s": freed_s}


def wait_rows(record: Record) -> Iterator[Row]:
    """The waits of the job's functions for devices that were not free yet."""
    for one in record.leases:
        if one.ahead:
            until_s = one.ended_s if one.booked_s is None else one.booked_s
            yield {"lease": one.lease, "since_s": one.granted_s, "until_s": until_s}


def share_rows(record: Record) -> Iterator[Row]:
    """The parts of devices that the job's leases hold."""
    for lease in record.leases:
        for share in lease.shares:
            yield {
                "lease": lease.lease,
                "device": share.device,
                "host": share.host,
                "position": share.index,
                "kind": share.kind.value,
                "model": share.model,
                "memory_mib": share.memory_mib,
                "compute_pct": share.compute_guarantee_pct,
                "exclusive": share.exclusive,
            }


def attempt_rows(record: Record) -> Iterator[Row]:
    """The rows of a job's attempts that are over, the newest one included."""
    for one in record.attempts:
        yield _attempt(record, one.n, one.outcome or RETRIED, one.reason, one.ended_s)
    if record.step is Step.ENDED:
        outcome = record.outcome or record.step.value
        yield _attempt(record, record.attempt, outcome, record.reason, record.updated_s)
    elif record.step is Step.RECEIVED and record.reason is not None:
        yield _attempt(record, record.attempt, RETRIED, record.reason, record.updated_s)


def _attempt(record: Record, n: int, outcome: str, reason: str | None, ended_s: float) -> Row:
    return {
        "job": record.holder,
        "n": n,
        "function": _function(record),
        "tenant": record.tenant or "",
        "outcome": outcome,
        "reason": reason or "NONE",
        "ended_s": ended_s,
    }


def _function(record: Record) -> str:
    name = record.block.get("function")
    return name if isinstance(name, str) else ""
