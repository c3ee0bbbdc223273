"""From pushes of the scheduler to events of the job machine."""

from __future__ import annotations

from corekit.ids import split_attempt
from gpu_scheduler.client import Connected, Disconnected, PushWord
from gpu_scheduler.protocol import answers
from orchgpu.core import events as on


def event_of_push(push: PushWord, now: on.EventTimes) -> on.Event | None:
    """The event of a push; None for one that changes no job."""
    if isinstance(push, Connected):
        return on.SchedulerReturned(**now)
    if isinstance(push, Disconnected | answers.RecordPush) or push.holder is None:
        return None
    job = push.holder
    match push:
        case answers.HandlePush():
            return on.ReceiptHandleRenewed(**now, job=job, receipt_handle=push.handle)
        case answers.DisownedPush():
            return on.Disowned(**now, job=job)
        case answers.GrantedPush():
            return on.AttemptGranted(
                **now,
                job=job,
                attempt=split_attempt(push.attempt)[1],
                granted=push.granted,
                record=None,
                pushed=True,
            )
        case answers.ImpossiblePush() | answers.BusyPush():
            return on.AttemptImpossible(
                **now,
                job=job,
                explanation=push.explanation,
                busy=isinstance(push, answers.BusyPush),
                attempt=split_attempt(push.attempt)[1],
            )
        case answers.LeasePush():
            return on.LeaseChanged(
                **now,
                job=job,
                attempt=split_attempt(push.attempt)[1],
                state=push.state,
                reason=push.reason,
                detail=push.detail,
            )
