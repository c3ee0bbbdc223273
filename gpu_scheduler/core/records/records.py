"""Job records: attempts opened, adopted, handed back, failed, finished, reopened.

The revision rises with every write that decides who acts for a job or on which attempt, never with
the scheduler's own news (granted, staged, running, lease ended, newer handle): an owner's picture
stays good while its job classes progress. Step RECEIVED with a reason: the attempt is over.
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
from gpu_scheduler.core.queue import dispatch
from gpu_scheduler.core.timers import TimerKind
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.model import BLOCK_BYTES_MAX, RETRY_AT, EndReason, LeaseLifetime, Record, Step

# ---------------------------------------------------------------------- attempts


def attempt(tx: Transaction, event: on.AttemptAsked) -> None:
    """Open attempt n and reason_counts its request, or answer what stands for it."""
    record = tx.state.records.get(event.holder)
    problem = _attempt_problem(record, event)
    if problem is not None:
        tx.conflict(event.reply_to, record, problem)
        return
    if _too_large(tx, event.reply_to, event.block):
        return
    if event.hold is LeaseLifetime.DEADLINE and event.request.lease_s is None:
        tx.refuse(event.reply_to, ErrorCode.INVALID, "hold deadline needs a length: lease_s")
        return
    if event.n < 1:
        tx.refuse(event.reply_to, ErrorCode.INVALID, f"n is {event.n} and starts at 1")
        return
    if record is not None and event.n == record.attempt and _stands(tx, record):
        if record.owner is None:
            record = _take(tx, record, event.session, event.handle)
        _answer_standing(tx, event, record)
        return
    opened = _opened_record(tx, event, record)
    full = None if record is not None else limits.records_refusal(tx, opened.key, opened.tenant)
    if full is not None:
        full.reply(tx, event.reply_to)
        return
    _open(tx, event, opened)


def _too_large(tx: Transaction, reply_to: str, block: Mapping[str, Any]) -> bool:
    """Refuse a block that is no note any more."""
    size = len(json.dumps(block, ensure_ascii=False).encode())
    if size <= BLOCK_BYTES_MAX:
        return False
    message = f"block has {size} bytes; at most {BLOCK_BYTES_MAX} are kept"
    tx.refuse(reply_to, ErrorCode.INVALID, message)
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


def _stands(tx: Transaction, record: Record) -> bool:
    return tx.state.live_lease(record) is not None or record.step is Step.WAITING


def _answer_standing(tx: Transaction, event: on.AttemptAsked, record: Record) -> None:
    entry = tx.state.live_lease(record)
    if entry is not None:
        accept(tx, entry)  # this answer is the grant: its push may have been lost
        answer = do.AttemptAnswer(
            outcome=do.Outcome.GRANTED, granted=tx.granted(entry), record=record
        )
    else:
        waiting = tx.state.queue.entries[attempt_key(record)]
        answer = do.AttemptAnswer(
            outcome=do.Outcome.WAITING,
            record=record,
            explanation=dispatch.explained(tx, waiting.request, waiting),
        )
    tx.reply(event.reply_to, answer)


def attempt_key(record: Record) -> str:
    """`job_id:n`: the idempotency key of a job's request."""
    return f"{record.holder}:{record.attempt}"


def _opened_record(tx: Transaction, event: on.AttemptAsked, old: Record | None) -> Record:
    """Attempt n belongs to the asking session; the job's place in the queue stays."""
    if old is None:
        old = _received(tx, event.holder, event.received_ago_s, event.session)
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
        waiting_since_s=tx.wall_s if old.waiting_since_s is None else old.waiting_since_s,
        times=old.times if same else _receipt(old),
        tenant=event.request.tenant,
    )


def _received(tx: Transaction, holder: JobId, ago_s: float, by: SessionId) -> Record:
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
        times={Step.RECEIVED.value: tx.wall_s - ago_s},
        key=key if slash else "",
    )


def _receipt(record: Record) -> Mapping[str, float]:
    """What the times of earlier attempts leave to the next one: when the job was received."""
    return {k: v for k, v in record.times.items() if k == Step.RECEIVED.value}


def _open(tx: Transaction, event: on.AttemptAsked, record: Record) -> None:
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
    outcome, entry, full = dispatch.admit(tx, waiting, wait=event.wait)
    if full is not None:  # the record stays as it was: whoever asked, asks again
        full.reply(tx, event.reply_to)
        return
    if record.holder not in tx.state.records:
        limits.evict_history(tx, record)
    if entry is not None:
        record = tx.write(record, Step.RESERVED, lease=entry.lease.id)
        granted = tx.granted(entry)
        tx.reply(event.reply_to, do.AttemptAnswer(outcome=outcome, granted=granted, record=record))
        return
    step = Step.WAITING if outcome is do.Outcome.WAITING else Step.RECEIVED
    record = tx.write(record, step)
    reason = dispatch.explained(tx, event.request, waiting)
    tx.reply(event.reply_to, do.AttemptAnswer(outcome=outcome, explanation=reason, record=record))


# ---------------------------------------------------------------------- ownership


def adopt(tx: Transaction, event: on.AdoptAsked) -> None:
    record = tx.state.records.get(event.holder)
    if record is None:
        tx.refuse(event.reply_to, ErrorCode.NOT_FOUND, f"no record of {event.holder}")
        return
    if record.owner != event.session:
        if record.owner is not None or record.step is Step.ENDED:
            what = f"belongs to session {record.owner}" if record.owner else "has ended"
            tx.conflict(event.reply_to, record, f"{event.holder} {what}")
            return
        if event.revision != record.revision:
            message = f"{event.holder} is at revision {record.revision}, not {event.revision}"
            tx.conflict(event.reply_to, record, message)
            return
        record = _take(tx, record, event.session, event.handle)
    entry = tx.state.live_lease(record)
    if entry is not None:
        accept(tx, entry)
    granted = None if entry is None else tx.granted(entry)
    tx.reply(event.reply_to, do.AdoptAnswer(record=record, granted=granted))


def _take(tx: Transaction, record: Record, session: SessionId, handle: str | None) -> Record:
    """An ownerless record gets an owner; somebody died while packing if it is RESERVED."""
    entry = tx.state.live_lease(record)
    packing = record.step is Step.RESERVED and (entry is None or entry.accepted)
    if entry is not None and record.step is Step.RESERVED:
        accept(tx, entry)
        tx.set_deadline(entry, tx.budget.reserved_ttl_s)
    waiting = tx.state.queue.entries.get(attempt_key(record))
    if waiting is not None:
        dispatch.enqueue(tx, replace(waiting, session=session))
    return tx.write(
        record,
        owner=session,
        revision=record.revision + 1,
        strikes=record.strikes + packing,
        handle=record.handle if handle is None else handle,
    )


def disown(tx: Transaction, record: Record) -> Record:
    """Its owner is gone or gives it up; a waiting request is parked at its place."""
    waiting = tx.state.queue.entries.get(attempt_key(record))
    if waiting is not None:
        parked = replace(waiting, session=None)
        tx.emit(to.RequestQueued(waiting=parked))
        tx.start_wait_timer(parked)
        tx.capacity_freed = True  # the head may be another one now
    return tx.write(record, owner=None, revision=record.revision + 1)


def handle_given(tx: Transaction, event: on.HandleGiven) -> None:
    record = tx.state.records.get(event.holder)
    if record is not None and record.step is not Step.ENDED and record.handle != event.handle:
        tx.write(record, handle=event.handle)
        if record.owner != event.session:
            tx.push(record.owner, do.HandlePush(holder=event.holder, handle=event.handle))
    tx.reply(event.reply_to, do.Done())


def hand_back(tx: Transaction, event: on.HandBackAsked) -> None:
    """What has not started goes back to its place, uncounted; what runs only loses its owner."""
    record = tx.state.records.get(event.holder)
    if record is None:
        tx.refuse(event.reply_to, ErrorCode.NOT_FOUND, f"no record of {event.holder}")
        return
    done = record.owner is None and record.revision == event.revision + 1
    if not done and (record.owner != event.session or record.revision != event.revision):
        tx.conflict(event.reply_to, record, f"{event.holder} is not yours at that revision")
        return
    if not done:
        record = _give_back(tx, record)
    tx.reply(event.reply_to, do.RecordAnswer(record=record))


def _give_back(tx: Transaction, record: Record) -> Record:
    if record.step not in (Step.WAITING, Step.RESERVED):
        return disown(tx, record)
    dispatch.drop(tx, attempt_key(record))
    entry = tx.state.live_lease(record)
    if entry is not None:
        end(tx, entry, EndReason.RELEASED, "handed back before it was staged")
    return tx.write(
        tx.state.records[record.holder],
        Step.RECEIVED,
        owner=None,
        lease=None,
        reason=None,
        revision=record.revision + 1,
        attempt=record.attempt - 1,
        strikes=0,
    )


# ---------------------------------------------------------------------- endings


def fail_attempt(tx: Transaction, event: on.AttemptFailed) -> None:
    record = tx.state.records.get(event.holder)
    if record is None:
        tx.refuse(event.reply_to, ErrorCode.NOT_FOUND, f"no record of {event.holder}")
        return
    repeated = (
        record.step is Step.RECEIVED
        and record.reason == event.reason
        and record.revision == event.revision + 1
    )
    mine = record.owner == event.session and record.step is not Step.ENDED
    if not mine or (record.revision != event.revision and not repeated):
        tx.conflict(event.reply_to, record, f"{event.holder} is not yours at that revision")
        return
    if not repeated:
        record = _fail(tx, record, event)
    tx.reply(event.reply_to, do.RecordAnswer(record=record))


def _fail(tx: Transaction, record: Record, event: on.AttemptFailed) -> Record:
    record = _stop(tx, record, f"attempt failed: {event.reason}")
    if event.retry_at_s is not None:
        record = replace(record, times={**record.times, RETRY_AT: event.retry_at_s})
    return tx.write(
        record, Step.RECEIVED, reason=event.reason, revision=record.revision + 1, strikes=0
    )


def _stop(tx: Transaction, record: Record, why: str) -> Record:
    """End whatever the newest attempt still has."""
    dispatch.drop(tx, attempt_key(record))
    entry = tx.state.live_lease(record)
    if entry is not None:
        end(tx, entry, EndReason.RELEASED, why)
    return tx.state.records[record.holder]


def finish(tx: Transaction, event: on.FinishAsked) -> None:
    """Terminal, and all leases of the job ended, in one entry. Unknown or repeated = success."""
    record = tx.state.records.get(event.holder)
    if record is None and event.block is not None:
        if _too_large(tx, event.reply_to, event.block):
            return
        new = _received(tx, event.holder, event.received_ago_s, event.session)
        new = replace(new, block=event.block)
        if limits.evict_history(tx, new):  # else it leaves no history, as without a block
            record = _conclude(tx, event, new)
    elif record is not None and record.step is not Step.ENDED:
        why = event.detail or f"job finished: {event.outcome}"
        record = _conclude(tx, event, _stop(tx, record, why))
    tx.reply(event.reply_to, do.RecordAnswer(record=record))


def _conclude(tx: Transaction, event: on.FinishAsked, record: Record) -> Record:
    """Write the end of a job whose leases have ended."""
    owner = record.owner
    if event.committed_ago_s is not None:
        seen = {Step.COMMITTED.value: tx.wall_s - event.committed_ago_s}
        record = replace(record, times={**record.times, **seen})
    record = tx.write(
        record,
        Step.ENDED,
        outcome=event.outcome,
        reason=event.reason,
        owner=None,
        revision=record.revision + 1,
    )
    tx.state.timers.arm(TimerKind.RECORD, record.holder, tx.at_s + tx.budget.record_forget_s)
    if owner != event.session:
        tx.push(owner, do.DisownedPush(holder=event.holder))
    return record


def reopen(tx: Transaction, event: on.ReopenAsked) -> None:
    """Redrive: the attempts' numbers go on rising, the job queues anew."""
    record = tx.state.records.get(event.holder)
    if record is None:
        tx.refuse(event.reply_to, ErrorCode.NOT_FOUND, f"no record of {event.holder}")
        return
    repeated = (
        record.owner == event.session
        and record.step is Step.RECEIVED
        and record.revision == event.revision + 1
    )
    ended = record.step is Step.ENDED and record.outcome != "SUCCEEDED"
    if not repeated and not (ended and record.revision == event.revision):
        tx.conflict(event.reply_to, record, f"{event.holder} cannot be reopened as it stands")
        return
    if not repeated:
        tx.state.timers.cancel(TimerKind.RECORD, record.holder)
        record = tx.write(
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
    tx.reply(event.reply_to, do.RecordAnswer(record=record))


def forget(tx: Transaction, holder: JobId) -> None:
    """A finished record has been kept long enough."""
    record = tx.state.records.get(holder)
    if record is not None and record.step is Step.ENDED:
        tx.emit(to.RecordForgotten(holder=holder))
