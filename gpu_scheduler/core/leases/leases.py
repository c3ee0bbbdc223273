"""The life cycle of a lease: granted, accepted, staged, opened, freed, ended.

RESERVED ─ opened ─▶ ACTIVE ─ freed ─▶ ENDING ─ closed ─▶ ENDED(reason); any state can go to ENDED.
A lease has one deadline at a time: accept (the grant of a waiting request) → reserved TTL (renewed)
→ connect_by (once) → none while its session is open; a deadline lease has its length instead. The
end of a lease and the change of its record are parts of one entry.
"""

from __future__ import annotations

from collections.abc import Mapping

from corekit.ids import DeviceId, LeaseId, SessionId
from corekit.values import replace
from gpu_scheduler.core.inventory.devices import fits, share_of
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.leases.history import with_lease, without_grant
from gpu_scheduler.core.placement.eviction import NOTHING_TAKEN, Taken, taken
from gpu_scheduler.core.state.state import DRAINED, NO_RESIDENTS_TAKEN, LeaseEntry, State
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.model import (
    LEASE_ENDED,
    EndReason,
    Lease,
    LeaseLifetime,
    LeaseState,
    Record,
    Request,
    Share,
    Step,
    shares_text,
)
from gpu_scheduler.names import is_away
from gpu_scheduler.protocol import answers
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import host as host_ops

#: Ends of a lease for reasons of its devices or of other requests.
_OF_OTHERS = (
    EndReason.HOST_LOST,
    EndReason.HOST_RESTARTED,
    EndReason.DEVICE_BAD,
    EndReason.PREEMPTED,
)

# ---------------------------------------------------------------------- granting


def grant(
    tx: Transaction,
    waiting: to.Waiting,
    devices: tuple[DeviceId, ...],
    *,
    reservation: str,
    accepted: bool,
    after: tuple[LeaseId, ...] = (),
) -> LeaseEntry:
    """Grant devices to a request, after a check. The caller writes the record and replies.

    `reservation`: the attempt whose reserved devices it may use. `after`: the lease is granted
    ahead, while these hold its shares.
    """
    request, inventory = waiting.request, tx.state.inventory
    shares: dict[DeviceId, Share] = {}
    for device in devices:
        entry = inventory.devices[device]
        reason = None if after else fits(request, inventory.state_of(device), reservation)
        assert reason is None, f"{waiting.attempt} does not fit the proposed {device}: {reason}"
        shares[device] = share_of(request, entry.device, entry.host)
    assert len(shares) == request.count, f"{waiting.attempt}: a grant must have all devices"
    takes = NO_RESIDENTS_TAKEN if after else takes_of(request, inventory, devices)
    by_time = waiting.hold is LeaseLifetime.DEADLINE
    lease = Lease(
        id=_new_id(tx),
        attempt=waiting.attempt,
        holder=waiting.holder,
        fence=tx.state.position + 1,
        state=LeaseState.ACTIVE if by_time and accepted else LeaseState.RESERVED,
        shares=tuple(shares.values()),
        tenant=request.tenant,
        hold=waiting.hold,
        door=waiting.door,
        sources=waiting.sources,
        after=after,
    )
    tx.emit(
        to.LeaseGranted(
            lease=lease,
            request=request,
            session=waiting.session if waiting.holder is None else None,
            waiting_since_s=waiting.waiting_since_s,
            lease_s=waiting.lease_s,
            granted_s=tx.wall_s,
            accepted=accepted,
        )
    )
    granted = tx.state.leases[lease.id]
    if takes:
        take_residents(tx, granted, takes)
    tx.set_deadline(granted, _first_deadline_s(tx, granted))
    tx.push_installs(granted)
    notify(tx, granted, owner=None)
    return granted


def takes_of(
    request: Request, inventory: Inventory, devices: tuple[DeviceId, ...]
) -> Mapping[DeviceId, Taken]:
    """The residents that a grant uses or evicts, by device; only devices where it does."""
    if not inventory.residents:
        return NO_RESIDENTS_TAKEN
    takes = ((device, taken(request, inventory, device)) for device in devices)
    return {device: one for device, one in takes if one != NOTHING_TAKEN}


def take_residents(tx: Transaction, entry: LeaseEntry, takes: Mapping[DeviceId, Taken]) -> None:
    """Take the residents of a lease out of the books."""
    entry.taken = takes
    for device, one in takes.items():
        gone = (*one.evicted, *(() if one.used is None else (one.used,)))
        tx.state.inventory.change_residents(device, (), [resident.id for resident in gone])
        tx.state.inventory.residents.count_evicted(one.evicted)


def _new_id(tx: Transaction) -> LeaseId:
    while True:  # every run has its own seed; this guards against a reused seed
        id_ = LeaseId(tx.ids.new("lease"))
        if id_ not in tx.state.leases:
            return id_


def _first_deadline_s(tx: Transaction, entry: LeaseEntry) -> float | None:
    if not entry.accepted:
        return accept_within_s(tx, entry)
    if entry.lease.hold is LeaseLifetime.DEADLINE:
        return entry.lease_s
    return tx.budget.reserved_ttl_s


def accept_within_s(tx: Transaction, entry: LeaseEntry) -> float:
    """The time to accept a grant: longer for an owner that must be woken first."""
    budget = tx.budget
    away_s = max(budget.accept_s, budget.accept_away_s)
    return away_s if is_away(tx.owner_of(entry)) else budget.accept_s


def notify(tx: Transaction, entry: LeaseEntry, owner: str | None) -> None:
    """Push the state of a lease to its owner and to all watchers."""
    if owner is None and not tx.state.watchers:
        return
    lease = entry.lease
    push = answers.LeasePush(
        holder=lease.holder,
        attempt=lease.attempt,
        lease=lease.id,
        state=lease.state,
        reason=lease.end_reason,
        detail=lease.end_detail,
        device=shares_text(lease.shares),
        after=lease.after,
    )
    tx.push(owner, push)
    for session, sees_all in tx.state.watchers.items():
        if session != owner:
            tx.push(session, push if sees_all else replace(push, detail=""))


def accept(tx: Transaction, entry: LeaseEntry) -> None:
    """Accept the grant of a waiting request; a deadline lease begins here. Idempotent."""
    if entry.accepted:
        return
    if entry.lease.hold is LeaseLifetime.DEADLINE:
        tx.emit(to.LeaseChanged(lease=entry.lease.id, state=LeaseState.ACTIVE, active_s=tx.wall_s))
        tx.set_deadline(entry, entry.lease_s)
        notify(tx, entry, tx.owner_of(entry))
    else:
        tx.emit(to.LeaseChanged(lease=entry.lease.id, state=entry.lease.state))
        if entry.lease.state is LeaseState.RESERVED and not entry.staged:
            tx.set_deadline(entry, reserved_s(tx, entry))


def reserved_s(tx: Transaction, entry: LeaseEntry) -> float:
    """The time for which an accepted lease may stay as it is until its session opens.

    Of a lease granted ahead: what is left of the longest wait of its function. One that gave way
    waits again, but with all its waits no longer than a lease that waits once, and then starts.
    """
    start_s = entry.connect_by_s if entry.connect_by_s is not None else tx.budget.reserved_ttl_s
    if not entry.ahead:
        return start_s
    wait_s, _ = wait_ahead_s(tx.state, entry)
    since_s = entry.granted_s if entry.unbooked_s is None else entry.unbooked_s
    until_s = min(since_s, entry.granted_s + start_s) + wait_s
    return min(wait_s, max(0.0, until_s - tx.wall_s))


def wait_ahead_s(state: State, entry: LeaseEntry) -> tuple[float, str]:
    """The longest wait of a lease ahead, and where it is cut the parameter that cuts it."""
    asked_s = 0.0 if entry.request.advance is None else entry.request.advance.wait_s
    most_s = state.parameters.advance_s_max
    return min(asked_s, most_s), f" (advance_s_max, of {asked_s:g} s)" if asked_s > most_s else ""


# ---------------------------------------------------------------------- its end


def end(
    tx: Transaction,
    entry: LeaseEntry,
    reason: EndReason,
    detail: str = "",
    loading_s: float | None = None,
    succeeded: bool | None = None,
    loaded_ahead_s: float | None = None,
) -> None:
    """End a lease; the record keeps its step and gets the reason, in the same entry.

    A lease granted ahead, whose code cannot have run, ends as WITHDRAWN for reasons of others.
    """
    owner = tx.owner_of(entry)
    if entry.ahead and reason in _OF_OTHERS:
        reason = EndReason.WITHDRAWN
    if entry.ahead:
        what = "withdrawn" if reason is EndReason.WITHDRAWN else "cancelled"
        tx.state.ahead_counts[what] += 1
    tx.emit(
        to.LeaseChanged(
            lease=entry.lease.id,
            state=LeaseState.ENDED,
            reason=reason,
            detail=detail,
            freed_s=tx.wall_s,
            loading_s=loading_s,
            succeeded=succeeded,
            loaded_ahead_s=loaded_ahead_s,
        )
    )
    tx.set_deadline(entry, None)
    tx.state.timers.cancel(TimerKind.ADVANCE, entry.lease.id)
    tx.capacity_freed = True
    tx.released.append(entry)
    record = tx.record_of(entry.lease.holder)
    if record is not None and record.lease == entry.lease.id:
        stamped = {**record.times, LEASE_ENDED: tx.wall_s}
        record = with_lease(replace(record, times=stamped), entry, tx)
        tx.write(orphaned(record), reason=reason.value)
        if is_away(owner) and not succeeded:  # the event of a result starts an orchestrator itself
            tx.wake(record.holder, owner)
    over = host_ops.End(lease=entry.lease.id, fence=entry.lease.fence, reason=reason)
    tx.push_to_hosts(entry, over)
    notify(tx, entry, owner)
    if reason is EndReason.WITHDRAWN and record is None and entry.session in tx.state.sessions:
        # an orchestrator opens the next attempt of its job
        _queue_again(tx, entry, entry.session, replace(entry.request, advance=None))


def orphaned(record: Record) -> Record:
    """The record of an owner that is away, once it has something to do: its wake-up may be lost."""
    if not is_away(record.owner):
        return record
    return replace(record, owner=None, revision=record.revision + 1)


def preempted_why(state: State, entry: LeaseEntry) -> str:
    """The detail of the end of a preempted lease."""
    if entry.preempted_for != DRAINED:
        return f"a request of higher priority needs its device: {entry.preempted_for}"
    hosts = (state.inventory.hosts[share.host] for share in entry.lease.shares)
    drains = {host.host: host.own_drain for host in hosts if host.own_drain is not None}
    return "; ".join(f"host {host} drains: {drain.reason}" for host, drain in drains.items())


def deadline_passed(tx: Transaction, lease: LeaseId) -> None:
    """End a lease whose deadline has passed."""
    entry = tx.state.leases.get(lease)
    if entry is None:
        return
    if not entry.accepted:
        _not_accepted(tx, entry)
    elif entry.ahead:
        for other in entry.lease.after:
            before = tx.state.leases.get(other)
            if before is not None and before.lease.state is LeaseState.ACTIVE:
                before.overruns = True
        wait_s, cut = wait_ahead_s(tx.state, entry)
        text = f"its shares did not become free in {wait_s:g} s{cut}"
        end(tx, entry, EndReason.WITHDRAWN, text)
    elif entry.preempted_for is not None:
        end(tx, entry, EndReason.PREEMPTED, preempted_why(tx.state, entry))
    elif entry.lease.hold is LeaseLifetime.DEADLINE:
        end(tx, entry, EndReason.EXPIRED, "its length is over")
    elif entry.lease.state is LeaseState.ACTIVE:
        end(tx, entry, EndReason.CAP, f"its session was open for the requested {entry.lease_s:g} s")
    elif entry.staged:
        end(tx, entry, EndReason.NOT_STARTED, "no session connected before connect_by")
    else:
        end(tx, entry, EndReason.EXPIRED, "reserved, but neither renewed nor staged")


def _not_accepted(tx: Transaction, entry: LeaseEntry) -> None:
    """Withdraw a grant that was not accepted: the request waits until its session responds."""
    end(tx, entry, EndReason.NOT_ACCEPTED, "the waiting session did not accept its grant")
    record = tx.record_of(entry.lease.holder)
    session = entry.session if record is None else record.owner
    if record is None and (session is None or session not in tx.state.sessions):
        return
    _queue_again(tx, entry, session)
    if session is not None:
        tx.state.queue.mark_unresponsive(entry.lease.attempt)
    if record is not None:
        untried = replace(record, times=without_grant(record.times))
        tx.write(untried, Step.WAITING, lease=None, reason=None)


def _queue_again(
    tx: Transaction, entry: LeaseEntry, session: str | None, request: Request | None = None
) -> None:
    """Give the request of a lease that ended before it was used its place in the queue again.

    `request`: in its place; one whose wait ahead came to nothing takes a free device next.
    """
    waiting = to.Waiting(
        attempt=entry.lease.attempt,
        holder=entry.lease.holder,
        request=entry.request if request is None else request,
        session=None if session is None else SessionId(session),
        waiting_since_s=entry.waiting_since_s,
        hold=entry.lease.hold,
        lease_s=entry.lease_s,
        door=entry.lease.door,
        sources=entry.lease.sources,
    )
    tx.emit(to.RequestQueued(waiting=waiting))
    tx.start_wait_timer(waiting)
    tx.state.queue.mark_dirty(waiting.attempt)  # devices may be free that were freed before
