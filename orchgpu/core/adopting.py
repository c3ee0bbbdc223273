"""The owner of a job, by its record: conflicts, orphans, adoption."""

from __future__ import annotations

from collections.abc import Iterable

from corekit.budget import Budget
from gpu_scheduler.model import EndReason, Record, Step
from orchgpu.core import actions as do
from orchgpu.core import attempt, ending, max_cost, reading, without_device
from orchgpu.core import events as on
from orchgpu.core.context import Context
from orchgpu.core.job import Job, Phase, input_from_payload


def read_record(job: Job) -> list[do.Action]:
    """A push may be lost: of the end of a lease, or that this replica is the owner no longer."""
    return [do.ReadRecord(job=job.id)]


def grant_passed(job: Job, event: on.LeaseChanged) -> Iterable[do.Action]:
    """The grant was pushed before the answer that the request waits, and was passed over."""
    return () if event.reason is EndReason.NOT_ACCEPTED else read_record(job)


def conflict(context: Context, job: Job, event: on.RecordConflict) -> list[do.Action]:
    record = event.record
    if record is None:
        return _forgotten(job) or context.forget(job)
    if record.outcome is not None:
        return ending.delete(job)
    if not record.is_open and record.owner != context.session:
        passing = do.StoreReceiptHandle(job=job.id, receipt_handle=job.newest_receipt_handle)
        return [passing, *context.forget(job)]
    job.phase = Phase.ADOPTING
    return _adopt(context, job, record, event.wall_s, job.newest_receipt_handle)


def conflict_at_opening(context: Context, job: Job, event: on.RecordConflict) -> list[do.Action]:
    record = event.record
    if record is None:
        job.revision = 0
        return _forgotten(job) or ending.next_attempt(context, job, event.wall_s)
    if record.outcome is not None and job.replace_etag is not None:
        handle = job.newest_receipt_handle
        return [do.ReopenRecord(job=job.id, revision=record.revision, receipt_handle=handle)]
    if record.outcome is None and record.owner == context.session and job.revision > 0:
        job.revision = record.revision  # our own newer write: the scheduler moved the record
        return ending.next_attempt(context, job, event.wall_s)
    return conflict(context, job, event)


def _forgotten(job: Job) -> list[do.Action]:
    """The record was forgotten long after its end, if there is a result; else it never was."""
    if job.result is None:
        return []
    if job.result.attempt == 0:
        # its dead letter may have been sent: twice is better than not at all
        return ending.finish_as(job, job.result, job.committed_at_s)
    return ending.delete(job)  # decided and finished: only the message is left


def orphan(context: Context, event: on.Orphaned) -> Iterable[do.Action]:
    """A record without a live owner, of a job that is not in hand."""
    function = context.functions.get(event.function)
    source = input_from_payload(event.record.block)
    if context.draining or function is None or source is None:
        return ()
    job = context.jobs[event.job] = Job(
        id=event.job,
        function=function,
        input=source,
        received_at_s=event.at_s,
        receipt_handles={"record": event.record.handle},
        phase=Phase.ADOPTING,
    )
    # a beat at once: the last owner may have died just before its own
    adopting = _adopt(context, job, event.record, event.wall_s, None)
    return [*adopting, *reading.beat(context, job)]


def _adopt(
    context: Context, job: Job, record: Record, wall_s: float, receipt_handle: str | None
) -> list[do.Action]:
    """Adopt a record; before its last packing after a pause, for owners that were only silent."""
    suspect = record.owner is None and record.packing
    adopting = do.AdoptRecord(
        job=job.id, revision=record.revision, receipt_handle=receipt_handle, suspect=suspect
    )
    if not suspect:
        return [adopting]
    pause_s = _last_packing_pause_s(context.budget, record, wall_s)
    if pause_s > 0.0:
        return [do.RepeatLater(job=job.id, action=adopting, in_s=pause_s)]
    return context.turns.begin(job, adopting)


def _last_packing_pause_s(budget: Budget, record: Record, wall_s: float) -> float:
    if record.strikes != budget.strikes_max:
        return 0.0
    longest_s = budget.last_packing_pause_s
    return min(record.updated_s + longest_s - wall_s, longest_s)


def adopted(context: Context, job: Job, event: on.Adopted) -> list[do.Action]:
    attempt.remember(job, event.record)
    job.granted = event.granted
    return [*_resumed(context, job, event), *max_cost.timer(job, event.wall_s)]


def _resumed(context: Context, job: Job, event: on.Adopted) -> list[do.Action]:
    record, wall_s = event.record, event.wall_s
    if job.result is not None:
        return ending.finish_as(job, job.result, job.committed_at_s)
    match record.step:
        case Step.ENDED:
            return ending.delete(job)
        case Step.WAITING:
            return attempt.wait(context, job)
        case _ if record.packing and record.strikes > context.budget.strikes_max:
            return ending.poison(job, record.strikes, wall_s)
        case Step.RECEIVED if record.packing:
            return attempt.stage(context, job, wall_s)
        case Step.STAGED | Step.RUNNING if not record.with_device:
            return without_device.resume(context, job, record, wall_s)
        case Step.RESERVED if event.granted is not None:
            return attempt.stage(context, job, wall_s)
        case Step.STAGED | Step.RUNNING | Step.COMMITTED if event.granted is not None:
            watching = attempt.watch(context, job, running=record.step is not Step.STAGED)
            return [*watching, *attempt.order_run(job)]
        case Step.RECEIVED:
            return attempt.resume_between_attempts(context, job, record, wall_s)
    detail = "the lease ended while no orchestrator watched it"
    return ending.lease_ended(job, _end_reason(record), detail)


def _end_reason(record: Record) -> EndReason | None:
    """The reason in the record for the end of its newest lease; None when there is none."""
    try:
        return EndReason(record.reason or "")
    except ValueError:
        return None
