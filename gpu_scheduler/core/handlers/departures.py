"""Departures of hosts: drains, loss, and removal from the inventory.

An operator drains a host, or the host drains itself because its program stops or its machine is
about to go away: no new leases, and no warm workers. The leases of a host that drains itself end as
PREEMPTED at its limit, `preempt_grace_s` after a notice. An ephemeral host (an instance of a fleet,
which does not come back under its name) is forgotten `forget_after_s` after it is LOST, as if an
operator had removed it: a request that only it could serve is impossible then, unless declared
capacity could serve it. Learned times are of a device model and stay.
"""

from __future__ import annotations

from corekit.errors import AppError, ErrorCode
from corekit.ids import HostId
from gpu_scheduler.core import events as on
from gpu_scheduler.core.inventory.inventory import HostEntry, OwnDrain
from gpu_scheduler.core.leases.leases import end
from gpu_scheduler.core.queue import dispatch, preemption
from gpu_scheduler.core.queue.decide import QueueTransaction
from gpu_scheduler.core.state.state import DRAINED
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.model import EndReason, HostState, LeaseState
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import host as host_ops


def known_host(tx: QueueTransaction, name: HostId) -> HostEntry:
    """The host that sent an op. Raises NOT_FOUND before its hello."""
    host = tx.state.inventory.hosts.get(name)
    if host is None:
        raise AppError(ErrorCode.NOT_FOUND, f"host {name} is unknown: send hello first")
    return host


# ---------------------------------------------------------------------- drains by an operator


def drain(tx: QueueTransaction, event: on.Asked[ops.Drain | ops.Undrain]) -> answers.Done:
    """Close a host or device to new leases; live leases continue unless revoked. Idempotent.

    Its warm workers are evicted.
    """
    op = event.op
    drained = isinstance(op, ops.Drain)
    host = tx.state.inventory.hosts.get(op.host)
    device = None if host is None or op.device is None else host.devices.get(op.device)
    if host is None or (op.device is not None and device is None):
        what = "is unknown" if host is None else f"has no device {op.device}"
        raise AppError(ErrorCode.NOT_FOUND, f"host {op.host} {what}")
    if host.own_drain is not None and not drained and device is None:
        text = f"host {op.host} drains itself ({host.own_drain.reason}); it takes leases"
        text += " again after its gpud has been started again"
        raise AppError(ErrorCode.CONFLICT, text)
    if device is not None:
        changed = device.drained is not drained
        part: to.Part = to.DeviceDrained(device=device.device.id, drained=drained)
        leases = tuple(device.shares)
    else:
        changed = host.drained is not drained
        part = to.HostDrained(host=op.host, drained=drained)
        leases = tuple(host.leases)
    if changed:
        tx.emit(part)
        tx.capacity_freed = True
        push_warm_limits(tx, host)
    for lease in leases if isinstance(op, ops.Drain) and op.revoke else ():
        if not tx.state.leases[lease].ahead:  # those are withdrawn
            end(tx, tx.state.leases[lease], EndReason.REVOKED, f"{op.host} is drained")
    return answers.Done()


# ---------------------------------------------------------------------- drains of a host by itself


def draining(tx: QueueTransaction, event: on.HostAsked[host_ops.Draining]) -> answers.Done:
    """Close a host to new leases at its own request, or open it again. Idempotent.

    A repeated request does not begin the time until the limit again.
    """
    op, host = event.op, known_host(tx, event.host)
    now = host.own_drain
    known = None if now is None else (now.reason, now.limit_s)
    if known != ((op.reason, op.limit_s) if op.draining else None):
        part = to.HostDraining(
            host=event.host,
            incarnation=host.incarnation,
            draining=op.draining,
            reason=op.reason if op.draining else "",
            since_s=tx.wall_s,
            limit_s=op.limit_s if op.draining else None,
        )
        tx.emit(part)
        tx.capacity_freed = True
        push_warm_limits(tx, host)
        _arm_notice(tx, host)
    return answers.Done()


def left_s(tx: QueueTransaction, drain: OwnDrain) -> float | None:
    """Seconds until the limit of a drain, by the wall clock within its length; None = no limit."""
    if drain.limit_s is None:
        return None
    return min(drain.limit_s, max(0.0, drain.limit_s - (tx.wall_s - drain.since_s)))


def _arm_notice(tx: QueueTransaction, host: HostEntry) -> None:
    """Arm the timer of the notice to a host's leases, as far before the limit as they get grace."""
    timers, drain = tx.state.timers, host.own_drain
    until_s = None if drain is None else left_s(tx, drain)
    if until_s is None:
        timers.cancel(TimerKind.DRAIN, host.host)
    else:
        grace_s = tx.state.parameters.preempt_grace_s
        timers.arm(TimerKind.DRAIN, host.host, tx.at_s + max(0.0, until_s - grace_s))


def limit_near(tx: QueueTransaction, name: HostId) -> None:
    """Send the notice to the leases of a host that drains itself; those without a session end."""
    host = tx.state.inventory.hosts.get(name)
    until_s = None if host is None or host.own_drain is None else left_s(tx, host.own_drain)
    if host is None or until_s is None:
        return
    grace_s = min(tx.state.parameters.preempt_grace_s, until_s)
    for lease in tuple(host.leases):
        entry = tx.state.leases[lease]
        if entry.lease.state is not LeaseState.ENDING and entry.preempted_for is None:
            preemption.preempt(tx, entry, DRAINED, grace_s)
    tx.capacity_freed = True


def rearm(tx: QueueTransaction) -> None:
    """Arm the timers of all drains and of all lost ephemeral hosts again."""
    for host in tx.state.inventory.hosts.values():
        _arm_notice(tx, host)
        _arm_forget(tx, host)


# ---------------------------------------------------------------------- limits of warm workers


def warm_limits(parameters: Parameters, host: HostEntry | None = None) -> host_ops.WarmLimits:
    """The limits of warm workers that every host enforces; with `host`, no worker stays where it
    is drained."""
    drained = () if host is None else tuple(d.device.id for d in host.devices.values() if d.drained)
    is_drained = host is not None and host.is_drained
    return host_ops.WarmLimits(
        none_on=drained[: host_ops.DEVICES_MAX],
        workers_max=0 if is_drained else parameters.warm_workers_max,
        idle_s_max=parameters.warm_idle_s_max,
        memory_pct_max=parameters.warm_memory_pct_max,
        loads_max=parameters.warm_loads_max,
    )


def push_warm_limits(tx: QueueTransaction, host: HostEntry) -> None:
    """Push the limits of warm workers to a host that is up; another gets them when it returns."""
    if host.state is HostState.UP and host.gateway is not None:
        limits = warm_limits(tx.state.parameters, host)
        tx.push_to_host(host.host, host_ops.WarmLimitsPush(limits=limits))


# ---------------------------------------------------------------------- loss and removal


def withdraw_residents(tx: QueueTransaction, host: HostEntry) -> None:
    """Remove all residents of a host from the books."""
    residents = tx.state.inventory.residents
    for device in host.devices:
        tx.state.inventory.change_residents(device, (), tuple(residents.of(device)))


def lost(tx: QueueTransaction, host: HostEntry) -> None:
    """Mark a host LOST: its leases end, and it is forgotten later if it is ephemeral."""
    tx.state.inventory.set_state(host, HostState.LOST)
    host.lost_s = tx.at_s
    withdraw_residents(tx, host)
    silent_s = tx.at_s - host.last_seen_s
    _end_all(tx, host, f"host {host.host} has been silent for {silent_s:.1f} s")
    tx.state.timers.cancel(TimerKind.HOST, host.host)
    _arm_forget(tx, host)


def _arm_forget(tx: QueueTransaction, host: HostEntry) -> None:
    after_s = forgotten_in_s(tx, host)
    if after_s is None:
        tx.state.timers.cancel(TimerKind.FORGET, host.host)
    else:
        tx.state.timers.arm(TimerKind.FORGET, host.host, tx.at_s + after_s)


def forgotten_in_s(tx: QueueTransaction, host: HostEntry) -> float | None:
    """Seconds until a host is forgotten; None = it stays."""
    after_s = tx.state.parameters.forget_after_s
    if not host.ephemeral or host.state is not HostState.LOST or after_s is None:
        return None
    return max(0.0, host.lost_s + after_s - tx.at_s)


def forget_due(tx: QueueTransaction, name: HostId) -> None:
    """Forget an ephemeral host that has been LOST for long enough."""
    host = tx.state.inventory.hosts.get(name)
    if host is not None and forgotten_in_s(tx, host) is not None:
        tx.state.inventory.hosts_forgotten += 1
        _forget(tx, host, f"host {name} is ephemeral and did not come back")


def forget(tx: QueueTransaction, event: on.Asked[ops.Forget]) -> answers.Done:
    """Remove a host for good: its devices are no longer known."""
    op = event.op
    host = tx.state.inventory.hosts.get(op.host)
    if host is None:
        raise AppError(ErrorCode.NOT_FOUND, f"host {op.host} is unknown")
    if host.state is HostState.UP:
        message = f"host {op.host} is up and would register again: stop it first"
        raise AppError(ErrorCode.CONFLICT, message)
    _forget(tx, host, f"host {op.host} was forgotten by an operator")
    return answers.Done()


def _forget(tx: QueueTransaction, host: HostEntry, detail: str) -> None:
    _end_all(tx, host, detail)
    tx.emit(to.HostForgotten(host=host.host))
    for kind in (TimerKind.HOST, TimerKind.DRAIN, TimerKind.FORGET):
        tx.state.timers.cancel(kind, host.host)
    dispatch.drop_infeasible(tx)


def _end_all(tx: QueueTransaction, host: HostEntry, detail: str) -> None:
    for lease in tuple(host.leases):
        end(tx, tx.state.leases[lease], EndReason.HOST_LOST, detail)
