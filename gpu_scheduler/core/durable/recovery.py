"""After a restart, or after the scheduler itself was stopped: everybody gets time to come back.

Monotonic clocks do not survive a restart, so deadlines start anew in full: the safe direction, and
bounded. Only two lengths are measured by the wall clock across a restart, kept within their length:
what is left of a deadline lease, and how long a finished record is still kept.
"""

from __future__ import annotations

from corekit.ids import SessionId
from gpu_scheduler.core.durable import changes as to
from gpu_scheduler.core.state import LeaseEntry
from gpu_scheduler.core.timers import TimerKind
from gpu_scheduler.core.transaction import Turn
from gpu_scheduler.model import Hold, HostState, LeaseState, Step


def begin(turn: Turn, run: str, build: str) -> None:
    """Recovery is complete: open a new epoch and arm every deadline again."""
    state, budget = turn.state, turn.budget
    began = to.EpochStarted(
        epoch=state.epoch + 1, position=state.position + 1, run=run, build=build
    )
    turn.emit(began)
    for host in state.inventory.hosts.values():
        host.heard_s = turn.at_s
        state.inventory.set_state(host, HostState.STALE)
        state.timers.arm(TimerKind.HOST, host.host, turn.at_s + budget.host_lost_s)
    for session in (*state.owned, *state.queue.of_session):
        if session not in state.sessions:
            state.sessions[session] = turn.at_s
            state.timers.arm(TimerKind.SESSION, session, turn.at_s + budget.client_gone_s)
    for entry in state.leases.values():
        turn.set_deadline(entry, _left_s(turn, entry))
    for waiting in state.queue.entries.values():
        turn.start_patience(waiting)
    state.queue.wake_all()
    turn.capacity_freed = True
    for record in state.records.values():
        if record.step is Step.ENDED:
            left_s = _left_by_wall_s(turn, record.updated_s, budget.record_forget_s)
            state.timers.arm(TimerKind.RECORD, record.holder, turn.at_s + left_s)


def _left_s(turn: Turn, entry: LeaseEntry) -> float | None:
    """What a lease may still wait for; None when its session alone decides."""
    if not entry.accepted:
        return turn.budget.client_gone_s  # its session has to reconnect first
    if entry.lease.hold is Hold.DEADLINE:
        assert entry.lease_s is not None, "a deadline lease has a length"
        return _left_by_wall_s(turn, entry.active_s or entry.granted_s, entry.lease_s)
    if entry.lease.state is LeaseState.ACTIVE and entry.lease_s is not None:
        return _left_by_wall_s(turn, entry.active_s or entry.granted_s, entry.lease_s)
    if entry.lease.state is not LeaseState.RESERVED:
        return None
    return entry.connect_by_s if entry.staged else turn.budget.reserved_ttl_s


def _left_by_wall_s(turn: Turn, since_s: float, length_s: float) -> float:
    return min(length_s, max(0.0, length_s - (turn.wall_s - since_s)))


def overslept(turn: Turn) -> None:
    """Our own tick came far too late: what we did not hear while we were stopped proves nothing."""
    state, grace_s = turn.state, turn.budget.client_gone_s
    for host in state.inventory.hosts.values():
        host.heard_s = max(host.heard_s, turn.at_s - turn.budget.host_report_s)
    for session in state.sessions:
        state.sessions[SessionId(session)] = turn.at_s
    for entry in state.leases.values():
        waits = entry.lease.hold is Hold.SESSION and entry.deadline_s is not None
        if waits and (entry.deadline_s or 0.0) <= turn.at_s + grace_s:
            turn.set_deadline(entry, grace_s)
