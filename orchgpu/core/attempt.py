"""The life of one attempt: opened, waiting, granted, staged, watched."""

from __future__ import annotations

from collections.abc import Iterable

from contract.states import JobState, Reason
from contract.timing import CAP_SLACK_S
from corekit.tracing.job import function_traceparent, job_trace_of
from gpu_scheduler.model import RETRY_AT, Record
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core import max_cost
from orchgpu.core.context import Context
from orchgpu.core.execution import Place
from orchgpu.core.function import Target
from orchgpu.core.job import UNCOUNTED, UNSTAGED_SOON, Job, Phase
from orchgpu.core.not_on_host import lacked_in

#: Ends of attempts that do not count; BUSY: of one that found no device, and may ask again.
_NOT_COUNTED = UNCOUNTED | {
    Reason.PREEMPTED,
    Reason.WITHDRAWN,
    Reason.NOT_ON_HOST,
    Reason.BUSY,
}


def remember(job: Job, record: Record) -> None:
    job.revision = record.revision
    job.attempt, job.with_device = record.attempt, record.with_device
    job.strikes = record.strikes
    first = record.block.get("first_attempt", 1)
    job.first_attempt = first if isinstance(first, int) else 1
    not_started, since_s = record.block.get("not_started"), record.block.get("not_started_at_s")
    if isinstance(not_started, int) and isinstance(since_s, int | float):
        job.not_started, job.not_started_at_s = not_started, float(since_s)
    job.fell_back = record.block.get("fell_back") is True
    _remember_place(job, record)
    job.lacked = lacked_in(record.block)
    max_cost.remember(job, record)
    etag = record.block.get("replace_etag")
    job.replace_etag = etag if isinstance(etag, str) else None
    job.trace = job_trace_of(record.block) or job.trace  # that of its first owner continues


def _remember_place(job: Job, record: Record) -> None:
    stored = record.block.get("place")
    job.place = next((one for one in Place if one == stored), Place.LAMBDA)
    job.place_why = str(record.block.get("place_why", ""))
    job.queue = str(record.block.get("queue", ""))
    job.ran_out = record.block.get("ran_out") is True
    job.ordered, job.runs = False, ()  # by this replica
    form = record.block.get("form")  # an older version's record has none
    job.form = form if isinstance(form, str) else job.function.envelope_form(job.place)


def open_next(context: Context, job: Job) -> list[do.Action]:
    """Open attempt n+1: one durable entry that is also the request.

    A replica that is about to end opens none: it could not pack it in time, and would leave a
    strike. The job goes back, and another replica opens the attempt.
    """
    if context.draining:
        return [_handing_back(job, even_granted=True), *context.forget(job)]
    context.choose_place(job)
    job.phase, job.state = Phase.OPENING, JobState.RECEIVED
    job.end_reason, job.end_detail, job.staging_error = None, "", ""
    job.graced, job.checks, job.overdue, job.look_again = False, 0, None, False
    job.ordered, job.runs = False, ()
    opening = do.OpenAttempt(
        job=job.id,
        attempt=job.attempt + 1,
        revision=job.revision,
        payload=job.payload(),
        receipt_handle=job.newest_receipt_handle,
        request=job.attempt_request,
        hold=job.function.hold,
        received_at_s=job.received_at_s,
    )
    return context.turns.begin(job, opening)


def reopened(context: Context, job: Job, event: on.Reopened) -> list[do.Action]:
    """A redriven job starts a new budget of attempts; their numbers go on rising."""
    job.revision, job.attempt = event.record.revision, event.record.attempt
    job.first_attempt = job.attempt + 1
    job.not_started, job.not_started_at_s = 0, 0.0
    job.paid_usd, job.paid_attempt = 0.0, job.attempt
    return open_next(context, job)


def receipt_handle_renewed(job: Job, event: on.ReceiptHandleRenewed) -> Iterable[do.Action]:
    """The message was received again, elsewhere: both receipt handles are kept, the newest wins."""
    job.add_receipt_handle("renewed", event.receipt_handle)
    return ()


def waiting(context: Context, job: Job, event: on.AttemptWaiting) -> list[do.Action]:
    job.revision, job.attempt = event.record.revision, event.record.attempt
    job.opened(job.attempt, event.at_s, event.wall_s)
    return wait(context, job)


def wait(context: Context, job: Job) -> list[do.Action]:
    job.phase, job.state, job.reason = Phase.WAITING, JobState.WAITING, Reason.BUSY
    in_s = context.budget.hand_back_after_s
    return [do.ArmTimer(job=job.id, timer=do.Timer.HAND_BACK, in_s=in_s)]


def granted(context: Context, job: Job, event: on.AttemptGranted) -> list[do.Action]:
    if event.record is not None:
        job.revision = event.record.revision
    job.attempt, job.granted, job.with_device = event.attempt, event.granted, True
    job.ahead = bool(event.granted.lease.after)
    if not event.pushed:
        job.opened(job.attempt, event.at_s, event.wall_s)
        return stage(context, job, event.wall_s)
    job.phase, job.state, job.reason = Phase.ACCEPTING, JobState.RESERVED, Reason.NONE
    accepting = do.RenewLease(job=job.id, attempt=job.attempt, lease=job.lease)
    return context.turns.begin(job, accepting)


def accepted(context: Context, job: Job, event: on.LeaseRenewed) -> list[do.Action]:
    """A pushed grant is accepted by a renewal before its envelope is stored: until then it may pass
    to the next request, and the function would start without a lease."""
    return stage(context, job, event.wall_s)


def stage(context: Context, job: Job, wall_s: float) -> list[do.Action]:
    """Store the envelope; from now on the attempt is paid."""
    job.phase, job.reason = Phase.STAGING, Reason.NONE
    paying = max_cost.begin(job, wall_s)
    if not job.with_device:
        job.state = JobState.RECEIVED
        return [envelope(job), *paying]
    job.state = JobState.RESERVED
    return [envelope(job), _renewal(context, job), *paying]


def _renewal(context: Context, job: Job) -> do.ArmTimer:
    in_s = context.budget.reserved_renew_s
    return do.ArmTimer(job=job.id, timer=do.Timer.RENEW, in_s=in_s)


def renewal_due(context: Context, job: Job) -> list[do.Action]:
    renewing = do.RenewLease(job=job.id, attempt=job.attempt, lease=job.lease)
    return [renewing, _renewal(context, job)]


def envelope(job: Job) -> do.StageEnvelope:
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
        cost=max_cost.of_attempt(job),
        place=job.place,
        form=job.form,
    )


def staged(context: Context, job: Job) -> list[do.Action]:
    job.phase = Phase.RECORDING
    job.state = job.state if job.state is JobState.RUNNING else JobState.STAGED
    return [
        do.RecordStaged(
            job=job.id,
            attempt=job.attempt,
            lease=job.lease if job.with_device else None,
            connect_by_s=context.budget.connect_by_s,
        ),
        *order_run(job),
    ]


def order_run(job: Job) -> list[do.Action]:
    """Order the run of an attempt whose place is a host; a repetition renews its credentials.

    Nothing else starts it, so an order that fails is repeated until the lease ends. In Batch the
    order is a job of Batch's, for a service a request.
    """
    if job.place is Place.LAMBDA or (job.place is Place.HOST and job.granted is None):
        return []
    job.ordered = True
    ordering = do.OrderRun(
        job=job.id,
        attempt=job.attempt,
        function=job.function,
        granted=job.granted,
        form=job.form,
        queue=job.queue,
    )
    return [ordering]


def run_ordered(job: Job, event: on.RunOrdered) -> list[do.Action]:
    """The host has the order; credentials are renewed before they end."""
    job.order_error, job.crowded = "", False
    if event.again_in_s is None:
        return []
    return [do.ArmTimer(job=job.id, timer=do.Timer.ORDER, in_s=event.again_in_s)]


def recorded(context: Context, job: Job) -> list[do.Action]:
    job.strikes = 0
    return watch(context, job, running=job.state is JobState.RUNNING)


def watch(context: Context, job: Job, *, running: bool) -> list[do.Action]:
    """From here on the scheduler's pushes decide; the check is only a backup."""
    job.phase = Phase.RUNNING
    job.state = JobState.RUNNING if running else JobState.STAGED
    return [check_timer(context, job)]


def lease_reserved(job: Job, event: on.LeaseChanged) -> list[do.Action]:
    """A lease that was granted ahead is booked, or gave way and waits again."""
    return max_cost.reserved(job, event.wall_s, ahead=event.ahead)


def lease_active(job: Job, event: on.LeaseChanged) -> list[do.Action]:
    if not job.state.terminal:
        job.state = JobState.RUNNING
    return max_cost.opened(job, event.wall_s)


def object_noticed(job: Job, event: on.ObjectNoticed) -> Iterable[do.Action]:
    """A foreign function has written; another replica finds its job by its own checks."""
    return read_result(job) if job.target == Target(bucket=event.bucket, key=event.key) else ()


def check_due(context: Context, job: Job) -> list[do.Action]:
    job.checks += 1
    return [*read_result(job), check_timer(context, job)]


def check_timer(context: Context, job: Job) -> do.ArmTimer:
    in_s = check_pause_s(context, job.checks)
    return do.ArmTimer(job=job.id, timer=do.Timer.CHECK, in_s=in_s)


def check_pause_s(context: Context, checks: int) -> float:
    pause_s: float = context.budget.result_check_s * 2 ** min(checks, 16)
    return min(pause_s, context.budget.result_check_s_max)


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


def recheck(job: Job) -> list[do.Action]:
    """The last check before attempt n+1: an earlier attempt may have committed after all."""
    job.phase = Phase.RECHECKING
    return read_result(job)


def resume_between_attempts(
    context: Context, job: Job, record: Record, wall_s: float
) -> list[do.Action]:
    """Adopted between two attempts: the pause that the last owner drew still holds."""
    if record.reason in _NOT_COUNTED:
        job.first_attempt += 1  # that attempt does not count; the record has the older count
    job.withdrawn = record.reason == Reason.WITHDRAWN
    job.note_end(record.reason or "")
    if record.reason in UNCOUNTED:
        job.count_not_started(wall_s)
    pause_s = min(record.times.get(RETRY_AT, wall_s) - wall_s, context.budget.retry_s_max)
    return recheck(job) if pause_s <= 0.0 else back_off(job, pause_s)


def back_off(job: Job, pause_s: float) -> list[do.Action]:
    job.phase, job.state, job.reason = Phase.BACKOFF, JobState.RECEIVED, Reason.RETRY_BACKOFF
    return [do.ArmTimer(job=job.id, timer=do.Timer.NEXT_ATTEMPT, in_s=pause_s)]


def next_attempt_due(context: Context, job: Job, event: on.TimerFired) -> list[do.Action]:
    """SQS hides a message for 12 h at most: an attempt that may last longer needs a new receipt."""
    if event.at_s + job.start_s(context.budget) > latest_start_s(context, job):
        return hand_back(job)
    return recheck(job)


def latest_start_s(context: Context, job: Job) -> float:
    """Monotonic: a later start may outlast the receipt of the job's message."""
    receipt_s = context.budget.job_receipt_s_max
    return job.received_at_s + receipt_s - job.function.timeout_s - CAP_SLACK_S


def drained(context: Context, job: Job, event: on.DrainRequested) -> Iterable[do.Action]:
    """Hand the job back; one that is being opened or packed has some time, as it nearly runs."""
    if job.phase in UNSTAGED_SOON and not event.last:
        return ()
    return [_handing_back(job, even_granted=True), *context.forget(job)]


def left(job: Job) -> list[do.Action]:
    """Wake-ups go to the completion queue: in that of jobs they would wait behind new jobs."""
    return [
        do.Leave(
            job=job.id,
            queue_url=job.function.queue_url,
            receipt_handles=tuple(job.receipt_handles.values()),
            revision=job.revision,
            wake_queue=job.function.completion_url.rpartition("/")[2],
        )
    ]


def hand_back(job: Job) -> list[do.Action]:
    """Release job and message: after an hour of waiting, or to start a new 12 h."""
    return [_handing_back(job, even_granted=False)]


def _handing_back(job: Job, *, even_granted: bool) -> do.HandBack:
    """This replica owns the record until the scheduler has it back; redelivery then adopts it."""
    return do.HandBack(
        job=job.id,
        queue_url=job.function.queue_url,
        receipt_handles=tuple(job.receipt_handles.values()),
        revision=job.revision,
        even_granted=even_granted,
    )
