"""Job records: attempts opened, adopted, handed back, failed, finished, reopened.

The revision rises with every write that decides which session acts for a job or on which attempt,
never with the scheduler's own updates (granted, staged, running, lease ended, newer handle): the
owner's revision stays valid while its job makes progress. Step RECEIVED with a reason means that
the attempt is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import AttemptId, JobId, LeaseId, SessionId, attempt_id
from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.core.admission import limits
from gpu_scheduler.core.handlers import away, leases
from gpu_scheduler.core.leases.history import with_ended_attempt, with_lease, without_grant
from gpu_scheduler.core.leases.leases import accept, end
from gpu_scheduler.core.leases.lengths import check_length
from gpu_scheduler.core.queue import dispatch
from gpu_scheduler.core.queue.decide import QueueTransaction
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.model import RETRY_AT, EndReason, Record, Step
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import changes as to

#: The outcome of a job that has a result.
SUCCEEDED = "SUCCEEDED"
#: Sessions in `ended_owners`: above every limit on strikes.
ENDED_OWNERS_MAX = 16
#: Digits of a way that are kept: below a millisecond it is noise, and the journal has each.
_WAY_DIGITS = 3


def conflict(record: Record | None, message: str) -> AppError:
    """The refusal of an op that contradicts the current record, which it carries."""
    return AppError(ErrorCode.CONFLICT, message, record=record)


# ---------------------------------------------------------------------- attempts


def attempt(tx: QueueTransaction, event: on.Asked[ops.Attempt]) -> answers.AttemptAnswer:
    """Open attempt n and evaluate its request, or answer with the existing lease or wait."""
    op = event.op
    record = tx.state.records.get(op.holder)
    problem = _attempt_problem(record, event)
    if problem is not None:
        raise conflict(record, problem)
    check_length(tx.state.parameters, op.hold, op.request.lease_s)
    if record is not None and op.n == record.attempt and _stands(tx, record):
        if record.is_open:
            record = _take(tx, record, event.session, op.handle)
        return _standing(tx, record)
    opened = _opened_record(tx, event, record)
    if record is None and (full := limits.records_refusal(tx.state, opened.key, opened.tenant)):
        raise full.error
    return _open(tx, event, opened)


def _attempt_problem(record: Record | None, event: on.Asked[ops.Attempt]) -> str | None:
    """The reason why this session may not open this attempt now; None when it may."""
    op = event.op
    if record is None:
        return None if op.revision == 0 else f"no record of {op.holder}"
    if record.step is Step.ENDED:
        return f"{op.holder} has ended: {record.outcome}"
    repeats = op.n == record.attempt and not _over(record)
    if record.owner == event.session and repeats:
        return None
    if not record.is_open and record.owner != event.session:
        return f"{op.holder} belongs to session {record.owner}"
    if op.revision != record.revision:
        return f"record of {op.holder} is at revision {record.revision}, not {op.revision}"
    if repeats or (op.n == record.attempt + 1 and record.step is Step.RECEIVED):
        return None
    return f"attempt {record.attempt} of {op.holder} is at {record.step} and is not over"


def _over(record: Record) -> bool:
    """True when only the next attempt can follow this one."""
    return record.reason is not None and record.step is not Step.RESERVED


def _stands(tx: QueueTransaction, record: Record) -> bool:
    if not record.with_device:
        return True  # it is not over
    return tx.state.live_lease(record) is not None or record.step is Step.WAITING


def _standing(tx: QueueTransaction, record: Record) -> answers.AttemptAnswer:
    if not record.with_device:
        return answers.AttemptAnswer(outcome=answers.Outcome.OPENED, record=record)
    entry = tx.state.live_lease(record)
    if entry is not None:
        accept(tx, entry)  # this answer replaces the push, which may have been lost
        return answers.AttemptAnswer(
            outcome=answers.Outcome.GRANTED, granted=tx.granted(entry), record=record
        )
    waiting = tx.state.queue.entries[newest_attempt(record)]
    return answers.AttemptAnswer(
        outcome=answers.Outcome.WAITING,
        record=record,
        explanation=dispatch.explanation_of(tx, waiting.request, waiting),
    )


def newest_attempt(record: Record) -> AttemptId:
    return attempt_id(record.holder, record.attempt)


def _opened_record(
    tx: QueueTransaction, event: on.Asked[ops.Attempt], old: Record | None
) -> Record:
    """The record with attempt n, owned by the caller; the job keeps its place in the queue."""
    op = event.op
    if old is None:
        old = _received(tx, op.holder, op.received_ago_s, event.session)
    same = old.attempt == op.n
    if not same:
        old = with_ended_attempt(old, tx)
    return replace(
        old,
        revision=old.revision + 1,
        owner=event.session,
        attempt=op.n,
        handle=op.handle,
        block=op.block,
        reason=None,
        lease=None,
        waiting_since_s=tx.wall_s if old.waiting_since_s is None else old.waiting_since_s,
        times=without_grant(old.times) if same else _receipt(old),
        tenant=op.request.tenant,
        with_device=op.request.count > 0,
    )


def _received(tx: QueueTransaction, holder: JobId, ago_s: float, by: SessionId) -> Record:
    key, slash, _ = by.partition("/")
    return Record(
        holder=holder,
        revision=0,
        owner=None,
        attempt=0,
        step=Step.RECEIVED,
        waiting_since_s=None,
        handle="",
        times={Step.RECEIVED.value: tx.wall_s - ago_s},
        key=key if slash else "",
    )


def _receipt(record: Record) -> Mapping[str, float]:
    """The times that the next attempt inherits: when the job was received."""
    return {k: v for k, v in record.times.items() if k == Step.RECEIVED.value}


def _open(
    tx: QueueTransaction, event: on.Asked[ops.Attempt], record: Record
) -> answers.AttemptAnswer:
    op = event.op
    assert record.waiting_since_s is not None, "an opened attempt has a place in the queue"
    if not record.with_device:
        return _standing(tx, _write_opened(tx, record, Step.RECEIVED))
    waiting = to.Waiting(
        attempt=newest_attempt(record),
        holder=record.holder,
        request=op.request,
        session=event.session,
        waiting_since_s=record.waiting_since_s,
        hold=op.hold,
        lease_s=op.request.lease_s,
    )
    outcome, entry = dispatch.admit(tx, waiting, wait=op.wait)
    if entry is not None:
        record = with_lease(record, entry, tx)
        record = _write_opened(tx, record, Step.RESERVED, lease=entry.lease.id)
        granted = tx.granted(entry)
        return answers.AttemptAnswer(outcome=outcome, granted=granted, record=record)
    step = Step.WAITING if outcome is answers.Outcome.WAITING else Step.RECEIVED
    record = _write_opened(tx, record, step)
    reason = dispatch.explanation_of(tx, op.request, waiting)
    return answers.AttemptAnswer(outcome=outcome, explanation=reason, record=record)


def _write_opened(tx: QueueTransaction, record: Record, step: Step, **changed: LeaseId) -> Record:
    """Write a record; a new one takes the room of history."""
    if record.holder not in tx.state.records:
        evict(tx, limits.history_before(tx.state, record))
    return tx.write(record, step, **changed)


# ---------------------------------------------------------------------- ownership


_Named = ops.Adopt | ops.HandBack | ops.FailAttempt | ops.Reopen


def _existing(tx: QueueTransaction, event: on.Asked[_Named]) -> Record:
    record = tx.state.records.get(event.op.holder)
    if record is None:
        raise AppError(ErrorCode.NOT_FOUND, f"no record of {event.op.holder}")
    return record


def adopt(tx: QueueTransaction, event: on.Asked[ops.Adopt]) -> answers.AdoptAnswer:
    op = event.op
    record = _existing(tx, event)
    if record.owner != event.session:
        if not record.is_open or record.step is Step.ENDED:
            what = f"belongs to session {record.owner}" if record.owner else "has ended"
            raise conflict(record, f"{op.holder} {what}")
        if op.revision != record.revision:
            message = f"{op.holder} is at revision {record.revision}, not {op.revision}"
            raise conflict(record, message)
        record = _take(tx, record, event.session, op.handle)
    entry = tx.state.live_lease(record)
    if entry is not None:
        accept(tx, entry)
    granted = None if entry is None else tx.granted(entry)
    return answers.AdoptAnswer(record=record, granted=granted)


def _take(tx: QueueTransaction, record: Record, session: SessionId, handle: str | None) -> Record:
    """Give an ownerless record an owner, with a full reservation if it is to be packed."""
    entry = tx.state.live_lease(record)
    if entry is not None and record.step is Step.RESERVED:
        accept(tx, entry)
        tx.set_deadline(entry, tx.budget.reserved_ttl_s)
    away.pass_on(tx, record, session)
    return tx.write(
        record,
        owner=session,
        revision=record.revision + 1,
        handle=record.handle if handle is None else handle,
    )


def abandon(tx: QueueTransaction, record: Record, gone: SessionId) -> Record:
    """Take a record from an owner that fell silent; while it packed, that may be the job's doing.

    The strike is taken back when the session is seen again (`absolve`).
    """
    entry = tx.state.live_lease(record)
    if record.packing and (entry is None or entry.accepted):
        record = replace(record, ended_owners=(*record.ended_owners, gone)[-ENDED_OWNERS_MAX:])
    return disown(tx, record)


def absolve(tx: QueueTransaction, seen: SessionId) -> None:
    """Take back the strikes of a session that was silent and has not ended."""
    for holder in tuple(tx.state.struck.get(seen, ())):
        record = tx.state.records[holder]
        others = tuple(session for session in record.ended_owners if session != seen)
        tx.write(record, ended_owners=others)


def disown(tx: QueueTransaction, record: Record) -> Record:
    """Take the owner from a record; a waiting request stays at its place, ownerless."""
    waiting = tx.state.queue.entries.get(newest_attempt(record))
    if waiting is not None:
        parked = replace(waiting, session=None)
        tx.emit(to.RequestQueued(waiting=parked))
        tx.start_wait_timer(parked)
        tx.capacity_freed = True  # another request may be the head now
    return tx.write(record, owner=None, revision=record.revision + 1)


def handle_given(tx: QueueTransaction, event: on.Asked[ops.Handle]) -> answers.Done:
    op = event.op
    record = tx.state.records.get(op.holder)
    if record is not None and record.step is not Step.ENDED and record.handle != op.handle:
        tx.write(record, handle=op.handle)
        if record.owner != event.session:
            tx.push(record.owner, answers.HandlePush(holder=op.holder, handle=op.handle))
    return answers.Done()


def hand_back(tx: QueueTransaction, event: on.Asked[ops.HandBack]) -> answers.RecordAnswer:
    """Disown a job; one that has not started keeps its place, and its attempt does not count."""
    op = event.op
    if op.away and not tx.state.wakes:
        raise invalid("this scheduler wakes nothing: start ssgmd with --wake, or send no `away`")
    record = _existing(tx, event)
    done = record.is_open and 1 <= record.revision - op.revision <= 2
    if not done and (record.owner != event.session or record.revision != op.revision):
        raise conflict(record, f"{op.holder} has another owner or another revision")
    if not done:
        record = away.leave(tx, record, op.away) if op.away else _give_back(tx, record)
    return answers.RecordAnswer(record=record)


def _give_back(tx: QueueTransaction, record: Record) -> Record:
    if record.step is not Step.WAITING and not record.packing:
        return disown(tx, record)
    dispatch.drop(tx, newest_attempt(record))
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
        with_device=True,
    )


# ---------------------------------------------------------------------- progress


def staged(tx: QueueTransaction, event: on.Asked[ops.StagedOp]) -> answers.RecordAnswer:
    """The envelope of an attempt is stored."""
    op = event.op
    if op.lease is not None:
        return leases.staged(tx, event)
    record = tx.record_of(op.holder)
    if record is None or record.step is Step.ENDED:
        raise AppError(ErrorCode.NOT_FOUND, f"{op.holder} is over")
    if record.owner != event.session:  # it was silent, and its message is about an earlier attempt
        raise conflict(record, f"{op.holder} has another owner")
    if record.with_device or _over(record):
        raise conflict(record, f"{op.holder} has no open attempt without a device")
    if record.packing:
        record = tx.write(record, Step.STAGED, ended_owners=())
    elif Step.STAGED.value not in record.times:  # the function was faster than this message
        running_s = record.times.get(Step.RUNNING.value, tx.wall_s)
        stamped = {**record.times, Step.STAGED.value: min(running_s, tx.wall_s)}
        record = tx.write(replace(record, times=stamped), ended_owners=())
    return answers.RecordAnswer(record=record)


def started(tx: QueueTransaction, event: on.Asked[ops.StartedOp]) -> answers.Done:
    op = event.op
    record = tx.record_of(op.holder)
    if record is not None and not record.with_device and record.attempt == op.n:
        before = record.step is Step.STAGED or record.packing
        if before and not _over(record):
            tx.write(record, Step.RUNNING)
    return answers.Done()


# ---------------------------------------------------------------------- endings


def fail_attempt(tx: QueueTransaction, event: on.Asked[ops.FailAttempt]) -> answers.RecordAnswer:
    op = event.op
    record = _existing(tx, event)
    repeated = (
        record.step is Step.RECEIVED
        and record.reason == op.reason
        and record.revision == op.revision + 1
    )
    mine = record.owner == event.session and record.step is not Step.ENDED
    if not mine or (record.revision != op.revision and not repeated):
        raise conflict(record, f"{op.holder} has another owner or another revision")
    if not repeated:
        record = _fail(tx, record, event)
    return answers.RecordAnswer(record=record)


def _fail(tx: QueueTransaction, record: Record, event: on.Asked[ops.FailAttempt]) -> Record:
    op = event.op
    record = _stop(tx, record, f"attempt failed: {op.reason}", succeeded=False)
    if op.retry_at_s is not None:
        # a failure that is reported again keeps the pause that its owner began with
        record = replace(record, times={RETRY_AT: op.retry_at_s, **record.times})
    return tx.write(record, Step.RECEIVED, reason=op.reason, revision=record.revision + 1)


def _stop(tx: QueueTransaction, record: Record, why: str, *, succeeded: bool) -> Record:
    """End the request or the lease of the newest attempt, whose code succeeded or did not."""
    dispatch.drop(tx, newest_attempt(record))
    entry = tx.state.live_lease(record)
    if entry is not None:
        end(tx, entry, EndReason.RELEASED, why, succeeded=succeeded)
    return tx.state.records[record.holder]


def finish(tx: QueueTransaction, event: on.Asked[ops.Finish]) -> answers.RecordAnswer:
    """End a job and all its leases in one entry. Success also for an unknown or ended job."""
    op = event.op
    record = tx.state.records.get(op.holder)
    if record is None and op.block is not None:
        new = _received(tx, op.holder, op.received_ago_s, event.session)
        new = replace(new, block=op.block)
        if (
            limits.records_refusal(tx.state, new.key, new.tenant) is None
        ):  # else it leaves no history
            evict(tx, limits.history_before(tx.state, new))
            record = _conclude(tx, event, new)
    elif record is not None and record.step is not Step.ENDED:
        why = op.detail or f"job finished: {op.outcome}"
        stopped = _stop(tx, record, why, succeeded=op.outcome == SUCCEEDED)
        if op.block is not None:  # what is known of it at its end
            stopped = replace(stopped, block=op.block)
        record = _conclude(tx, event, stopped)
    return answers.RecordAnswer(record=record)


def _conclude(tx: QueueTransaction, event: on.Asked[ops.Finish], record: Record) -> Record:
    op = event.op
    owner = record.owner
    tenant = record.tenant
    if op.way_s is not None and op.workload is not None and tenant is not None:
        ways_s = (round(op.way_s, _WAY_DIGITS),)
        tx.emit(to.WayLearned(tenant=tenant, workload=op.workload, ways_s=ways_s))
    if op.committed_ago_s is not None:
        seen = {Step.COMMITTED.value: tx.wall_s - op.committed_ago_s}
        record = replace(record, times={**record.times, **seen})
    record = tx.write(
        record,
        Step.ENDED,
        outcome=op.outcome,
        reason=op.reason,
        owner=None,
        revision=record.revision + 1,
    )
    tx.state.timers.arm(TimerKind.RECORD, record.holder, tx.at_s + tx.budget.record_forget_s)
    if owner != event.session:
        tx.push(owner, answers.DisownedPush(holder=op.holder))
    return record


def reopen(tx: QueueTransaction, event: on.Asked[ops.Reopen]) -> answers.RecordAnswer:
    """Redrive: the job queues again; the numbering of its attempts continues.

    Whether an end may be replaced is decided by the job's result; a run may repeat any step.
    """
    op = event.op
    record = _existing(tx, event)
    repeated = (
        record.owner == event.session
        and record.step is Step.RECEIVED
        and record.revision == op.revision + 1
    )
    ended = record.step is Step.ENDED
    if not repeated and not (ended and record.revision == op.revision):
        raise conflict(record, f"{op.holder} cannot be reopened in its present state")
    if not repeated:
        tx.state.timers.cancel(TimerKind.RECORD, record.holder)
        record = tx.write(
            replace(with_ended_attempt(record, tx), times={}),
            Step.RECEIVED,
            owner=event.session,
            outcome=None,
            reason=None,
            lease=None,
            handle=op.handle,
            ended_owners=(),
            waiting_since_s=None,
            with_device=True,
            revision=record.revision + 1,
        )
    return answers.RecordAnswer(record=record)


def forget(tx: QueueTransaction, holder: JobId) -> None:
    """Remove a finished record at the end of its retention."""
    record = tx.state.records.get(holder)
    if record is not None and record.step is Step.ENDED:
        tx.forget(holder)


def evict(tx: QueueTransaction, holders: Iterable[JobId]) -> None:
    """Forget ended jobs to keep a limit of records."""
    for holder in holders:
        tx.state.timers.cancel(TimerKind.RECORD, holder)
        tx.forget(holder)
