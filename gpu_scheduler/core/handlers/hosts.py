"""Hosts: registration, reports, silence, restarts.

A host that is silent for host_stale_s, or without a connection, is STALE: no new leases. After
host_lost_s it is LOST: its leases end. A host that reconnects sends a hello and gets its full
state; it revokes leases that are absent from it. A device that turns bad or disappears gets no new
leases, and its live leases end as DEVICE_BAD.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import DeviceId, HostId, LeaseId
from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.core.handlers import departures, floors, health
from gpu_scheduler.core.handlers.departures import known_host, warm_limits
from gpu_scheduler.core.inventory.devices import DeviceClass, device_class_of
from gpu_scheduler.core.inventory.inventory import HostEntry, Inventory, without_resident
from gpu_scheduler.core.leases.leases import end
from gpu_scheduler.core.queue import dispatch, late_binding
from gpu_scheduler.core.queue.decide import QueueTransaction
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.data_names import offered_of
from gpu_scheduler.model import (
    Device,
    DeviceResidents,
    EndReason,
    HostState,
    LeaseLifetime,
    LeaseState,
)
from gpu_scheduler.protocol import answers
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import host as host_ops

#: The most installs in one page of a full state; a message has room for about 1,200.
INSTALLS_PAGE = 1_000

# ---------------------------------------------------------------------- hello and reports


def hello(tx: QueueTransaction, event: on.HostAsked[host_ops.HostHello]) -> host_ops.HostWelcome:
    """Register the host, end leases that it no longer holds, answer with its full state."""
    op = event.op
    _check_hello(tx, event)
    known = tx.state.inventory.hosts.get(event.host)
    restarted = known is not None and known.incarnation != op.incarnation
    registration = to.HostRegistered(
        host=event.host,
        incarnation=op.incarnation,
        gateway=op.gateway,
        devices=(),
        middlewares=op.middlewares,
        ephemeral=op.ephemeral,
        data=dict(offered_of(op.data)),
        programs=dict(offered_of(op.programs)),
        advance=op.advance,
        loads_ahead=op.loads_ahead,
        data_space_mib=op.data_space_mib,
    )
    host = _register(tx, registration, op.devices)
    departures.withdraw_residents(tx, host)
    if restarted:
        tx.state.inventory.residents.forget(host.host)
    tx.state.inventory.held.forget(host.host)
    tx.state.inventory.held.change(host.host, op.held)
    _publish(tx, host, op.residents, _claimed(tx, host, op.installed))
    _end_vanished(tx, host, dict.fromkeys(op.installed), restarted=restarted)
    mark_alive(tx, host)
    late_binding.waiting_at(tx, host, op.waiting)
    entries = sorted((tx.state.leases[one] for one in host.leases), key=lambda e: e.lease.fence)
    page = entries[:INSTALLS_PAGE]
    more = len(page) < len(entries)
    return host_ops.HostWelcome(
        epoch=tx.state.epoch,
        run=tx.state.run,
        installs=tuple(tx.install(entry, event.host) for entry in page),
        more=more,
        until=entries[-1].lease.fence if more else 0,
        warm=warm_limits(tx.state.parameters, host),
        floors=floors.welcomed(tx, host),
    )


def installs(
    tx: QueueTransaction, event: on.HostAsked[host_ops.InstallsAsked]
) -> host_ops.InstallsPage:
    """The next page of a full state, by fence; newer grants are pushed."""
    op, host = event.op, known_host(tx, event.host)
    entries = (tx.state.leases[lease] for lease in host.leases)
    due = sorted(
        (entry for entry in entries if op.after < entry.lease.fence <= op.until),
        key=lambda entry: entry.lease.fence,
    )
    page = tuple(tx.install(entry, event.host) for entry in due[:INSTALLS_PAGE])
    mark_alive(tx, host)
    return host_ops.InstallsPage(installs=page, more=len(due) > len(page))


def _check_hello(tx: QueueTransaction, event: on.HostAsked[host_ops.HostHello]) -> None:
    op = event.op
    if op.epoch_seen > tx.state.epoch:
        raise AppError(
            ErrorCode.CONFLICT,
            f"host {event.host} has seen epoch {op.epoch_seen}, but this is {tx.state.epoch}: "
            "another scheduler is newer, or this one lost its journal",
        )
    if op.epoch_seen == tx.state.epoch and op.run_seen not in ("", tx.state.run):
        raise AppError(
            ErrorCode.CONFLICT,
            f"host {event.host} has seen epoch {op.epoch_seen} from another scheduler: one of "
            "the two runs on a copy of the other's state folder; stop it",
        )
    known = tx.state.inventory.hosts.get(event.host)
    if known is not None and known.state is HostState.UP and known.incarnation != op.incarnation:
        raise AppError(
            ErrorCode.CONFLICT,
            f"host {event.host} is up: another program is connected under this name; stop that "
            f"one, rename this host, or wait {tx.budget.host_stale_s:g} s if that one is gone",
        )
    _check_devices(tx, event.host, op.devices)


def _check_devices(tx: QueueTransaction, host: HostId, devices: tuple[Device, ...]) -> None:
    seen: dict[DeviceId, None] = {}
    places: dict[int, None] = {}
    for device in devices:
        known = tx.state.inventory.devices.get(device.id)
        if known is not None and known.host != host:
            raise invalid(
                f"device {device.id} is registered by host {known.host}; "
                f"forget that host before {host} may have it"
            )
        if device.id in seen:
            raise invalid(f"host {host} reports device {device.id} twice")
        if device.index in places:
            raise invalid(f"host {host} reports two devices with index {device.index}")
        seen[device.id] = None
        places[device.index] = None


def _check_usage(host: HostEntry, op: host_ops.Report) -> None:
    devices = host.devices if op.devices is None else {d.id: None for d in op.devices}
    seen: dict[DeviceId, None] = {}
    for figures in op.usage:
        if figures.device in seen or figures.device not in devices:
            why = "twice" if figures.device in seen else "which it does not have"
            raise invalid(f"host {host.host} reports usage of device {figures.device}, {why}")
        seen[figures.device] = None


def _register(
    tx: QueueTransaction, registration: to.HostRegistered, devices: tuple[Device, ...]
) -> HostEntry:
    """Journal changes to a host and its devices, and end the leases of devices that turned bad.

    `registration`: the facts about the host beside its devices.
    """
    inventory = tx.state.inventory
    entry = inventory.hosts.get(registration.host)
    known = {} if entry is None else entry.devices
    now = health.assessed(known, devices)
    same = entry is not None and entry.registration() == registration
    if not same or [known[d.id].device if d.id in known else None for d in now] != list(now):
        reasons = {d.id: health.why_leases_end(known[d.id], d) for d in now if d.id in known}
        bad = {device: why for device, why in reasons.items() if why is not None}
        for lease in _leases_on(tx, bad):
            end(tx, tx.state.leases[lease], EndReason.DEVICE_BAD, _end_detail(tx, lease, bad))
        classes = _known_classes(inventory, now)
        tx.emit(replace(registration, devices=now))
        tx.capacity_freed = True
        if any(
            inventory.state_of(device).device_class != device_class
            for device, device_class in classes.items()
        ):
            dispatch.drop_infeasible(tx)
    entry = inventory.hosts[registration.host]
    for device in without_resident(devices):
        health.watch(tx, entry.devices[device.id], device)
    inventory.observe(entry, devices, ())
    return entry


def _known_classes(
    inventory: Inventory, devices: tuple[Device, ...]
) -> dict[DeviceId, DeviceClass]:
    declared = {d.id: device_class_of(d, gateway=True) for d in inventory.declared}
    classes = {d.id: declared[d.id] for d in devices if d.id in declared}
    known = (d.id for d in devices if d.id in inventory.devices)
    classes.update({device: inventory.state_of(device).device_class for device in known})
    return classes


def _leases_on(tx: QueueTransaction, devices: Iterable[DeviceId]) -> list[LeaseId]:
    leases: dict[LeaseId, None] = {}
    for device in devices:
        leases.update(dict.fromkeys(tx.state.inventory.devices[device].shares))
    return list(leases)


def _end_detail(tx: QueueTransaction, lease: LeaseId, bad: Mapping[DeviceId, str]) -> str:
    named = dict.fromkeys(share.device for share in tx.state.leases[lease].lease.shares)
    return "; ".join(f"{device}: {why}" for device, why in bad.items() if device in named)


def _end_vanished(
    tx: QueueTransaction, host: HostEntry, installed: dict[LeaseId, None], *, restarted: bool
) -> None:
    """End leases whose session is gone with the host, since a session exists only there.

    A RESERVED lease has no session yet and is installed again. The same holds for a deadline lease
    on a host with the same incarnation (the install was lost), or on an advisory host, whose
    monitor holds no leases that a restart could lose.
    """
    for lease in tuple(host.leases):
        entry = tx.state.leases[lease]
        if lease in installed or entry.lease.state is LeaseState.RESERVED:
            continue
        watched = host.gateway is None and entry.lease.hold is LeaseLifetime.DEADLINE
        if restarted and not watched:
            end(
                tx,
                entry,
                EndReason.HOST_RESTARTED,
                f"host {host.host} restarted without this lease",
            )
        elif entry.lease.hold is LeaseLifetime.SESSION:
            end(tx, entry, EndReason.SESSION_LOST, f"host {host.host} no longer holds this lease")


def reported(tx: QueueTransaction, event: on.HostAsked[host_ops.Report]) -> answers.Done:
    """Record a report about devices; only durable changes are journalled."""
    op, host = event.op, known_host(tx, event.host)
    _check_usage(host, op)
    if op.devices is not None:
        _check_devices(tx, event.host, op.devices)
        _register(tx, host.registration(), op.devices)
    tx.state.inventory.observe(host, (), op.usage)
    _publish(tx, host, op.residents)
    if op.held is not None:
        tx.state.inventory.held.change(host.host, op.held)
    mark_alive(tx, host)
    return answers.Done()


# ---------------------------------------------------------------------- residents


def _publish(
    tx: QueueTransaction,
    host: HostEntry,
    changes: Iterable[DeviceResidents],
    claimed: Mapping[str, None] | None = None,
) -> None:
    """Apply the published changes of residents; those that a grant has already claimed stay out."""
    for change in changes:
        if change.device in host.devices:
            tx.state.inventory.residents.show(host.host, change.added)
            added = (one for one in change.added if claimed is None or one.id not in claimed)
            tx.state.inventory.change_residents(change.device, added, change.removed)


def _claimed(
    tx: QueueTransaction, host: HostEntry, installed: Iterable[LeaseId]
) -> dict[str, None]:
    """The residents of a host that live leases took, as far as it has not installed those yet."""
    known = dict.fromkeys(installed)
    entries = (tx.state.leases[lease] for lease in host.leases if lease not in known)
    takes = (entry.taken[device] for entry in entries for device in entry.taken)
    claimed: dict[str, None] = {}
    for one in takes:
        claimed.update(dict.fromkeys(resident.id for resident in one.evicted))
        if one.used is not None:
            claimed[one.used.id] = None
    return claimed


# ---------------------------------------------------------------------- silence


def mark_alive(tx: QueueTransaction, host: HostEntry) -> None:
    """Restart the silence timer of a host; a silent host is UP again."""
    host.last_seen_s = tx.at_s
    if host.state is not HostState.UP:
        tx.state.inventory.set_state(host, HostState.UP)
        tx.capacity_freed = True
        tx.state.timers.arm(TimerKind.HOST, host.host, tx.at_s + tx.budget.host_stale_s)
        tx.state.timers.cancel(TimerKind.FORGET, host.host)


def left(tx: QueueTransaction, event: on.HostLeft) -> None:
    """Mark a host without a connection STALE: no new leases until it reconnects.

    This detects a killed program at once; a stopped program is detected by its silence. A host that
    drained itself and has no lease any more is gone: it is LOST at once.
    """
    host = tx.state.inventory.hosts.get(event.host)
    if host is None or host.state is not HostState.UP:
        return
    if host.own_drain is not None and not host.leases:
        departures.lost(tx, host)
    else:
        tx.state.inventory.set_state(host, HostState.STALE)


def check_silence(tx: QueueTransaction, name: HostId) -> None:
    """Handle the timer of a host: UP → STALE → LOST, or rearm it after a message."""
    host = tx.state.inventory.hosts.get(name)
    if host is None:
        return
    stale_s = host.last_seen_s + tx.budget.host_stale_s
    lost_s = host.last_seen_s + tx.budget.host_lost_s
    if tx.at_s >= lost_s:
        departures.lost(tx, host)
    elif tx.at_s >= stale_s:
        tx.state.inventory.set_state(host, HostState.STALE)
        tx.state.timers.arm(TimerKind.HOST, name, lost_s)
    else:
        tx.state.timers.arm(TimerKind.HOST, name, stale_s)


# ---------------------------------------------------------------------- declared devices


def declared(tx: QueueTransaction, event: on.CapacityDeclared) -> None:
    """Replace the declared devices; they count as known."""
    if event.devices == tx.state.inventory.declared:
        return
    tx.emit(to.InventoryDeclared(devices=event.devices))
    dispatch.drop_infeasible(tx)
