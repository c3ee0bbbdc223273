"""From pushes of the scheduler to events of the job machine."""

from __future__ import annotations

from typing import TypedDict

from corekit.ids import number_of
from gpu_scheduler.client import Connected, Disconnected, PushWord
from gpu_scheduler.protocol import answers
from orchgpu.core import events as on


class Clocks(TypedDict):
    """The clocks of an event."""

    at_s: float
    wall_s: float


def event_of_push(push: PushWord, now: Clocks) -> on.Event | None:
    """None: the push concerns no job of ours, but a lease without a job record."""
    if isinstance(push, Connected):
        return on.SchedulerReturned(**now)
    if isinstance(push, Disconnected) or push.holder is None:
        return None
    job = push.holder
    match push:
        case answers.HandlePush():
            return on.ReceiptHandleRenewed(**now, job=job, handle=push.handle)
        case answers.DisownedPush():
            return on.Disowned(**now, job=job)
        case answers.GrantedPush():
            return on.AttemptGranted(
                **now,
                job=job,
                attempt=number_of(push.attempt),
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
                attempt=number_of(push.attempt),
            )
        case answers.LeasePush():
            return on.LeaseChanged(
                **now,
                job=job,
                attempt=number_of(push.attempt),
                state=push.state,
                reason=push.reason,
                detail=push.detail,
            )
