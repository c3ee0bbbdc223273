"""The end of an attempt and of a job: result, report, failure, dead letter, finish, delete."""

from __future__ import annotations

from collections.abc import Iterable

from contract.result import Report, Result
from contract.states import JobState, Reason
from corekit.values import replace
from gpu_scheduler.model import EndReason
from orchgpu.core import actions as do
from orchgpu.core import attempt, max_cost, without_device
from orchgpu.core import events as on
from orchgpu.core.context import Context
from orchgpu.core.dead_letters import DETAIL_CHARS_MAX, dead_letter_body
from orchgpu.core.execution import Place
from orchgpu.core.job import UNCOUNTED, Failure, Job, Phase
from orchgpu.core.not_on_host import Lacked, newly_lacked
from orchgpu.core.notify import Notice, notice_bodies
from orchgpu.core.provenance import provenance_of
from orchgpu.core.runs.messages import advance_body

#: End of a lease → reason of the attempt that held it.
_REASON_OF_END = {
    EndReason.NOT_STARTED: Reason.NOT_STARTED,
    EndReason.EXPIRED: Reason.RESERVATION_EXPIRED,
    EndReason.SESSION_LOST: Reason.SESSION_LOST,
    EndReason.CAP: Reason.CAP,
    EndReason.REVOKED: Reason.REVOKED,
    EndReason.HOST_LOST: Reason.HOST_LOST,
    EndReason.HOST_RESTARTED: Reason.HOST_LOST,
    EndReason.DEVICE_BAD: Reason.DEVICE_BAD,
    EndReason.DATA_ERROR: Reason.DATA_ERROR,
    EndReason.PREEMPTED: Reason.PREEMPTED,
    EndReason.WITHDRAWN: Reason.WITHDRAWN,
}
#: Ends after which Lambda's own failure record may still explain more.
_WORTH_WAITING = (EndReason.SESSION_LOST, EndReason.CAP, EndReason.DONE, EndReason.RELEASED, None)
#: Failures that another attempt would meet again.
_FINAL = (Reason.SECRET_ERROR, Reason.DATA_ERROR)
#: Outcomes that an operator may want to run again: they leave a dead-letter copy.
DEAD_LETTERED = ("FAILED", "REJECTED")
NON_RETRYABLE_TRIES_MAX = 5  #: this many refusals of a read or a request end the job
RETRY_S_MAX = 10.0  #: a failed call is repeated at least this often (scaled with the budget)


# ---------------------------------------------------------------------- an attempt ends


def lease_changed(job: Job, event: on.LeaseChanged) -> Iterable[do.Action]:
    if event.reason is EndReason.NOT_ACCEPTED:
        return ()  # nothing was tried: the request keeps its place, a new grant comes
    max_cost.end(job, event.wall_s)
    job.lease_over_at_s = event.at_s
    return lease_ended(job, event.reason, event.detail)


def lease_ended(job: Job, reason: EndReason | None, detail: str) -> list[do.Action]:
    """The device is free again. Only the result shows whether the job succeeded."""
    job.end_reason, job.end_detail = reason, detail
    job.phase = Phase.CHECKING
    return attempt.read_result(job)


def result_read(context: Context, job: Job, event: on.ResultRead) -> Iterable[do.Action]:
    """A look for the result on the way. Between attempts, "absent" has a consequence."""
    job.looking = False
    if event.result is not None and not _is_replaced_failure(job, event):
        return finish_as(job, event.result, event.at_s)
    if job.look_again:
        return attempt.read_result(job)
    if job.phase is Phase.CHECKING:
        return attempt.read_report(job)
    return next_attempt(context, job, event.wall_s) if job.phase is Phase.RECHECKING else ()


def next_attempt(context: Context, job: Job, wall_s: float) -> list[do.Action]:
    """Open the next attempt, unless the job has cost too much for another one."""
    refusal = max_cost.refusal(job, wall_s)
    if refusal is not None:
        return conclude(job, JobState.FAILED, refusal, wall_s)
    return attempt.open_next(context, job)


def late_result_read(job: Job) -> Iterable[do.Action]:
    """The job was decided meanwhile."""
    job.looking = False
    return ()


def _is_replaced_failure(job: Job, event: on.ResultRead) -> bool:
    return job.replace_etag is not None and event.etag == job.replace_etag


def report_read(context: Context, job: Job, event: on.ReportRead) -> list[do.Action]:
    if event.report is None and not job.with_device and job.overdue is None:
        return without_device.nothing_found(context, job)
    worth_waiting = job.place is Place.LAMBDA and job.end_reason in _WORTH_WAITING
    if event.report is None and not job.graced and worth_waiting:
        job.graced, job.phase = True, Phase.GRACE
        grace_s = context.budget.failure_grace_s
        return [do.ArmTimer(job=job.id, timer=do.Timer.GRACE, in_s=grace_s)]
    max_cost.end(job, event.wall_s)
    given_up = event.report is not None and event.report.reason == Reason.WITHDRAWN
    job.withdrawn = given_up or job.end_reason is EndReason.WITHDRAWN
    if job.withdrawn or job.end_reason is EndReason.PREEMPTED:
        return _again(job, Reason.WITHDRAWN if job.withdrawn else Reason.PREEMPTED)
    failure = _failure(job, event.report)
    if failure.reason in _FINAL:
        return conclude(job, JobState.FAILED, failure, event.wall_s)
    if failure.reason is Reason.NOT_ON_HOST:
        lacked = newly_lacked(
            {} if event.report is None else event.report.lacks, job.request, job.lacked
        )
        if lacked is not None:
            return _elsewhere(job, failure, lacked)
        failure = replace(failure, reason=Reason.EXIT_NONZERO)  # another host would not help
    if failure.reason in UNCOUNTED:
        paused = [do.ReportThrottled(job=job.id, pause_s=context.budget.throttled_s)]
        throttled = paused if failure.reason is Reason.THROTTLED else []
        return [*throttled, *_not_started(context, job, failure, event.wall_s)]
    return attempt_failed(context, job, failure, event.wall_s)


def _not_started(context: Context, job: Job, failure: Failure, wall_s: float) -> list[do.Action]:
    """Try again, without counting the attempt: its code never ran.

    Lambda was throttled, or the owner was silent until the reservation expired. The time since the
    first such attempt is the limit, because it may last for minutes. A service that has a run is no
    failure, however long: of a fixed number of containers each has one.
    """
    budget = context.budget
    job.count_not_started(wall_s)
    crowded = job.place is Place.SERVICE and job.crowded
    if not crowded and wall_s - job.not_started_at_s >= budget.not_started_s_max:
        return conclude(job, JobState.FAILED, failure, wall_s)
    job.first_attempt += 1
    ceiling_s = min(budget.retry_base_s * 2 ** min(job.not_started, 16), budget.retry_s_max)
    return _failing(job, failure, pause_s=context.jitter.uniform(ceiling_s / 2, ceiling_s))


def _elsewhere(job: Job, failure: Failure, lacked: Lacked) -> list[do.Action]:
    """Try at once again where the hosts have what this one lacked, without counting the attempt.

    A replica that dies before it opens that attempt forgets the names; the next failure has them.
    """
    job.lacked = lacked
    job.first_attempt += 1
    return _failing(job, failure, pause_s=0.0)


def _again(job: Job, reason: Reason) -> list[do.Action]:
    """Try the job again at once; the attempt does not count, whatever its report states."""
    job.first_attempt += 1
    return _failing(job, Failure(reason=reason, detail=job.end_detail), pause_s=0.0)


def _failure(job: Job, report: Report | None) -> Failure:
    if job.staging_error:
        return Failure(reason=Reason.STAGING_ERROR, detail=job.staging_error)
    if report is not None:
        return Failure(
            reason=_known(report.reason),
            detail=report.detail,
            exit_code=report.exit_code,
            log_tail=report.log_tail,
            times=report.times,
            provenance=report.provenance,
        )
    if job.overdue is not None:
        return Failure(reason=job.overdue, detail=job.end_detail)
    if job.end_reason is None:
        return Failure(reason=Reason.RESERVATION_EXPIRED, detail=job.end_detail)
    if job.end_reason is EndReason.EXPIRED and job.target is not None:
        detail = f"{job.target} was not written while the lease lasted"
        return Failure(reason=Reason.NO_OBJECT, detail=detail)
    reason = _REASON_OF_END.get(job.end_reason, Reason.SESSION_LOST)
    by = "its host: " if job.place is Place.HOST else ""
    refused = f"; {by}{job.order_error}" if job.order_error else ""
    return Failure(reason=reason, detail=job.end_detail + refused)


def _known(reason: str) -> Reason:
    try:
        return Reason(reason)
    except ValueError:
        return Reason.FUNCTION_ERROR


def attempt_failed(context: Context, job: Job, failure: Failure, wall_s: float) -> list[do.Action]:
    job.not_started, job.not_started_at_s = 0, 0.0
    used = job.attempt - job.first_attempt + 1
    if used >= job.function.attempts_max:
        return conclude(job, JobState.FAILED, failure, wall_s)
    refusal = max_cost.refusal(job, wall_s)
    if refusal is not None:
        detail = f"{refusal.detail}; the last one ended so: {failure.reason} {failure.detail}"
        return conclude(
            job, JobState.FAILED, replace(failure, reason=refusal.reason, detail=detail), wall_s
        )
    budget = context.budget
    ceiling_s = min(budget.retry_base_s * 2 ** (used - 1), budget.retry_s_max)
    return _failing(job, failure, pause_s=context.jitter.uniform(0.0, ceiling_s))


def _failing(job: Job, failure: Failure, *, pause_s: float) -> list[do.Action]:
    job.note_end(failure.reason)
    job.phase, job.state, job.reason = Phase.FAILING, JobState.RECEIVED, failure.reason
    return [
        do.RecordAttemptFailure(
            job=job.id,
            attempt=job.attempt,
            reason=failure.reason,
            detail=failure.detail[:DETAIL_CHARS_MAX],
            pause_s=pause_s,
        )
    ]


def failure_recorded(job: Job, event: on.AttemptFailureRecorded) -> list[do.Action]:
    leaving = [*_envelope_removed(job), *(_runs_ended(job) if job.overdue is not None else [])]
    job.revision, job.granted = event.record.revision, None
    return [*leaving, *attempt.back_off(job, event.pause_s)]


def _envelope_removed(job: Job) -> list[do.Action]:
    """Remove the envelope, which holds a secret, once its lease has ended. A replica that never had
    the lease removes all envelopes of the job, once the job has a result."""
    fence = None if job.granted is None else job.granted.lease.fence
    if not job.with_device and job.attempt:
        fence = 0
    n = job.attempt if fence is not None or job.result is None else job.result.attempt
    if not n or (fence is None and job.result is None):
        return []
    return [
        do.RemoveEnvelope(job=job.id, attempt=n, function=job.function, fence=fence, form=job.form)
    ]


def _runs_ended(job: Job) -> list[do.Action]:
    """End what Batch still has of the attempt, beside the run that has committed the result."""
    if job.place is not Place.BATCH:
        return []
    keep = "" if job.result is None else job.result.nonce
    ending = do.EndRuns(
        job=job.id, attempt=job.attempt, function=job.function, queue=job.queue, keep=keep
    )
    return [ending]


# ---------------------------------------------------------------------- a call fails


def call_failed(context: Context, job: Job, event: on.CallFailed) -> list[do.Action]:
    """A failed call is repeated with a back-off, and never dropped."""
    context.turns.survived(job)
    name = type(event.action).__name__
    job.failures[name] = tries = job.failures.get(name, 0) + 1
    job.looking = job.looking and not isinstance(event.action, do.ReadResult)
    if isinstance(event.action, do.OrderRun) and event.action.attempt == job.attempt:
        job.order_error, job.crowded = event.message, event.exhausted
    if not event.retryable and isinstance(event.action, do.StageEnvelope):
        return _staging_failed(context, job, event)
    if not event.retryable and tries >= NON_RETRYABLE_TRIES_MAX:
        concluding = _refused(job, event)
        if concluding:
            return concluding
    budget = context.budget
    pause_s = min(budget.reconnect_base_s * 2 ** min(tries, 16), budget.retry_s_max)
    pause_s = min(pause_s, RETRY_S_MAX * budget.reconnect_s_max / 5.0)
    pause_s *= context.jitter.uniform(0.5, 1.0)
    return [do.RepeatLater(job=job.id, action=event.action, in_s=pause_s)]


def repeat_due(context: Context, job: Job, event: on.RepeatDue) -> list[do.Action]:
    action = event.action
    if isinstance(action, do.OrderRun):
        phases: tuple[Phase, ...] = (Phase.RECORDING, Phase.RUNNING)
        if not job.with_device:  # a look does not end the attempt
            phases += (Phase.CHECKING, Phase.EXPLAINING)
        return [action] if job.phase in phases and action.attempt == job.attempt else []
    return context.turns.repeat(job, action)


def _staging_failed(context: Context, job: Job, event: on.CallFailed) -> list[do.Action]:
    """The envelope cannot be stored: release the lease; its end fails the attempt."""
    if job.phase is not Phase.STAGING:
        return []
    job.staging_error, job.graced = event.message, True
    if job.granted is None:
        return attempt_failed(context, job, _failure(job, None), event.wall_s)
    return [do.ReleaseLease(job=job.id, lease=job.lease)]


def _refused(job: Job, event: on.CallFailed) -> list[do.Action]:
    """End the job: a read or a request was refused repeatedly, and repeating it cannot help."""
    reasons = {
        do.ReadInput: Reason.INPUT_ERROR,
        do.RequestPromise: Reason.REQUEST_REFUSED,
        do.OpenAttempt: Reason.REQUEST_REFUSED,
    }
    reason = reasons.get(type(event.action))
    if reason is None or job.phase not in (Phase.READING, Phase.ADMITTING, Phase.OPENING):
        return []
    failure = Failure(reason=reason, detail=event.message[:DETAIL_CHARS_MAX])
    return conclude(job, JobState.FAILED, failure, event.wall_s)


# ---------------------------------------------------------------------- a job ends


def conclude(job: Job, state: JobState, failure: Failure, wall_s: float) -> list[do.Action]:
    """Commit a terminal result, unless there is one already."""
    job.phase = Phase.CONCLUDING
    max_cost.end(job, wall_s)
    result = Result(
        job_id=job.id,
        state=state.value,
        reason=failure.reason.value,
        attempt=job.attempt,
        nonce="",
        exit_code=failure.exit_code,
        files=[],
        times=dict(failure.times),
        log_tail=failure.log_tail,
        detail=failure.detail,
        ended_at_s=wall_s,
        device=_device(job),
        provenance=dict(
            failure.provenance
            or provenance_of(job.function, job.input, job.granted, place=job.place)
        ),
        **max_cost.in_result(job),
    )
    bucket = job.function.intermediate_bucket
    return [do.WriteResult(job=job.id, bucket=bucket, result=result, replace_etag=job.replace_etag)]


def _device(job: Job) -> dict[str, object]:
    if job.granted is None or not job.granted.lease.shares:
        return {}
    share = job.granted.lease.shares[0]
    return {"host": share.host, "kind": share.kind.value, "model": share.model}


def impossible(context: Context, job: Job, event: on.AttemptImpossible) -> Iterable[do.Action]:
    """There is no device: end the job, unless its function has a fallback."""
    if event.attempt is not None and event.attempt != job.attempt:
        return ()  # a late push about an earlier attempt
    if event.explanation.late:
        failure = Failure(reason=Reason.DEADLINE, detail=event.explanation.sentence)
        return conclude(job, JobState.REJECTED, failure, event.wall_s)
    if job.function.on_unavailable == "cpu" and not job.fell_back:
        job.fell_back = True
        return _ask_again(job, event, pause_s=0.0)
    if job.function.on_unavailable == "requeue" and event.busy:
        pause_s = context.jitter.uniform(0.5, 1.0) * context.budget.retry_base_s
        return _ask_again(job, event, pause_s=pause_s)
    reason = Reason.BUSY if event.busy else Reason.IMPOSSIBLE
    failure = Failure(reason=reason, detail=event.explanation.sentence)
    return conclude(job, JobState.REJECTED, failure, event.wall_s)


def _ask_again(job: Job, event: on.AttemptImpossible, *, pause_s: float) -> list[do.Action]:
    """End an attempt that never had a device; it does not count, and the job keeps its place."""
    if job.phase is Phase.OPENING:
        job.attempt += 1  # the answer to OpenAttempt
    job.first_attempt += 1
    busy = Failure(reason=Reason.BUSY, detail=event.explanation.sentence)
    return _failing(job, busy, pause_s=pause_s)


def cost_reached(job: Job, event: on.TimerFired) -> list[do.Action]:
    """End a job at its cap: its result first, then its lease, as a cancel does."""
    early = max_cost.timer(job, event.wall_s)
    seconds = max_cost.left_s(job, event.wall_s)
    if seconds is None or seconds > 0.0:
        return early  # of an earlier attempt, or the clocks differ
    closing: list[do.Action] = []
    if not job.with_device and job.target is None:  # no later start may run it
        bucket = job.function.intermediate_bucket
        closing = [do.CloseAttempt(job=job.id, attempt=job.attempt, bucket=bucket)]
    failure = max_cost.reached(job, event.wall_s)
    return [*closing, *conclude(job, JobState.FAILED, failure, event.wall_s)]


def poison(job: Job, strikes: int, wall_s: float) -> list[do.Action]:
    detail = f"{strikes} orchestrators ended while packing this job, the last one packed it alone"
    return conclude(job, JobState.FAILED, Failure(reason=Reason.POISON, detail=detail), wall_s)


def result_written(job: Job, event: on.ResultWritten) -> list[do.Action]:
    return finish_as(job, event.result, event.at_s)


def finish_as(job: Job, result: Result, at_s: float) -> list[do.Action]:
    """End the job as its result states. A failure is copied to the dead-letter queue first."""
    job.result, job.committed_at_s, job.state = result, at_s, JobState.COMMITTED
    if result.state in DEAD_LETTERED:
        job.phase = Phase.DEAD_LETTERING
        event = job.input.as_s3_event()
        body = dead_letter_body(
            event, job.id, result.reason, result.detail, result.ended_at_s, source=job.input
        )
        return [
            do.SendDeadLetter(
                job=job.id,
                queue_url=job.function.dead_letter_url,
                body=body,
                traceparent="" if job.trace is None else job.trace.traceparent,
            )
        ]
    return finish(job)


def finish(job: Job) -> list[do.Action]:
    assert job.result is not None, "a job finishes only with a result"
    job.phase = Phase.FINISHING
    # the attempts of a redriven job continue those of its result: its record may be forgotten
    has_record = job.result.attempt > 0 and job.replace_etag is None
    to_show = job.promise and job.result.cost_usd is not None
    return [
        do.FinishJob(
            job=job.id,
            outcome=job.result.state,
            reason=job.result.reason,
            detail=job.result.detail[:DETAIL_CHARS_MAX],
            payload=None if has_record and not to_show else job.payload(),
            received_at_s=job.received_at_s,
            committed_at_s=job.committed_at_s,
            promise=job.promise,
            promised=job.promised,
            way_s=job.way_s,
            workload=job.request.workload,
        )
    ]


def finished(job: Job) -> list[do.Action]:
    assert job.result is not None, "a job finishes only with a result"
    job.state = JobState(job.result.state)
    return [*_envelope_removed(job), *_runs_ended(job), *delete(job)]


def delete(job: Job) -> list[do.Action]:
    job.phase = Phase.DELETING
    receipt_handles = tuple(h for h in job.receipt_handles.values() if h)
    return [
        do.DeleteMessages(
            job=job.id,
            queue_url=job.function.queue_url,
            receipt_handles=receipt_handles,
            advance=_advance(job),
            notices=_notices(job),
        )
    ]


def _notices(job: Job) -> do.SendNotices | None:
    """Words to those who are notified of the end: before the message is gone, as `_advance`."""
    function, source, of = job.function, job.input, job.input.step
    if not function.notify:
        return None
    notice = Notice(
        target="",
        job=job.id,
        run="" if of is None else of.run,
        workflow="" if of is None else of.workflow,
        step="" if of is None else of.step,
        bucket=source.bucket,
        key=source.key,
        version=source.version_id or "",
    )
    bodies = notice_bodies(function.notify, notice)
    return do.SendNotices(queue_url=function.completion_url, bodies=bodies)


def _advance(job: Job) -> do.AdvanceRun | None:
    """The word to the run of a step's job: before the message is gone, so it is never lost."""
    of = job.input.step
    if of is None:
        return None
    state = "" if job.result is None else job.result.state
    body = advance_body(of.run, of.step, job.id, state)
    return do.AdvanceRun(workflow=of.workflow, body=body, result=job.result)
