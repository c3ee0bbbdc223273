"""Owners that are away: orchestrators that run only while one of their jobs has something to do.

They leave a job by `hand_back` with `away`: its request waits on at its place, its lease stays. A
grant, a refusal, and the end of a lease without a result are sent as a wake-up (`do.Wake`); after
it any session may take the job. A grant must be accepted within `accept_away_s`. A job whose owner
has something to do, or did not follow its wake-up, has no owner, and the scan for such jobs finds
it. So a lost wake-up delays a job, and never loses one.
"""

from __future__ import annotations

from corekit.ids import SessionId, attempt_id
from corekit.values import replace
from gpu_scheduler.core.leases.leases import accept_within_s, orphaned
from gpu_scheduler.core.queue import dispatch
from gpu_scheduler.core.queue.decide import QueueTransaction
from gpu_scheduler.model import Record, Step
from gpu_scheduler.names import away_of
from gpu_scheduler.protocol import changes as to


def pass_on(tx: QueueTransaction, record: Record, session: SessionId) -> None:
    """Give a waiting request to another session; its patience continues, unless it had none."""
    waiting = tx.state.queue.entries.get(attempt_id(record.holder, record.attempt))
    if waiting is None:
        return
    passed = replace(waiting, session=session)
    if waiting.session is None:
        dispatch.enqueue(tx, passed)
        return
    tx.emit(to.RequestQueued(waiting=passed))
    tx.state.queue.mark_dirty(waiting.attempt)
    tx.capacity_freed = True


def leave(tx: QueueTransaction, record: Record, queue: str) -> Record:
    """The owner goes away; it is woken at once when something happened meanwhile."""
    assert record.owner is not None, "its owner hands it back"
    owner = SessionId(away_of(record.owner, queue))
    entry = tx.state.live_lease(record)
    pass_on(tx, record, owner)
    record = tx.write(record, owner=owner, revision=record.revision + 1)
    if entry is not None and not entry.accepted:
        tx.set_deadline(entry, accept_within_s(tx, entry))
        tx.wake(record.holder, owner)
    elif entry is None and record.lease is not None and record.step is not Step.RECEIVED:
        tx.wake(record.holder, owner)  # its lease has ended
        record = tx.write(orphaned(record))
    return record
