"""The life of one attempt: opened, waiting, granted, staged, watched."""

from __future__ import annotations

from collections.abc import Iterable

from contract.states import JobState, Reason
from contract.timing import CAP_SLACK_S
from corekit.budget import Budget
from corekit.tracing.job import function_traceparent, job_trace_of
from gpu_scheduler.model import RETRY_AT, EndReason, LeaseState, Record
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.job import UNCOUNTED, Job, Phase
from orchgpu.core.lacked import lacked_in

#: Ends of attempts that do not count; BUSY: of one that found no device, and may ask again.
_NOT_COUNTED = UNCOUNTED | {Reason.PREEMPTED, Reason.NOT_ON_HOST, Reason.BUSY}


def remember(job: Job, record: Record) -> None:
    """Copy the record's state into the job."""
    job.revision = record.revision
    job.attempt, job.with_device = record.attempt, record.with_device
    job.strikes = record.strikes
    first = record.block.get("first_attempt", 1)
    job.first_attempt = first if isinstance(first, int) else 1
    not_started, since_s = record.block.get("not_started"), record.block.get("not_started_at_s")
    if isinstance(not_started, int) and isinstance(since_s, int | float):
        job.not_started, job.not_started_at_s = not_started, float(since_s)
    job.fell_back = record.block.get("fell_back") is True
    job.lacked = lacked_in(record.block)
    etag = record.block.get("replace_etag")
    job.replace_etag = etag if isinstance(etag, str) else None
    job.trace = job_trace_of(record.block) or job.trace  # that of its first owner continues


def open_next(job: Job) -> Iterable[do.Action]:
    """Open attempt n+1: one durable entry that is also the request."""
    job.phase, job.state = Phase.OPENING, JobState.RECEIVED
    job.end_reason, job.end_detail, job.staging_error = None, "", ""
    job.graced, job.checks, job.overdue, job.look_again = False, 0, None, False
    return [
        do.OpenAttempt(
            job=job.id,
            attempt=job.attempt + 1,
            revision=job.revision,
            payload=job.payload(),
            receipt_handle=job.newest_receipt_handle,
            request=job.request,
            hold=job.function.hold,
            received_at_s=job.received_at_s,
        )
    ]


def reopened(job: Job, event: on.Reopened) -> Iterable[do.Action]:
    """A redriven job starts a new budget of attempts; their numbers go on rising."""
    job.revision, job.attempt = event.record.revision, event.record.attempt
    job.first_attempt = job.attempt + 1
    job.not_started, job.not_started_at_s = 0, 0.0
    return open_next(job)


def receipt_handle_renewed(job: Job, event: on.ReceiptHandleRenewed) -> Iterable[do.Action]:
    """The message was received again, elsewhere: both receipt handles are kept, the newest wins."""
    job.add_receipt_handle("renewed", event.receipt_handle)
    return ()


def waiting(job: Job, event: on.AttemptWaiting, budget: Budget) -> Iterable[do.Action]:
    if job.phase is not Phase.OPENING:
        return ()
    job.revision, job.attempt = event.record.revision, event.record.attempt
    return wait(job, budget)


def wait(job: Job, budget: Budget) -> Iterable[do.Action]:
    job.phase, job.state, job.reason = Phase.WAITING, JobState.WAITING, Reason.BUSY
    return [do.ArmTimer(job=job.id, timer=do.Timer.HAND_BACK, in_s=budget.hand_back_after_s)]


def granted(job: Job, event: on.AttemptGranted, budget: Budget) -> Iterable[do.Action]:
    if job.phase not in (Phase.OPENING, Phase.WAITING):
        return ()
    if event.record is not None:
        job.revision = event.record.revision
    job.attempt, job.granted, job.with_device = event.attempt, event.granted, True
    if not event.pushed:
        return stage(job, budget)
    job.phase, job.state, job.reason = Phase.ACCEPTING, JobState.RESERVED, Reason.NONE
    return [do.RenewLease(job=job.id, attempt=job.attempt, lease=job.lease)]


def renewed(job: Job, event: on.LeaseRenewed, budget: Budget) -> Iterable[do.Action]:
    """The first renewal accepts a pushed grant. There is no envelope before it: until then the
    grant may pass to the next request, and the function would start without a lease."""
    if job.phase is not Phase.ACCEPTING or event.attempt != job.attempt:
        return ()
    return stage(job, budget)


def stage(job: Job, budget: Budget) -> list[do.Action]:
    job.phase, job.reason = Phase.STAGING, Reason.NONE
    if not job.with_device:
        job.state = JobState.RECEIVED
        return [_envelope(job)]
    job.state = JobState.RESERVED
    renewal = do.ArmTimer(job=job.id, timer=do.Timer.RENEW, in_s=budget.reserved_renew_s)
    return [_envelope(job), renewal]


def _envelope(job: Job) -> do.StageEnvelope:
    assert job.granted or not job.with_device, "an attempt with a device is staged when granted"
    return do.StageEnvelope(
        job=job.id,
        attempt=job.attempt,
        function=job.function,
        input=job.input,
        granted=job.granted,
        replace_etag=job.replace_etag,
        target=job.target,
        traceparent=function_traceparent(job.trace, job.attempt),
    )


def read_input_again(job: Job, budget: Budget) -> list[do.Action]:
    """The input may be there in a moment; a lease is renewed meanwhile."""
    job.input_misses += 1
    pause_s = min(
        budget.result_check_s * 2 ** min(job.input_misses - 1, 16), budget.result_check_s_max
    )
    read: do.Action
    if job.phase is Phase.READING:
        read = do.ReadInput(job=job.id, input=job.input, inline=job.function.inline)
    else:
        read = _envelope(job)
    return [do.RepeatLater(job=job.id, action=read, in_s=pause_s)]


def staged(job: Job, event: on.EnvelopeStaged, budget: Budget) -> Iterable[do.Action]:
    if job.phase is not Phase.STAGING or event.attempt != job.attempt:
        return ()
    job.phase = Phase.RECORDING
    job.state = job.state if job.state is JobState.RUNNING else JobState.STAGED
    return [
        do.RecordStaged(
            job=job.id,
            attempt=job.attempt,
            lease=job.lease if job.with_device else None,
            connect_by_s=budget.connect_by_s,
        )
    ]


def recorded(job: Job, event: on.StagedRecorded, budget: Budget) -> Iterable[do.Action]:
    if job.phase is not Phase.RECORDING or event.attempt != job.attempt:
        return ()
    job.strikes = 0
    return watch(job, budget, running=job.state is JobState.RUNNING)


def watch(job: Job, budget: Budget, *, running: bool) -> Iterable[do.Action]:
    """From here on the scheduler's pushes decide; the check is only a backup."""
    job.phase = Phase.RUNNING
    job.state = JobState.RUNNING if running else JobState.STAGED
    return [check_timer(job, budget)]


def lease_moved(job: Job, event: on.LeaseChanged) -> Iterable[do.Action]:
    if event.state is LeaseState.ACTIVE and not job.state.terminal:
        job.state = JobState.RUNNING
    return ()


def look_for_result(job: Job) -> Iterable[do.Action]:
    return read_result(job) if job.phase is Phase.RUNNING else ()


def read_result(job: Job) -> list[do.Action]:
    """One read at a time: the notice of a result and the end of its lease arrive close together."""
    if job.looking:
        job.look_again = True
        return []
    job.looking, job.look_again = True, False
    return [
        do.ReadResult(
            job=job.id,
            bucket=job.function.intermediate_bucket,
            attempt=job.attempt,
            target=job.target,
            replace_etag=job.replace_etag,
        )
    ]


def read_report(job: Job) -> list[do.Action]:
    """The attempt ended without a result: its report may give the reason."""
    job.phase = Phase.EXPLAINING
    bucket = job.function.intermediate_bucket
    return [do.ReadReport(job=job.id, bucket=bucket, attempt=job.attempt)]


def recheck(job: Job) -> Iterable[do.Action]:
    """The last check before attempt n+1: an earlier attempt may have committed after all."""
    job.phase = Phase.RECHECKING
    return read_result(job)


def resume_between_attempts(
    job: Job, record: Record, wall_s: float, budget: Budget
) -> Iterable[do.Action]:
    """Adopted between two attempts: the pause that the last owner drew still holds."""
    if record.reason in _NOT_COUNTED:
        job.first_attempt += 1  # that attempt does not count; the record has the older count
    if record.reason in UNCOUNTED:
        job.count_not_started(wall_s)
    pause_s = min(record.times.get(RETRY_AT, wall_s) - wall_s, budget.retry_s_max)
    if pause_s <= 0.0:
        return recheck(job)
    return back_off(job, pause_s)


def back_off(job: Job, pause_s: float) -> list[do.Action]:
    job.phase, job.state, job.reason = Phase.BACKOFF, JobState.RECEIVED, Reason.RETRY_BACKOFF
    return [do.ArmTimer(job=job.id, timer=do.Timer.NEXT_ATTEMPT, in_s=pause_s)]


def timer(job: Job, event: on.TimerFired, budget: Budget) -> Iterable[do.Action]:
    match event.timer, job.phase:
        case do.Timer.RENEW, Phase.STAGING | Phase.RECORDING if job.with_device:
            return [
                do.RenewLease(job=job.id, attempt=job.attempt, lease=job.lease),
                do.ArmTimer(job=job.id, timer=do.Timer.RENEW, in_s=budget.reserved_renew_s),
            ]
        case do.Timer.CHECK, Phase.RUNNING:
            job.checks += 1
            return [*look_for_result(job), check_timer(job, budget)]
        case do.Timer.NEXT_ATTEMPT, Phase.BACKOFF:
            return hand_back(job) if _too_old(job, event.at_s, budget) else recheck(job)
        case do.Timer.GRACE, Phase.GRACE:
            return read_report(job)
        case do.Timer.HAND_BACK, Phase.WAITING:
            return hand_back(job)
    return ()


def _too_old(job: Job, at_s: float, budget: Budget) -> bool:
    """SQS hides a message for 12 h at most: an attempt that may last longer needs a new receipt."""
    longest_s = budget.connect_by_s + job.function.timeout_s + CAP_SLACK_S
    return at_s + longest_s - job.received_at_s > budget.job_receipt_s_max


def hand_back(job: Job, *, even_granted: bool = False) -> list[do.Action]:
    """Release job and message: after an hour of waiting, to start a new 12 h, or for a drain.

    This replica owns the record until the scheduler has taken it back; redelivery then adopts it.
    """
    return [
        do.HandBack(
            job=job.id,
            queue_url=job.function.queue_url,
            receipt_handles=tuple(job.receipt_handles.values()),
            revision=job.revision,
            even_granted=even_granted,
        )
    ]


def check_timer(job: Job, budget: Budget) -> do.ArmTimer:
    pause_s = min(budget.result_check_s * 2 ** min(job.checks, 16), budget.result_check_s_max)
    return do.ArmTimer(job=job.id, timer=do.Timer.CHECK, in_s=pause_s)


def end_reason(record: Record) -> EndReason | None:
    """The reason in the record for the end of its newest lease; None when there is none."""
    try:
        return EndReason(record.reason or "")
    except ValueError:
        return None
