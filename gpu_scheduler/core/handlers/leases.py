"""Requests of holders about their leases, and messages of hosts about the sessions of leases."""

from __future__ import annotations

from typing import assert_never

from corekit.errors import AppError, ErrorCode, invalid
from corekit.units import plain_percent
from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.core.inventory.devices import COMPUTE_PCT_MAX
from gpu_scheduler.core.leases.history import with_lease
from gpu_scheduler.core.leases.leases import accept, end, notify, preempted_why
from gpu_scheduler.core.leases.lengths import check_length
from gpu_scheduler.core.queue import advance, late_binding
from gpu_scheduler.core.queue.decide import QueueTransaction
from gpu_scheduler.core.state.state import NO_RESIDENTS_TAKEN, LeaseEntry
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.model import (
    Door,
    EndReason,
    LeaseLifetime,
    LeaseState,
    Record,
    Sharing,
    Step,
)
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import host as host_ops

#: Reasons for which a host ends a deadline lease early; the end of a session does not.
_HOST_ENDS = (EndReason.DEVICE_BAD, EndReason.REVOKED, EndReason.CAP)
#: Steps of a session that ends.
_ENDS = (host_ops.SessionState.FREED, host_ops.SessionState.CLOSED)
#: Reasons of a session's own end.
_OF_SESSION = (EndReason.DONE, EndReason.RELEASED, EndReason.SESSION_LOST)

# ---------------------------------------------------------------------- requests of the holder


def renew(tx: Transaction, event: on.Asked[ops.Renew]) -> answers.Done:
    op = event.op
    entry = tx.state.leases.get(op.lease)
    if entry is None:
        raise AppError(ErrorCode.NOT_FOUND, f"lease {op.lease} is over")
    if op.lease_s is not None:
        _check_extension(tx, entry, op.lease_s)
    accept(tx, entry)
    if op.lease_s is not None:
        _extend(tx, entry, op.lease_s)
    unstaged = entry.lease.state is LeaseState.RESERVED and not entry.staged
    if unstaged and entry.lease.hold is LeaseLifetime.SESSION and not entry.ahead:
        tx.set_deadline(entry, tx.budget.reserved_ttl_s)
    return answers.Done()


def _check_extension(tx: Transaction, entry: LeaseEntry, lease_s: float) -> None:
    """Refuse to renew a lease for longer than it may last."""
    lease = entry.lease
    if lease.hold is not LeaseLifetime.DEADLINE:
        raise invalid(f"lease {lease.id} lasts as long as its session; it has no length")
    if entry.preempted_for is not None:
        text = f"lease {lease.id} cannot be extended: {preempted_why(tx.state, entry)}"
        raise AppError(ErrorCode.CONFLICT, text)
    check_length(tx.state.parameters, lease.hold, lease_s, _elapsed_s(tx, entry))
    devices = tx.state.inventory.devices
    later = entry.deadline_s is None or tx.at_s + lease_s > entry.deadline_s
    if later and any(devices[share.device].reserved_for is not None for share in lease.shares):
        text = f"lease {lease.id} cannot be extended: its device is reserved for a waiting request"
        raise AppError(ErrorCode.CONFLICT, text)


def _extend(tx: Transaction, entry: LeaseEntry, lease_s: float) -> None:
    """Set the remaining length, also on the hosts, which enforce it by their own clocks."""
    elapsed_s = _elapsed_s(tx, entry)
    tx.emit(to.LeaseProlonged(lease=entry.lease.id, lease_s=elapsed_s + lease_s))
    tx.set_deadline(entry, lease_s)
    tx.push_installs(entry)


def _elapsed_s(tx: Transaction, entry: LeaseEntry) -> float:
    """The time since a deadline lease began, by the wall clock."""
    begun_s = tx.wall_s if entry.active_s is None else entry.active_s
    return max(0.0, tx.wall_s - begun_s)


def staged(tx: Transaction, event: on.Asked[ops.StagedOp]) -> answers.RecordAnswer:
    """The envelope of an attempt with a lease is stored."""
    op = event.op
    assert op.lease is not None, "an attempt without a device has no lease"
    entry = tx.state.leases.get(op.lease)
    record = tx.record_of(op.holder)
    if entry is None or record is None:
        raise AppError(ErrorCode.NOT_FOUND, f"lease {op.lease} is over")
    if record.lease != op.lease:
        message = f"lease {op.lease} does not belong to {op.holder}"
        raise AppError(ErrorCode.CONFLICT, message, record=record)
    if not entry.staged:
        record = _stage(tx, entry, event)
    return answers.RecordAnswer(record=record)


def _stage(tx: Transaction, entry: LeaseEntry, event: on.Asked[ops.StagedOp]) -> Record:
    op = event.op
    lease = entry.lease
    tx.emit(to.LeaseChanged(lease=lease.id, state=lease.state, connect_by_s=op.connect_by_s))
    record = tx.state.records[op.holder]
    if lease.state is not LeaseState.RESERVED:  # the session opened before this message arrived
        # a deadline lease is not opened by a session
        step = Step.STAGED if lease.hold is LeaseLifetime.DEADLINE else None
        staged_s = tx.wall_s
        if step is None and entry.active_s is not None:  # the session found its envelope
            staged_s = min(staged_s, entry.active_s)
        stamped = {**record.times, Step.STAGED.value: staged_s}
        record = replace(record, times=stamped)
        return tx.write(record, step, ended_owners=())
    if not entry.ahead:  # else it counts from the time at which its shares are free
        tx.set_deadline(entry, op.connect_by_s)
        tx.push_to_hosts(entry, host_ops.Staged(lease=lease.id, connect_by_s=op.connect_by_s))
    return tx.write(record, Step.STAGED, ended_owners=())


def release(tx: Transaction, event: on.Asked[ops.Release]) -> answers.Done:
    op = event.op
    entry = tx.state.leases.get(op.lease)
    if entry is not None:
        end(tx, entry, op.reason, op.detail)
    return answers.Done()


def resize(tx: Transaction, event: on.Asked[ops.Resize]) -> answers.LeaseAnswer:
    """Change the elastic limit of all shares of a lease. Idempotent."""
    op = event.op
    entry = _changeable(tx, event)
    limit_pct, request = plain_percent(op.compute_limit_pct), entry.request
    least_pct = max(1, request.compute_guarantee_pct)
    if request.sharing is Sharing.EXCLUSIVE or not least_pct <= limit_pct <= COMPUTE_PCT_MAX:
        whole = "; this lease has whole devices" if request.sharing is Sharing.EXCLUSIVE else ""
        raise invalid(
            f"{limit_pct} % is not a valid limit: a shared lease has {least_pct}…100{whole}"
        )
    if limit_pct != request.compute_limit_pct:
        tx.emit(to.LeaseResized(lease=op.lease, compute_limit_pct=limit_pct))
        tx.push_to_hosts(entry, host_ops.Resize(lease=op.lease, compute_limit_pct=limit_pct))
    return answers.LeaseAnswer(lease=entry.lease)


def transfer(tx: Transaction, event: on.Asked[ops.Transfer]) -> answers.LeaseAnswer:
    """Transfer a reservation to another session. Idempotent.

    Allowed for the session of the lease, and for any session once that session is gone. The lease
    of a job follows the owner of the record.
    """
    op = event.op
    entry = _changeable(tx, event)
    held = entry.session not in (None, event.session) and entry.session in tx.state.sessions
    if entry.lease.holder is not None:
        job = entry.lease.holder
        message = f"lease {op.lease} belongs to job {job}: adopt its record instead"
        raise AppError(ErrorCode.CONFLICT, message)
    if entry.session != op.to:
        if held:
            message = f"lease {op.lease} belongs to session {entry.session}, which is connected"
            raise AppError(ErrorCode.CONFLICT, message)
        tx.emit(to.LeaseTransferred(lease=op.lease, session=op.to))
        notify(tx, entry, op.to)
    return answers.LeaseAnswer(lease=entry.lease)


def _changeable(tx: Transaction, event: on.Asked[ops.Resize | ops.Transfer]) -> LeaseEntry:
    op = event.op
    entry = tx.state.leases.get(op.lease)
    if entry is None or entry.lease.state is LeaseState.ENDING:
        raise AppError(ErrorCode.NOT_FOUND, f"lease {op.lease} is over")
    return entry


# ---------------------------------------------------------------------- messages of its hosts


def session_changed(
    tx: QueueTransaction, event: on.HostAsked[host_ops.SessionChange]
) -> answers.Done:
    """Apply a gateway's message about the session of a lease. Idempotent."""
    op = event.op
    entry = tx.state.leases.get(op.lease)
    if entry is None:
        if op.state is not host_ops.SessionState.CLOSED:
            gone = EndReason.REVOKED
            tx.push_to_host(event.host, host_ops.End(lease=op.lease, fence=0, reason=gone))
    elif event.host not in tx.hosts_of(entry):
        raise invalid(f"lease {op.lease} has no share on host {event.host}")
    elif entry.lease.hold is LeaseLifetime.SESSION:
        _session_changed(tx, entry, event)
    elif op.reason in _HOST_ENDS:
        end(tx, entry, op.reason, op.detail)
    return answers.Done()


def _session_changed(
    tx: QueueTransaction, entry: LeaseEntry, event: on.HostAsked[host_ops.SessionChange]
) -> None:
    op = event.op
    if (
        op.state in _ENDS and entry.lease.state is not LeaseState.ENDING
    ):  # `closed` repeats what `freed` had
        tx.state.inventory.residents.loaded_mib += op.loaded_mib or 0
    match op.state:
        case host_ops.SessionState.KNOCKED:
            late_binding.knocked(tx, entry)
        case host_ops.SessionState.LEFT:
            late_binding.left(tx, entry)
        case host_ops.SessionState.OPENED:
            _opened(tx, entry, op)
        case host_ops.SessionState.FREED:
            _freed(tx, entry, op)
        case host_ops.SessionState.CLOSED:
            reason = op.reason or EndReason.DONE
            if entry.preempted_for is not None and reason in _OF_SESSION:
                reason = EndReason.PREEMPTED  # its holder ended because of the notice
            end(tx, entry, reason, op.detail, op.loading_s, op.succeeded, op.loaded_ahead_s)
        case _:
            assert_never(op.state)


def _opened(tx: QueueTransaction, entry: LeaseEntry, op: host_ops.SessionChange) -> None:
    if entry.lease.state is not LeaseState.RESERVED:
        return
    if entry.ahead and not late_binding.reclaim(tx, entry):
        return  # it opened before its host knew that another one has its shares
    opened = to.LeaseChanged(
        lease=entry.lease.id,
        state=LeaseState.ACTIVE,
        active_s=tx.wall_s,
        waited_s=op.waited_s,
        new_sandbox=op.new_sandbox,
    )
    tx.emit(opened)
    tx.set_deadline(entry, entry.lease_s)
    advance.watch(tx, entry)
    record = tx.record_of(entry.lease.holder)
    if record is not None and record.lease == entry.lease.id:
        tx.write(with_lease(record, entry, tx), Step.RUNNING)
    notify(tx, entry, tx.owner_of(entry))


def door_opened(tx: Transaction, event: on.HostAsked[host_ops.DoorOpened]) -> answers.Done:
    """Store the address of a lease's own port, and push the lease to its owner again."""
    op = event.op
    entry = tx.state.leases.get(op.lease)
    if entry is None:
        gone = EndReason.REVOKED
        tx.push_to_host(event.host, host_ops.End(lease=op.lease, fence=0, reason=gone))
    elif event.host not in tx.hosts_of(entry) or entry.lease.door is not Door.PORT:
        raise invalid(f"lease {op.lease} has no port on host {event.host}")
    elif entry.lease.doors.get(event.host) != op.address:
        tx.emit(to.LeaseDoorOpened(lease=op.lease, host=event.host, address=op.address))
        tx.push_granted(entry)
    return answers.Done()


def _freed(tx: QueueTransaction, entry: LeaseEntry, op: host_ops.SessionChange) -> None:
    """Free the shares at once: each host revokes them before its next install.

    The session releases the devices on every host of the lease. The lease must not end on hosts
    that have not reported this yet: the session still writes its outputs and result.
    """
    if entry.lease.state is LeaseState.ENDING:
        return
    if entry.ahead and not late_binding.reclaim(tx, entry):
        return  # its opening was not reported
    freed = to.LeaseChanged(
        lease=entry.lease.id,
        state=LeaseState.ENDING,
        freed_s=tx.wall_s,
        loading_s=op.loading_s,
        succeeded=op.succeeded,
        loaded_ahead_s=op.loaded_ahead_s,
    )
    tx.emit(freed)
    tx.state.timers.cancel(TimerKind.ADVANCE, entry.lease.id)
    entry.taken = NO_RESIDENTS_TAKEN  # its workers may stay as residents, under the same ids
    tx.set_deadline(entry, None)
    tx.capacity_freed = True
    tx.released.append(entry)
    notify(tx, entry, tx.owner_of(entry))
