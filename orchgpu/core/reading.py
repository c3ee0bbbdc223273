"""The start of a job: its message, and what is read before its first attempt."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from contract.keys import job_id
from contract.states import JobState, Reason
from corekit.values import replace
from orchgpu.core import actions as do
from orchgpu.core import admitting, attempt, ending
from orchgpu.core import events as on
from orchgpu.core.context import Context
from orchgpu.core.dead_letters import dead_letter_body
from orchgpu.core.function import Function
from orchgpu.core.job import Failure, Job, Phase
from orchgpu.core.routing import Ignored, InputEvent, Rejected, Several, classify

InputAnswer = on.InputRead | on.InputMissing | on.InputChanged


def message(context: Context, event: on.MessageReceived) -> list[do.Action]:
    function = context.functions.get(event.function)
    if function is None:
        return []  # undeployed since then: the message reappears when its visibility ends
    verdict = classify(event.body, function)
    token, queue_url = event.message_id, function.queue_url
    match verdict:
        case Ignored():
            handles = (event.receipt_handle,)
            return [do.DeleteMessages(job=token, queue_url=queue_url, receipt_handles=handles)]
        case Rejected():
            body = dead_letter_body(event.body, None, verdict.reason, verdict.detail, event.wall_s)
            return [
                do.QuarantineMessage(
                    job=token,
                    queue_url=queue_url,
                    body=body,
                    receipt_handle=event.receipt_handle,
                    dead_letter_url=function.dead_letter_url,
                )
            ]
        case Several():
            return [
                do.SplitMessage(
                    job=token,
                    queue_url=queue_url,
                    bodies=verdict.bodies,
                    receipt_handle=event.receipt_handle,
                    traceparent="" if event.trace is None else event.trace.parent,
                )
            ]
        case InputEvent():
            return _of_input(context, event, verdict, function)
    assert_never(verdict)


def _of_input(
    context: Context, event: on.MessageReceived, source: InputEvent, function: Function
) -> list[do.Action]:
    if context.draining:
        handles = (event.receipt_handle,)
        return [
            do.HandBack(job="", queue_url=function.queue_url, receipt_handles=handles, revision=0)
        ]
    name = event.message_id  # until the version, and so the job, is known
    if source.step is not None:
        name = source.step.job
    elif source.version_id is not None:
        name = job_id(source.bucket, source.key, source.version_id, function.name)
    in_hand = context.jobs.get(name)
    if in_hand is not None:
        in_hand.add_receipt_handle(event.message_id, event.receipt_handle)
        return []
    job = context.jobs[name] = Job(
        id=name,
        function=function,
        input=source,
        received_at_s=event.at_s,
        receipt_handles={event.message_id: event.receipt_handle},
        sent_at_s=event.sent_at_s,
        trace=event.trace,
    )
    reads: list[do.Action] = [_input_of(job)]
    if not _is_token(job):
        reads.append(do.ReadResult(job=name, bucket=function.intermediate_bucket))
    return [*reads, beat_timer(context, job)]


def _input_of(job: Job) -> do.ReadInput:
    return do.ReadInput(job=job.id, input=job.input, inline=job.inline)


def beat(context: Context, job: Job) -> list[do.Action]:
    handles = tuple(job.receipt_handles.values())
    queue_url = job.function.queue_url
    return [
        do.ExtendVisibility(job=job.id, queue_url=queue_url, receipt_handles=handles),
        beat_timer(context, job),
    ]


def beat_timer(context: Context, job: Job) -> do.ArmTimer:
    in_s = context.budget.visibility_beat_s
    return do.ArmTimer(job=job.id, timer=do.Timer.BEAT, in_s=in_s)


# ---------------------------------------------------------------------- the input


def input_read(context: Context, job: Job, event: on.InputRead) -> list[do.Action]:
    if _is_token(job):
        return _identify(context, job, event)
    job.input_known = True
    return _begin_when_read(context, job, event.wall_s)


def input_missing(context: Context, job: Job, event: on.InputMissing) -> list[do.Action]:
    """The input was deleted; or it is so young that the 404 may be false: a bucket answers some
    reads with one for up to 15 minutes after its versioning was first enabled."""
    if _is_young(context, job, event.wall_s):
        context.turns.survived(job)
        job.input_misses += 1
        pause_s = attempt.check_pause_s(context, job.input_misses - 1)
        read = _input_of(job) if job.phase is Phase.READING else attempt.envelope(job)
        return [do.RepeatLater(job=job.id, action=read, in_s=pause_s)]
    return _identify(context, job, event) if _is_token(job) else _lost(job, event)


def input_changed(context: Context, job: Job, event: on.InputChanged) -> list[do.Action]:
    return _identify(context, job, event) if _is_token(job) else _lost(job, event)


def _is_young(context: Context, job: Job, wall_s: float) -> bool:
    try:
        uploaded_s = datetime.fromisoformat(job.input.event_time).timestamp()
    except (ValueError, OverflowError):
        return False
    return abs(wall_s - uploaded_s) < context.budget.input_late_s


def _is_token(job: Job) -> bool:
    """True for a job that has the name of its message, because its event has no version."""
    return job.input.version_id is None and job.id in job.receipt_handles


def _identify(context: Context, job: Job, event: InputAnswer) -> list[do.Action]:
    """Name a job whose event has no version: by the version, or etag and date, of one read."""
    version = f"{job.input.etag}@{job.input.event_time}"
    if isinstance(event, on.InputRead):
        version = event.version_id or f"{event.etag}@{event.last_modified}"
        job.input = replace(job.input, version_id=event.version_id)
    token, name = job.id, job_id(job.input.bucket, job.input.key, version, job.function.name)
    del context.jobs[token]
    in_hand = context.jobs.get(name)
    if in_hand is not None:
        for message_id, receipt_handle in job.receipt_handles.items():
            in_hand.add_receipt_handle(message_id, receipt_handle)
        return [do.ForgetJob(job=token)]
    job.id = name
    context.jobs[name] = job
    renamed = [do.ForgetJob(job=token, known_as=name), beat_timer(context, job)]
    if not isinstance(event, on.InputRead):
        return [*renamed, *_lost(job, event)]
    job.input_known = True
    return [*renamed, do.ReadResult(job=name, bucket=job.function.intermediate_bucket)]


def _lost(job: Job, event: on.InputMissing | on.InputChanged) -> list[do.Action]:
    if isinstance(event, on.InputMissing):
        failure = Failure(reason=Reason.INPUT_DELETED, detail="the input was deleted before use")
        return ending.conclude(job, JobState.INPUT_GONE, failure, event.wall_s)
    failure = Failure(reason=Reason.INPUT_OVERWRITTEN, detail="a newer upload replaced it")
    return ending.conclude(job, JobState.SUPERSEDED, failure, event.wall_s)


# ---------------------------------------------------------------------- the result


def result_read(context: Context, job: Job, event: on.ResultRead) -> list[do.Action]:
    job.result_known = True
    if event.result is not None:
        if not _may_be_replaced(job, event):
            return _already_decided(job, event)
        job.replace_etag = event.etag
        # its record may be forgotten, but claims and reports of its attempts still stand
        job.attempt, job.first_attempt = event.result.attempt, event.result.attempt + 1
    return _begin_when_read(context, job, event.wall_s)


def _may_be_replaced(job: Job, event: on.ResultRead) -> bool:
    """A redriven copy may replace the failure that it was sent for, and nothing newer.

    The retry of a run may replace any result of a step.
    """
    dead_at_s, result = job.input.dead_at_s, event.result
    return (
        dead_at_s is not None
        and result is not None
        and (job.input.step is not None or result.state in ending.DEAD_LETTERED)
        and result.ended_at_s <= dead_at_s + 1e-6  # written by the same clock, through JSON
    )


def _already_decided(job: Job, event: on.ResultRead) -> list[do.Action]:
    """A message about a job whose result exists: usually a duplicate of its event.

    A failure is dead-lettered once, so the record decides: an open record is adopted and the dead
    letter sent; for a closed or forgotten record it was sent before.
    """
    job.result, job.committed_at_s = event.result, event.at_s
    if job.result is None or job.result.state not in ending.DEAD_LETTERED:
        return ending.finish(job)
    job.phase = Phase.ADOPTING
    return [do.ReadRecord(job=job.id)]


def _begin_when_read(context: Context, job: Job, wall_s: float) -> list[do.Action]:
    """Input and result are read side by side."""
    return admitting.begin(context, job, wall_s) if job.input_known and job.result_known else []
