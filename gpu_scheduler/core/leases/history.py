"""Past of a job in its record: its leases, and its attempts that are over.

Both are bounded by number and age (parameters), and change with the record, in the same entry.
"""

from __future__ import annotations

from collections.abc import Mapping

from corekit.values import replace
from gpu_scheduler.core.state.state import LeaseEntry
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.model import (
    JOB_LEASE_SHARES_MAX,
    LEASE_ENDED,
    EndedAttempt,
    JobLease,
    LeaseState,
    Record,
    Step,
)

_OF_A_GRANT = (Step.RESERVED.value, LEASE_ENDED)


def with_lease(record: Record, entry: LeaseEntry, tx: Transaction) -> Record:
    """The record with the present state of a lease of its newest attempt."""
    lease = entry.lease
    ended = lease.state is LeaseState.ENDED
    kept = JobLease(
        lease=lease.id,
        attempt=record.attempt,
        shares=lease.shares[:JOB_LEASE_SHARES_MAX],
        share_count=len(lease.shares),
        granted_s=entry.granted_s,
        active_s=entry.active_s,
        freed_s=entry.freed_s,
        ended_s=tx.wall_s if ended else None,
        reason=lease.end_reason,
        detail=lease.end_detail,
        loading_s=entry.loading_s,
        loaded_ahead_s=entry.loaded_ahead_s,
        ahead=entry.ahead or entry.booked_s is not None,
        booked_s=entry.booked_s,
    )
    earlier = [one for one in record.leases if one.lease != lease.id]
    parameters = tx.state.parameters
    since_s = _since_s(parameters.record_past_s, tx.wall_s)
    recent = [one for one in earlier if one.ended_s is None or one.ended_s >= since_s]
    most = parameters.record_leases_max + (0 if ended else 1)
    return replace(record, leases=tuple([*recent, kept][-most:]) if most else ())


def without_grant(times: Mapping[str, float]) -> Mapping[str, float]:
    """The times of an attempt whose lease ended before it was used: it waits for another one."""
    return {step: at_s for step, at_s in times.items() if step not in _OF_A_GRANT}


def with_ended_attempt(record: Record, tx: Transaction) -> Record:
    """The record with its newest attempt among the attempts that are over.

    An attempt that was handed back before it started is not counted: the one before it is the
    newest again, and already there.
    """
    if record.attempt == 0 or any(one.n == record.attempt for one in record.attempts):
        return record
    ended = EndedAttempt(
        n=record.attempt,
        ended_s=record.updated_s,
        outcome=record.outcome,
        reason=record.reason,
        lease=record.lease,
        times=record.times,
    )
    parameters = tx.state.parameters
    since_s = _since_s(parameters.record_past_s, tx.wall_s)
    recent = [one for one in record.attempts if one.ended_s >= since_s]
    most = parameters.record_attempts_max
    return replace(record, attempts=tuple([*recent, ended][-most:]) if most else ())


def _since_s(past_s: float | None, wall_s: float) -> float:
    return float("-inf") if past_s is None else wall_s - past_s
