"""Recovery after a restart or a stall of the scheduler: hosts and sessions get time to reconnect.

Monotonic clocks do not survive a restart, so deadlines start again in full, which is safe and
bounded. Two lengths are measured across a restart by the wall clock, within their bounds: the time
left of a deadline lease, and the retention of an ended record.
"""

from __future__ import annotations

from corekit.ids import SessionId
from gpu_scheduler.core import events as on
from gpu_scheduler.core.handlers import departures
from gpu_scheduler.core.leases.leases import accept_within_s, reserved_s
from gpu_scheduler.core.queue import advance, decide
from gpu_scheduler.core.queue.decide import QueueTransaction
from gpu_scheduler.core.state.state import LeaseEntry
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.model import HostState, LeaseLifetime, LeaseState, Step
from gpu_scheduler.names import is_away
from gpu_scheduler.protocol import changes as to


def begin(tx: QueueTransaction, event: on.EpochBegan) -> None:
    """Begin an epoch after the replay, and arm every deadline again."""
    state, budget = tx.state, tx.budget
    began = to.EpochStarted(
        epoch=state.epoch + 1,
        position=state.position + 1,
        run=event.run,
        build=event.build,
        socket=event.socket,
        http=event.http,
        master_key=event.master_key,
    )
    tx.emit(began)
    decide.switched(tx)  # the daemon may be configured with another policy than before
    for host in state.inventory.hosts.values():
        host.last_seen_s = tx.at_s
        state.inventory.set_state(host, HostState.STALE)
        state.timers.arm(TimerKind.HOST, host.host, tx.at_s + budget.host_lost_s)
    departures.rearm(tx)
    state.wakes = event.wakes
    for session in (*state.owned, *state.queue.by_session):
        if is_away(session):
            continue
        if session in state.struck:  # the scheduler ended while it took this session's records
            state.timers.arm(TimerKind.SESSION, session, tx.at_s)
        elif session not in state.sessions:
            state.sessions[session] = tx.at_s
            state.timers.arm(TimerKind.SESSION, session, tx.at_s + budget.client_gone_s)
    for entry in state.leases.values():
        tx.set_deadline(entry, _left_s(tx, entry))
        advance.watch(tx, entry)
        if not entry.accepted and is_away(tx.owner_of(entry)):
            tx.push_granted(entry)  # the wake-up may have been lost
    for waiting in state.queue.entries.values():
        tx.start_wait_timer(waiting)
    state.queue.mark_all_dirty()
    tx.capacity_freed = True
    for record in state.records.values():
        if record.step is Step.ENDED:
            left_s = _left_by_wall_s(tx, record.updated_s, budget.record_forget_s)
            state.timers.arm(TimerKind.RECORD, record.holder, tx.at_s + left_s)


def _left_s(tx: QueueTransaction, entry: LeaseEntry) -> float | None:
    """Seconds to the deadline of a lease; None when only its session ends it."""
    if not entry.accepted:  # the session must reconnect first
        return max(tx.budget.client_gone_s, accept_within_s(tx, entry))
    if entry.preempted_for is not None and entry.lease.state is LeaseState.ACTIVE:
        return tx.state.parameters.preempt_grace_s
    if entry.lease.hold is LeaseLifetime.DEADLINE:
        assert entry.lease_s is not None, "a deadline lease has a length"
        return _left_by_wall_s(tx, entry.active_s or entry.granted_s, entry.lease_s)
    if entry.lease.state is LeaseState.ACTIVE and entry.lease_s is not None:
        return _left_by_wall_s(tx, entry.active_s or entry.granted_s, entry.lease_s)
    if entry.lease.state is not LeaseState.RESERVED:
        return None
    return reserved_s(tx, entry)


def _left_by_wall_s(tx: QueueTransaction, since_s: float, length_s: float) -> float:
    return min(length_s, max(0.0, length_s - (tx.wall_s - since_s)))


def after_stall(tx: QueueTransaction) -> None:
    """Restart the silence timers after a stall: silence during the stall proves nothing."""
    state, grace_s = tx.state, tx.budget.client_gone_s
    for host in state.inventory.hosts.values():
        host.last_seen_s = max(host.last_seen_s, tx.at_s - tx.budget.host_report_s)
    for session in state.sessions:
        state.sessions[SessionId(session)] = tx.at_s
    for entry in state.leases.values():
        waits = entry.lease.hold is LeaseLifetime.SESSION and entry.deadline_s is not None
        if waits and (entry.deadline_s or 0.0) <= tx.at_s + grace_s:
            tx.set_deadline(entry, grace_s)
