"""Job records: attempts opened, adopted, handed back, failed, finished, reopened.

The revision rises with every write that decides who acts for a job or on which attempt, never with
the scheduler's own news (granted, staged, running, lease ended, newer handle): an owner's picture
stays good while its job makes progress. Step RECEIVED with a reason: the attempt is over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from corekit.errors import ErrorCode
from corekit.ids import JobId, SessionId
from corekit.values import replace
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.admission import limits
from gpu_scheduler.core.durable import changes as to
from gpu_scheduler.core.leases.leases import accept, end
from gpu_scheduler.core.leases.length import length_problem
from gpu_scheduler.core.queue import dispatch
from gpu_scheduler.core.timers import TimerKind
from gpu_scheduler.core.transaction import Turn
from gpu_scheduler.model import BLOCK_BYTES_MAX, RETRY_AT, EndReason, Record, Step

# ---------------------------------------------------------------------- attempts


def attempt(turn: Turn, event: on.AttemptAsked) -> None:
    """Open attempt n and judge its request, or answer what stands for it."""
    record = turn.state.records.get(event.holder)
    problem = _attempt_problem(record, event)
    if problem is not None:
        turn.conflict(event.reply_to, record, problem)
        return
    if _too_large(turn, event.reply_to, event.block):
        return
    length = length_problem(turn.state.parameters, event.hold, event.request.lease_s)
    if length is not None:
        turn.refuse(event.reply_to, *length)
        return
    if event.n < 1:
        turn.refuse(event.reply_to, ErrorCode.INVALID, f"n is {event.n} and starts at 1")
        return
    if record is not None and event.n == record.attempt and _stands(turn, record):
        if record.owner is None:
            record = _take(turn, record, event.session, event.handle)
        _answer_standing(turn, event, record)
        return
    opened = _opened_record(turn, event, record)
    full = None if record is not None else limits.records_full(turn, opened.key, opened.tenant)
    if full is not None:
        full.reply(turn, event.reply_to)
        return
    _open(turn, event, opened)


def _too_large(turn: Turn, reply_to: str, block: Mapping[str, Any]) -> bool:
    """Refuse a block that is no note any more."""
    size = len(json.dumps(block, ensure_ascii=False).encode())
    if size <= BLOCK_BYTES_MAX:
        return False
    message = f"block has {size} bytes; at most {BLOCK_BYTES_MAX} are kept"
    turn.refuse(reply_to, ErrorCode.INVALID, message)
    return True


def _attempt_problem(record: Record | None, event: on.AttemptAsked) -> str | None:
    """Why this attempt may not be opened by this session now; None when it may."""
    if record is None:
        return None if event.revision == 0 else f"no record of {event.holder}"
    if record.step is Step.ENDED:
        return f"{event.holder} has ended: {record.outcome}"
    repeats = event.n == record.attempt and not _over(record)
    if record.owner == event.session and repeats:
        return None
    if record.owner is not None and record.owner != event.session:
        return f"{event.holder} belongs to session {record.owner}"
    if event.revision != record.revision:
        return f"record of {event.holder} is at revision {record.revision}, not {event.revision}"
    if repeats or (event.n == record.attempt + 1 and record.step is Step.RECEIVED):
        return None
    return f"attempt {record.attempt} of {event.holder} is at {record.step}, not over"


def _over(record: Record) -> bool:
    """True when this attempt can only be followed by the next one."""
    return record.reason is not None and record.step is not Step.RESERVED


def _stands(turn: Turn, record: Record) -> bool:
    return turn.state.live_lease(record) is not None or record.step is Step.WAITING


def _answer_standing(turn: Turn, event: on.AttemptAsked, record: Record) -> None:
    entry = turn.state.live_lease(record)
    if entry is not None:
        accept(turn, entry)  # this answer is the grant: its push may have been lost
        answer = do.AttemptAnswer(
            outcome=do.Outcome.GRANTED, granted=turn.granted(entry), record=record
        )
    else:
        waiting = turn.state.queue.entries[attempt_key(record)]
        answer = do.AttemptAnswer(
            outcome=do.Outcome.WAITING,
            record=record,
            explanation=dispatch.explained(turn, waiting.request, waiting),
        )
    turn.reply(event.reply_to, answer)


def attempt_key(record: Record) -> str:
    """`job_id:n`: the idempotency key of a job's request."""
    return f"{record.holder}:{record.attempt}"


def _opened_record(turn: Turn, event: on.AttemptAsked, old: Record | None) -> Record:
    """Attempt n belongs to the asking session; the job's place in the queue stays."""
    if old is None:
        old = _received(turn, event.holder, event.received_ago_s, event.session)
    same = old.attempt == event.n
    died = same and old.owner is None and old.step is Step.RESERVED
    return replace(
        old,
        revision=old.revision + 1,
        owner=event.session,
        attempt=event.n,
        handle=event.handle,
        block=event.block,
        strikes=old.strikes + died if same else 0,
        reason=None,
        lease=None,
        waiting_since_s=turn.wall_s if old.waiting_since_s is None else old.waiting_since_s,
        times=old.times if same else _receipt(old),
        tenant=event.request.tenant,
    )


def _received(turn: Turn, holder: JobId, ago_s: float, by: SessionId) -> Record:
    """The first record of a job, not written yet."""
    key, slash, _ = by.partition("/")
    return Record(
        holder=holder,
        revision=0,
        owner=None,
        attempt=0,
        step=Step.RECEIVED,
        strikes=0,
        waiting_since_s=None,
        handle="",
        times={Step.RECEIVED.value: turn.wall_s - ago_s},
        key=key if slash else "",
    )


def _receipt(record: Record) -> Mapping[str, float]:
    """What the times of earlier attempts leave to the next one: when the job was received."""
    return {k: v for k, v in record.times.items() if k == Step.RECEIVED.value}


def _open(turn: Turn, event: on.AttemptAsked, record: Record) -> None:
    assert record.waiting_since_s is not None, "an opened attempt has its place in the queue"
    waiting = to.Waiting(
        attempt=attempt_key(record),
        holder=record.holder,
        request=event.request,
        session=event.session,
        waiting_since_s=record.waiting_since_s,
        hold=event.hold,
        lease_s=event.request.lease_s,
    )
    outcome, entry, full = dispatch.admit(turn, waiting, wait=event.wait)
    if full is not None:  # the record stays as it was: whoever asked, asks again
        full.reply(turn, event.reply_to)
        return
    if record.holder not in turn.state.records:
        limits.make_room(turn, record)
    if entry is not None:
        record = turn.write(record, Step.RESERVED, lease=entry.lease.id)
        granted = turn.granted(entry)
        turn.reply(
            event.reply_to, do.AttemptAnswer(outcome=outcome, granted=granted, record=record)
        )
        return
    step = Step.WAITING if outcome is do.Outcome.WAITING else Step.RECEIVED
    record = turn.write(record, step)
    reason = dispatch.explained(turn, event.request, waiting)
    turn.reply(event.reply_to, do.AttemptAnswer(outcome=outcome, explanation=reason, record=record))


# ---------------------------------------------------------------------- ownership


def adopt(turn: Turn, event: on.AdoptAsked) -> None:
    record = turn.state.records.get(event.holder)
    if record is None:
        turn.refuse(event.reply_to, ErrorCode.NOT_FOUND, f"no record of {event.holder}")
        return
    if record.owner != event.session:
        if record.owner is not None or record.step is Step.ENDED:
            what = f"belongs to session {record.owner}" if record.owner else "has ended"
            turn.conflict(event.reply_to, record, f"{event.holder} {what}")
            return
        if event.revision != record.revision:
            message = f"{event.holder} is at revision {record.revision}, not {event.revision}"
            turn.conflict(event.reply_to, record, message)
            return
        record = _take(turn, record, event.session, event.handle)
    entry = turn.state.live_lease(record)
    if entry is not None:
        accept(turn, entry)
    granted = None if entry is None else turn.granted(entry)
    turn.reply(event.reply_to, do.AdoptAnswer(record=record, granted=granted))


def _take(turn: Turn, record: Record, session: SessionId, handle: str | None) -> Record:
    """An ownerless record gets an owner; somebody died while packing if it is RESERVED."""
    entry = turn.state.live_lease(record)
    packing = record.step is Step.RESERVED and (entry is None or entry.accepted)
    if entry is not None and record.step is Step.RESERVED:
        accept(turn, entry)
        turn.set_deadline(entry, turn.budget.reserved_ttl_s)
    waiting = turn.state.queue.entries.get(attempt_key(record))
    if waiting is not None:
        dispatch.enqueue(turn, replace(waiting, session=session))
    return turn.write(
        record,
        owner=session,
        revision=record.revision + 1,
        strikes=record.strikes + packing,
        handle=record.handle if handle is None else handle,
    )


def disown(turn: Turn, record: Record) -> Record:
    """Its owner is gone or gives it up; a waiting request is parked at its place."""
    waiting = turn.state.queue.entries.get(attempt_key(record))
    if waiting is not None:
        parked = replace(waiting, session=None)
        turn.emit(to.RequestQueued(waiting=parked))
        turn.start_patience(parked)
        turn.capacity_freed = True  # the head may be another one now
    return turn.write(record, owner=None, revision=record.revision + 1)


def handle_given(turn: Turn, event: on.HandleGiven) -> None:
    record = turn.state.records.get(event.holder)
    if record is not None and record.step is not Step.ENDED and record.handle != event.handle:
        turn.write(record, handle=event.handle)
        if record.owner != event.session:
            turn.push(record.owner, do.HandlePush(holder=event.holder, handle=event.handle))
    turn.reply(event.reply_to, do.Done())


def hand_back(turn: Turn, event: on.HandBackAsked) -> None:
    """What has not started goes back to its place, uncounted; what runs only loses its owner."""
    record = turn.state.records.get(event.holder)
    if record is None:
        turn.refuse(event.reply_to, ErrorCode.NOT_FOUND, f"no record of {event.holder}")
        return
    done = record.owner is None and record.revision == event.revision + 1
    if not done and (record.owner != event.session or record.revision != event.revision):
        turn.conflict(event.reply_to, record, f"{event.holder} is not yours at that revision")
        return
    if not done:
        record = _give_back(turn, record)
    turn.reply(event.reply_to, do.RecordAnswer(record=record))


def _give_back(turn: Turn, record: Record) -> Record:
    if record.step not in (Step.WAITING, Step.RESERVED):
        return disown(turn, record)
    dispatch.drop(turn, attempt_key(record))
    entry = turn.state.live_lease(record)
    if entry is not None:
        end(turn, entry, EndReason.RELEASED, "handed back before it was staged")
    return turn.write(
        turn.state.records[record.holder],
        Step.RECEIVED,
        owner=None,
        lease=None,
        reason=None,
        revision=record.revision + 1,
        attempt=record.attempt - 1,
        strikes=0,
    )


# ---------------------------------------------------------------------- endings


def fail_attempt(turn: Turn, event: on.AttemptFailed) -> None:
    record = turn.state.records.get(event.holder)
    if record is None:
        turn.refuse(event.reply_to, ErrorCode.NOT_FOUND, f"no record of {event.holder}")
        return
    repeated = (
        record.step is Step.RECEIVED
        and record.reason == event.reason
        and record.revision == event.revision + 1
    )
    mine = record.owner == event.session and record.step is not Step.ENDED
    if not mine or (record.revision != event.revision and not repeated):
        turn.conflict(event.reply_to, record, f"{event.holder} is not yours at that revision")
        return
    if not repeated:
        record = _fail(turn, record, event)
    turn.reply(event.reply_to, do.RecordAnswer(record=record))


def _fail(turn: Turn, record: Record, event: on.AttemptFailed) -> Record:
    record = _stop(turn, record, f"attempt failed: {event.reason}")
    if event.retry_at_s is not None:
        record = replace(record, times={**record.times, RETRY_AT: event.retry_at_s})
    return turn.write(
        record, Step.RECEIVED, reason=event.reason, revision=record.revision + 1, strikes=0
    )


def _stop(turn: Turn, record: Record, why: str) -> Record:
    """End whatever the newest attempt still has."""
    dispatch.drop(turn, attempt_key(record))
    entry = turn.state.live_lease(record)
    if entry is not None:
        end(turn, entry, EndReason.RELEASED, why)
    return turn.state.records[record.holder]


def finish(turn: Turn, event: on.FinishAsked) -> None:
    """Terminal, and all leases of the job ended, in one entry. Unknown or repeated = success."""
    record = turn.state.records.get(event.holder)
    if record is None and event.block is not None:
        if _too_large(turn, event.reply_to, event.block):
            return
        new = _received(turn, event.holder, event.received_ago_s, event.session)
        new = replace(new, block=event.block)
        if limits.make_room(turn, new):  # else it leaves no history, as without a block
            record = _conclude(turn, event, new)
    elif record is not None and record.step is not Step.ENDED:
        why = event.detail or f"job finished: {event.outcome}"
        record = _conclude(turn, event, _stop(turn, record, why))
    turn.reply(event.reply_to, do.RecordAnswer(record=record))


def _conclude(turn: Turn, event: on.FinishAsked, record: Record) -> Record:
    """Write the end of a job whose leases have ended."""
    owner = record.owner
    if event.committed_ago_s is not None:
        seen = {Step.COMMITTED.value: turn.wall_s - event.committed_ago_s}
        record = replace(record, times={**record.times, **seen})
    record = turn.write(
        record,
        Step.ENDED,
        outcome=event.outcome,
        reason=event.reason,
        owner=None,
        revision=record.revision + 1,
    )
    turn.state.timers.arm(TimerKind.RECORD, record.holder, turn.at_s + turn.budget.record_forget_s)
    if owner != event.session:
        turn.push(owner, do.DisownedPush(holder=event.holder))
    return record


def reopen(turn: Turn, event: on.ReopenAsked) -> None:
    """Redrive: the attempts' numbers go on rising, the job queues anew."""
    record = turn.state.records.get(event.holder)
    if record is None:
        turn.refuse(event.reply_to, ErrorCode.NOT_FOUND, f"no record of {event.holder}")
        return
    repeated = (
        record.owner == event.session
        and record.step is Step.RECEIVED
        and record.revision == event.revision + 1
    )
    ended = record.step is Step.ENDED and record.outcome != "SUCCEEDED"
    if not repeated and not (ended and record.revision == event.revision):
        turn.conflict(event.reply_to, record, f"{event.holder} cannot be reopened as it stands")
        return
    if not repeated:
        turn.state.timers.cancel(TimerKind.RECORD, record.holder)
        record = turn.write(
            replace(record, times={}),
            Step.RECEIVED,
            owner=event.session,
            outcome=None,
            reason=None,
            lease=None,
            handle=event.handle,
            strikes=0,
            waiting_since_s=None,
            revision=record.revision + 1,
        )
    turn.reply(event.reply_to, do.RecordAnswer(record=record))


def forget(turn: Turn, holder: JobId) -> None:
    """A finished record has been kept long enough."""
    record = turn.state.records.get(holder)
    if record is not None and record.step is Step.ENDED:
        turn.emit(to.RecordForgotten(holder=holder))
