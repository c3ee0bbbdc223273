"""The end of an owner's part in a job: for any other session, or for the scheduler's wake-up."""

from __future__ import annotations

from corekit.ids import JobId
from gpu_scheduler.model import Step
from gpu_scheduler.protocol import ops
from orchgpu.core import actions as do
from orchgpu.ports import JobQueue, Scheduler
from orchgpu.replica.actions.function_failures import record_of

#: Timers that a job without an orchestrator does not need: wake-ups and notices take their place.
NOT_AWAY = (do.Timer.BEAT, do.Timer.HAND_BACK, do.Timer.RENEW, do.Timer.CHECK)


async def hand_back(queue: JobQueue, scheduler: Scheduler, action: do.HandBack) -> bool:
    """Make record and messages free; False when a grant came first, or the job runs."""
    known = action.revision > 0
    record = await record_of(scheduler, action.job) if known or action.even_granted else None
    mine = record is not None and record.owner == scheduler.session
    if known and not mine:
        return True
    if record is not None and mine:
        back = (Step.WAITING, Step.RECEIVED, *([Step.RESERVED] if action.even_granted else []))
        if record.step not in back:
            return False
        await scheduler.ask(ops.HandBack(holder=JobId(action.job), revision=record.revision))
    handles = [handle for handle in action.receipt_handles if handle]
    await queue.set_visibility(action.queue_url, handles, 0)
    return True


async def leave(queue: JobQueue, scheduler: Scheduler, action: do.Leave, hidden_s: float) -> None:
    """Hide the messages until they are due, then go away."""
    handles = [handle for handle in action.receipt_handles if handle]
    await queue.set_visibility(action.queue_url, handles, hidden_s)
    op = ops.HandBack(holder=JobId(action.job), revision=action.revision, away=action.wake_queue)
    await scheduler.ask(op)
