"""From what the scheduler pushes to events of the job machine."""

from __future__ import annotations

from orchgpu import ports
from orchgpu.core import events as on


def event_of_push(push: ports.Push, *, at_s: float, wall_s: float) -> on.Event:
    """Total over the push classes of `orchgpu.ports`."""
    if isinstance(push, ports.Returned):
        return on.SchedulerReturned(at_s=at_s, wall_s=wall_s)
    return _job_event(push, {"at_s": at_s, "wall_s": wall_s})


def _job_event(push: ports.Push, now: dict[str, float]) -> on.Event:
    job = push.holder
    match push:
        case ports.GrantPush():
            return on.AttemptGranted(
                **now, job=job, attempt=push.attempt, granted=push.granted, record=None, pushed=True
            )
        case ports.RefusalPush():
            return on.AttemptImpossible(
                **now, job=job, explanation=push.explanation, busy=push.busy, attempt=push.attempt
            )
        case ports.LeasePush():
            return on.LeaseChanged(
                **now,
                job=job,
                attempt=push.attempt,
                state=push.state,
                reason=push.reason,
                detail=push.detail,
            )
        case ports.HandlePush():
            return on.ReceiptHandleRenewed(**now, job=job, handle=push.handle)
        case ports.DisownedPush():
            return on.Disowned(**now, job=job)
    raise AssertionError(f"unknown push {push}")
