"""The life cycle of a lease: granted, accepted, staged, opened, freed, ended.

RESERVED ─ opened ─▶ ACTIVE ─ freed ─▶ ENDING ─ closed ─▶ ENDED(reason); any state can go to ENDED.
A lease has one deadline at a time: accept (the grant of a waiting request) → reserved TTL (renewed)
→ connect_by (once) → none while its session is open; a deadline lease has its length instead. The
end of a lease and the change of its record are parts of one entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from corekit.errors import ErrorCode
from corekit.ids import DeviceId, LeaseId, SessionId
from corekit.units import plain_percent
from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.core.leases.length import length_problem
from gpu_scheduler.core.placement.eviction import NOTHING_TAKEN, Taken, taken
from gpu_scheduler.core.placement.fits import COMPUTE_PCT_MAX, fits, share_of
from gpu_scheduler.core.queue.search import Proposal
from gpu_scheduler.core.records.history import with_lease, without_grant
from gpu_scheduler.core.state import NO_RESIDENTS_TAKEN, LeaseEntry
from gpu_scheduler.core.transaction import Transaction, preempted_why
from gpu_scheduler.model import (
    LEASE_ENDED,
    Door,
    EndReason,
    Lease,
    LeaseLifetime,
    LeaseState,
    Record,
    Share,
    Sharing,
    Step,
    shares_text,
)
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import host as host_ops

# ---------------------------------------------------------------------- granting


def grant(tx: Transaction, proposal: Proposal, *, accepted: bool) -> LeaseEntry:
    """Commit a proposal, after a check. The caller writes the record and replies."""
    waiting, request = proposal.waiting, proposal.waiting.request
    shares: dict[DeviceId, Share] = {}
    for device in proposal.devices:
        entry = tx.state.inventory.devices[device]
        reason = fits(request, tx.state.inventory.state_of(device), proposal.reservation)
        assert reason is None, f"{waiting.attempt} does not fit the proposed {device}: {reason}"
        shares[device] = share_of(request, entry.device, entry.host)
    assert len(shares) == request.count, f"{waiting.attempt}: a grant must have all devices"
    takes = _takes(tx, proposal) if tx.state.inventory.residents else NO_RESIDENTS_TAKEN
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
    if proposal.remembered is not None:
        tx.emit(proposal.remembered)
    granted = tx.state.leases[lease.id]
    if takes:
        _take_residents(tx, granted, takes)
    tx.set_deadline(granted, _first_deadline_s(tx, granted))
    for host in tx.hosts_of(granted):
        tx.push_to_host(host, tx.install_push(granted, host))
    notify(tx, granted, owner=None)
    return granted


def _takes(tx: Transaction, proposal: Proposal) -> Mapping[DeviceId, Taken]:
    """The residents that a grant uses or evicts, by device; only devices where it does."""
    request, inventory = proposal.waiting.request, tx.state.inventory
    found = ((device, taken(request, inventory, device)) for device in proposal.devices)
    return {device: one for device, one in found if one != NOTHING_TAKEN}


def _take_residents(tx: Transaction, entry: LeaseEntry, takes: Mapping[DeviceId, Taken]) -> None:
    """Take the residents that a lease uses or evicts out of the books."""
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
        return tx.budget.accept_s
    if entry.lease.hold is LeaseLifetime.DEADLINE:
        return entry.lease_s
    return tx.budget.reserved_ttl_s


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
    )
    tx.push(owner, push)
    for session, sees_all in tx.state.watchers.items():
        if session != owner:
            tx.push(session, push if sees_all else replace(push, detail=""))


# ---------------------------------------------------------------------- requests of the holder


def renew(tx: Transaction, event: on.Asked[ops.Renew]) -> None:
    op = event.op
    entry = tx.state.leases.get(op.lease)
    if entry is None:
        tx.refuse(event.reply_to, ErrorCode.NOT_FOUND, f"lease {op.lease} is over")
        return
    if op.lease_s is not None and (problem := _renew_problem(tx, entry, op.lease_s)):
        tx.refuse(event.reply_to, *problem)
        return
    accept(tx, entry)
    if op.lease_s is not None:
        _extend(tx, entry, op.lease_s)
    unstaged = entry.lease.state is LeaseState.RESERVED and not entry.staged
    if unstaged and entry.lease.hold is LeaseLifetime.SESSION:
        tx.set_deadline(entry, tx.budget.reserved_ttl_s)
    tx.reply(event.reply_to, answers.Done())


def _renew_problem(
    tx: Transaction, entry: LeaseEntry, lease_s: float
) -> tuple[ErrorCode, str] | None:
    """The reason why a lease may not be renewed for this long; None when it may."""
    lease = entry.lease
    if lease.hold is not LeaseLifetime.DEADLINE:
        return ErrorCode.INVALID, f"lease {lease.id} lasts as long as its session; it has no length"
    if entry.preempted_for is not None:
        text = f"lease {lease.id} cannot be extended: {preempted_why(tx.state, entry)}"
        return ErrorCode.CONFLICT, text
    elapsed_s = _elapsed_s(tx, entry)
    if problem := length_problem(tx.state.parameters, lease.hold, lease_s, elapsed_s):
        return problem
    devices = tx.state.inventory.devices
    later = entry.deadline_s is None or tx.at_s + lease_s > entry.deadline_s
    if later and any(devices[share.device].reserved_for is not None for share in lease.shares):
        text = f"lease {lease.id} cannot be extended: its device is reserved for a waiting request"
        return ErrorCode.CONFLICT, text
    return None


def _extend(tx: Transaction, entry: LeaseEntry, lease_s: float) -> None:
    """Set the remaining length, also on the hosts, which enforce it by their own clocks."""
    elapsed_s = _elapsed_s(tx, entry)
    tx.emit(to.LeaseProlonged(lease=entry.lease.id, lease_s=elapsed_s + lease_s))
    tx.set_deadline(entry, lease_s)
    for host in tx.hosts_of(entry):
        tx.push_to_host(host, tx.install_push(entry, host))


def _elapsed_s(tx: Transaction, entry: LeaseEntry) -> float:
    """The time since a deadline lease began, by the wall clock."""
    begun_s = tx.wall_s if entry.active_s is None else entry.active_s
    return max(0.0, tx.wall_s - begun_s)


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
            tx.set_deadline(entry, tx.budget.reserved_ttl_s)


def staged(tx: Transaction, event: on.Asked[ops.StagedOp]) -> None:
    """The envelope of an attempt with a lease is stored."""
    op = event.op
    assert op.lease is not None, "an attempt without a device has no lease"
    entry = tx.state.leases.get(op.lease)
    record = tx.record_of(op.holder)
    if entry is None or record is None:
        tx.refuse(event.reply_to, ErrorCode.NOT_FOUND, f"lease {op.lease} is over")
        return
    if record.lease != op.lease:
        tx.conflict(event.reply_to, record, f"lease {op.lease} does not belong to {op.holder}")
        return
    if not entry.staged:
        record = _stage(tx, entry, event)
    tx.reply(event.reply_to, answers.RecordAnswer(record=record))


def _stage(tx: Transaction, entry: LeaseEntry, event: on.Asked[ops.StagedOp]) -> Record:
    op = event.op
    lease = entry.lease
    tx.emit(to.LeaseChanged(lease=lease.id, state=lease.state, connect_by_s=op.connect_by_s))
    record = tx.state.records[op.holder]
    if lease.state is not LeaseState.RESERVED:  # the session opened before this message arrived
        stamped = {**record.times, Step.STAGED.value: tx.wall_s}
        record = replace(record, times=stamped)
        # a deadline lease is not opened by a session
        step = Step.STAGED if lease.hold is LeaseLifetime.DEADLINE else None
        return tx.write(record, step, ended_owners=())
    tx.set_deadline(entry, op.connect_by_s)
    for host in tx.hosts_of(entry):
        tx.push_to_host(host, host_ops.Staged(lease=lease.id, connect_by_s=op.connect_by_s))
    return tx.write(record, Step.STAGED, ended_owners=())


def release(tx: Transaction, event: on.Asked[ops.Release]) -> None:
    op = event.op
    entry = tx.state.leases.get(op.lease)
    if entry is not None:
        end(tx, entry, op.reason, op.detail)
    tx.reply(event.reply_to, answers.Done())


def resize(tx: Transaction, event: on.Asked[ops.Resize]) -> None:
    """Change the elastic limit of all shares of a lease. Idempotent."""
    op = event.op
    entry = _changeable(tx, event)
    if entry is None:
        return
    limit_pct, request = plain_percent(op.compute_limit_pct), entry.request
    least_pct = max(1, request.compute_guarantee_pct)
    if request.sharing is Sharing.EXCLUSIVE or not least_pct <= limit_pct <= COMPUTE_PCT_MAX:
        whole = "; this lease has whole devices" if request.sharing is Sharing.EXCLUSIVE else ""
        message = f"{limit_pct} % is not a valid limit: a shared lease has {least_pct}…100{whole}"
        tx.refuse(event.reply_to, ErrorCode.INVALID, message)
        return
    if limit_pct != request.compute_limit_pct:
        tx.emit(to.LeaseResized(lease=op.lease, compute_limit_pct=limit_pct))
        for host in tx.hosts_of(entry):
            tx.push_to_host(host, host_ops.Resize(lease=op.lease, compute_limit_pct=limit_pct))
    tx.reply(event.reply_to, answers.LeaseAnswer(lease=entry.lease))


def transfer(tx: Transaction, event: on.Asked[ops.Transfer]) -> None:
    """Transfer a reservation to another session. Idempotent.

    Allowed for the session of the lease, and for any session once that session is gone. The lease
    of a job follows the owner of the record.
    """
    op = event.op
    entry = _changeable(tx, event)
    if entry is None:
        return
    held = entry.session not in (None, event.session) and entry.session in tx.state.sessions
    if entry.lease.holder is not None:
        job = entry.lease.holder
        message = f"lease {op.lease} belongs to job {job}: adopt its record instead"
        tx.refuse(event.reply_to, ErrorCode.CONFLICT, message)
    elif entry.session != op.to and held:
        message = f"lease {op.lease} belongs to session {entry.session}, which is connected"
        tx.refuse(event.reply_to, ErrorCode.CONFLICT, message)
    else:
        if entry.session != op.to:
            tx.emit(to.LeaseTransferred(lease=op.lease, session=op.to))
            notify(tx, entry, op.to)
        tx.reply(event.reply_to, answers.LeaseAnswer(lease=entry.lease))


def _changeable(tx: Transaction, event: on.Asked[ops.Resize | ops.Transfer]) -> LeaseEntry | None:
    """The lease of an op while it has its shares; otherwise replies NOT_FOUND."""
    op = event.op
    entry = tx.state.leases.get(op.lease)
    if entry is None or entry.lease.state is LeaseState.ENDING:
        tx.refuse(event.reply_to, ErrorCode.NOT_FOUND, f"lease {op.lease} is over")
        return None
    return entry


# ---------------------------------------------------------------------- messages of its hosts

#: Reasons for which a host ends a deadline lease early; the end of a session does not.
_HOST_ENDS = (EndReason.DEVICE_BAD, EndReason.REVOKED, EndReason.CAP)
#: Reasons of a session's own end.
_OF_SESSION = (EndReason.DONE, EndReason.RELEASED, EndReason.SESSION_LOST)


def session_told(tx: Transaction, event: on.HostAsked[host_ops.SessionChange]) -> None:
    """Apply a gateway's message about the session of a lease. Idempotent."""
    op = event.op
    entry = tx.state.leases.get(op.lease)
    if entry is None:
        if op.state is not host_ops.SessionState.CLOSED:
            gone = EndReason.REVOKED
            tx.push_to_host(event.host, host_ops.End(lease=op.lease, fence=0, reason=gone))
    elif event.host not in tx.hosts_of(entry):
        message = f"lease {op.lease} has no share on host {event.host}"
        tx.refuse(event.reply_to, ErrorCode.INVALID, message)
        return
    elif entry.lease.hold is LeaseLifetime.SESSION:
        _session_changed(tx, entry, event)
    elif op.reason in _HOST_ENDS:
        end(tx, entry, op.reason, op.detail)
    tx.reply(event.reply_to, answers.Done())


def _session_changed(
    tx: Transaction, entry: LeaseEntry, event: on.HostAsked[host_ops.SessionChange]
) -> None:
    op = event.op
    ends = op.state is not host_ops.SessionState.OPENED
    if ends and entry.lease.state is not LeaseState.ENDING:  # `closed` repeats what `freed` had
        tx.state.inventory.residents.loaded_mib += op.loaded_mib or 0
    match op.state:
        case host_ops.SessionState.OPENED:
            _opened(tx, entry)
        case host_ops.SessionState.FREED:
            _freed(tx, entry, op)
        case host_ops.SessionState.CLOSED:
            reason = op.reason or EndReason.DONE
            if entry.preempted_for is not None and reason in _OF_SESSION:
                reason = EndReason.PREEMPTED  # its holder ended because of the notice
            end(tx, entry, reason, op.detail, op.loading_s, op.succeeded)
        case _:
            assert_never(op.state)


def _opened(tx: Transaction, entry: LeaseEntry) -> None:
    if entry.lease.state is not LeaseState.RESERVED:
        return
    tx.emit(to.LeaseChanged(lease=entry.lease.id, state=LeaseState.ACTIVE, active_s=tx.wall_s))
    tx.set_deadline(entry, entry.lease_s)
    _running(tx, entry)
    notify(tx, entry, tx.owner_of(entry))


def door_told(tx: Transaction, event: on.HostAsked[host_ops.DoorOpened]) -> None:
    """Store the address of a lease's own port, and push the lease to its owner again."""
    op = event.op
    entry = tx.state.leases.get(op.lease)
    if entry is None:
        gone = EndReason.REVOKED
        tx.push_to_host(event.host, host_ops.End(lease=op.lease, fence=0, reason=gone))
    elif event.host not in tx.hosts_of(entry) or entry.lease.door is not Door.PORT:
        message = f"lease {op.lease} has no port on host {event.host}"
        tx.refuse(event.reply_to, ErrorCode.INVALID, message)
        return
    elif entry.lease.doors.get(event.host) != op.address:
        tx.emit(to.LeaseDoorOpened(lease=op.lease, host=event.host, address=op.address))
        granted = tx.granted(entry)
        push = answers.GrantedPush(
            holder=entry.lease.holder, attempt=entry.lease.attempt, granted=granted
        )
        tx.push(tx.owner_of(entry), push)
    tx.reply(event.reply_to, answers.Done())


def _running(tx: Transaction, entry: LeaseEntry) -> None:
    record = tx.record_of(entry.lease.holder)
    if record is not None and record.lease == entry.lease.id:
        tx.write(with_lease(record, entry, tx), Step.RUNNING)


def _freed(tx: Transaction, entry: LeaseEntry, op: host_ops.SessionChange) -> None:
    """Free the shares at once: each host revokes them before its next install.

    The session releases the devices on every host of the lease. The lease must not end on hosts
    that have not reported this yet: the session still writes its outputs and result.
    """
    if entry.lease.state is LeaseState.ENDING:
        return
    freed = to.LeaseChanged(
        lease=entry.lease.id,
        state=LeaseState.ENDING,
        freed_s=tx.wall_s,
        loading_s=op.loading_s,
        succeeded=op.succeeded,
    )
    tx.emit(freed)
    entry.taken = NO_RESIDENTS_TAKEN  # its workers may stay as residents, under the same ids
    tx.set_deadline(entry, None)
    tx.capacity_freed = True
    notify(tx, entry, tx.owner_of(entry))


# ---------------------------------------------------------------------- its end


def end(
    tx: Transaction,
    entry: LeaseEntry,
    reason: EndReason,
    detail: str = "",
    loading_s: float | None = None,
    succeeded: bool | None = None,
) -> None:
    """End a lease; the record keeps its step and gets the reason, in the same entry."""
    owner = tx.owner_of(entry)
    tx.emit(
        to.LeaseChanged(
            lease=entry.lease.id,
            state=LeaseState.ENDED,
            reason=reason,
            detail=detail,
            freed_s=tx.wall_s,
            loading_s=loading_s,
            succeeded=succeeded,
        )
    )
    tx.set_deadline(entry, None)
    tx.capacity_freed = True
    record = tx.record_of(entry.lease.holder)
    if record is not None and record.lease == entry.lease.id:
        stamped = {**record.times, LEASE_ENDED: tx.wall_s}
        record = with_lease(replace(record, times=stamped), entry, tx)
        tx.write(record, reason=reason.value)
    over = host_ops.End(lease=entry.lease.id, fence=entry.lease.fence, reason=reason)
    for host in tx.hosts_of(entry):
        tx.push_to_host(host, over)
    notify(tx, entry, owner)


def deadline_passed(tx: Transaction, lease: LeaseId) -> None:
    """End a lease whose deadline has passed."""
    entry = tx.state.leases.get(lease)
    if entry is None:
        return
    if not entry.accepted:
        _not_accepted(tx, entry)
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
    waiting = to.Waiting(
        attempt=entry.lease.attempt,
        holder=entry.lease.holder,
        request=entry.request,
        session=None if session is None else SessionId(session),
        waiting_since_s=entry.waiting_since_s,
        hold=entry.lease.hold,
        lease_s=entry.lease_s,
        door=entry.lease.door,
        sources=entry.lease.sources,
    )
    tx.emit(to.RequestQueued(waiting=waiting))
    if session is not None:
        tx.state.queue.mark_unresponsive(waiting.attempt)
    tx.start_wait_timer(waiting)
    if record is not None:
        untried = replace(record, times=without_grant(record.times))
        tx.write(untried, Step.WAITING, lease=None, reason=None)
