"""Hosts: registered, heard, silent, restarted, drained, forgotten.

Silent for host_stale_s, or without a connection: STALE, no new promises. For host_lost_s: LOST,
its leases end. A host that returns says hello and gets its full state; what is not in it, it cuts.
A device that turns unhealthy or disappears gets nothing new and its leases end as DEVICE_BAD.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from corekit.errors import ErrorCode
from corekit.ids import DeviceId, HostId, LeaseId
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.durable import changes as to
from gpu_scheduler.core.inventory import health
from gpu_scheduler.core.inventory.inventory import HostEntry, Inventory, without_resident
from gpu_scheduler.core.leases.leases import end
from gpu_scheduler.core.placement.fits import Make, make_of
from gpu_scheduler.core.queue import dispatch
from gpu_scheduler.core.timers import TimerKind
from gpu_scheduler.core.transaction import Turn
from gpu_scheduler.model import Device, EndReason, Hold, HostState, LeaseState

#: Leases made ready for one page; a message holds some 1,200.
INSTALLS_PAGE = 2_000

# ---------------------------------------------------------------------- hello and reports


def hello(turn: Turn, event: on.HostHello) -> None:
    """Know the host, drop what it no longer holds, answer with its full state."""
    problem = _hello_problem(turn, event)
    if problem is not None:
        turn.refuse(event.reply_to, *problem)
        return
    known = turn.state.inventory.hosts.get(event.host)
    restarted = known is not None and known.incarnation != event.incarnation
    said = (event.incarnation, event.gateway, event.middlewares)
    host = _know(turn, event.host, said, event.devices)
    _end_vanished(turn, host, dict.fromkeys(event.installed), restarted=restarted)
    heard(turn, host)
    entries = sorted((turn.state.leases[one] for one in host.leases), key=lambda e: e.lease.fence)
    installs = tuple(turn.install(entry, event.host) for entry in entries)
    welcome = do.HostWelcome(epoch=turn.state.epoch, run=turn.state.run, installs=installs)
    turn.reply(event.reply_to, welcome)


def installs(turn: Turn, event: on.InstallsAsked) -> None:
    """The next leases of a full state, by fence; what was granted since its beginning is pushed."""
    host = turn.state.inventory.hosts.get(event.host)
    if host is None:
        message = f"host {event.host} is not known: say hello first"
        turn.refuse(event.reply_to, ErrorCode.NOT_FOUND, message)
        return
    entries = (turn.state.leases[lease] for lease in host.leases)
    due = sorted(
        (entry for entry in entries if event.after < entry.lease.fence <= event.until),
        key=lambda entry: entry.lease.fence,
    )
    page = tuple(turn.install(entry, event.host) for entry in due[:INSTALLS_PAGE])
    heard(turn, host)
    answer = do.InstallsAnswer(installs=page, more=len(due) > len(page))
    turn.reply(event.reply_to, answer)


def _hello_problem(turn: Turn, event: on.HostHello) -> tuple[ErrorCode, str] | None:
    if event.epoch_seen > turn.state.epoch:
        return ErrorCode.CONFLICT, (
            f"host {event.host} has seen epoch {event.epoch_seen}, this is {turn.state.epoch}: "
            "another scheduler is newer, or this one lost its journal"
        )
    if event.epoch_seen == turn.state.epoch and event.run_seen not in ("", turn.state.run):
        return ErrorCode.CONFLICT, (
            f"host {event.host} has seen epoch {event.epoch_seen} from another scheduler: one of "
            "the two runs on a copy of the other's state folder; stop it"
        )
    known = turn.state.inventory.hosts.get(event.host)
    if known is not None and known.state is HostState.UP and known.incarnation != event.incarnation:
        return ErrorCode.CONFLICT, (
            f"host {event.host} is up: another program speaks for it; stop that one, give this "
            f"host another name, or wait {turn.budget.host_stale_s:g} s if that one is gone"
        )
    return _devices_problem(turn, event.host, event.devices)


def _devices_problem(
    turn: Turn, host: HostId, devices: tuple[Device, ...]
) -> tuple[ErrorCode, str] | None:
    seen: dict[DeviceId, None] = {}
    places: dict[int, None] = {}
    for device in devices:
        known = turn.state.inventory.devices.get(device.id)
        if known is not None and known.host != host:
            return ErrorCode.INVALID, (
                f"device {device.id} is registered by host {known.host}; "
                f"forget that host before {host} may have it"
            )
        if device.id in seen:
            return ErrorCode.INVALID, f"host {host} names device {device.id} twice"
        if device.index in places:
            return ErrorCode.INVALID, f"host {host} names two devices {device.index}"
        seen[device.id] = None
        places[device.index] = None
    return None


def _usage_problem(host: HostEntry, event: on.HostReported) -> tuple[ErrorCode, str] | None:
    devices = host.devices if event.devices is None else {d.id: None for d in event.devices}
    seen: dict[DeviceId, None] = {}
    for figures in event.usage:
        if figures.device in seen or figures.device not in devices:
            why = "twice" if figures.device in seen else "that it does not have"
            return ErrorCode.INVALID, f"host {host.host} tells usage of {figures.device} {why}"
        seen[figures.device] = None
    return None


#: Incarnation, gateway and middlewares of a host.
_Said = tuple[str, str | None, tuple[str, ...]]


def _know(turn: Turn, host: HostId, about: _Said, devices: tuple[Device, ...]) -> HostEntry:
    """Journal what is new about a host, and end the leases of devices that went bad."""
    inventory = turn.state.inventory
    entry = inventory.hosts.get(host)
    known = {} if entry is None else entry.devices
    now = health.judged(known, devices)
    same = entry is not None and (entry.incarnation, entry.gateway, entry.middlewares) == about
    if not same or [known[d.id].device if d.id in known else None for d in now] != list(now):
        said = {d.id: health.why_leases_end(known[d.id], d) for d in now if d.id in known}
        bad = {device: why for device, why in said.items() if why is not None}
        for lease in _leases_on(turn, bad):
            end(turn, turn.state.leases[lease], EndReason.DEVICE_BAD, _why(turn, lease, bad))
        incarnation, gateway, middlewares = about
        registered = to.HostRegistered(
            host=host,
            incarnation=incarnation,
            gateway=gateway,
            devices=now,
            middlewares=middlewares,
        )
        makes = _makes(inventory, now)
        turn.emit(registered)
        turn.capacity_freed = True
        if any(inventory.shape_of(device).make != make for device, make in makes.items()):
            dispatch.judge_again(turn)  # who waits for what is gone waits for nothing
    entry = inventory.hosts[host]
    for device in without_resident(devices):
        health.watch(turn, entry.devices[device.id], device)
    inventory.observe(entry, devices, ())
    return entry


def _makes(inventory: Inventory, devices: tuple[Device, ...]) -> dict[DeviceId, Make]:
    """What was known of these devices, by their hosts or by declaration."""
    declared = {d.id: make_of(d, gateway=True) for d in inventory.declared}
    makes = {d.id: declared[d.id] for d in devices if d.id in declared}
    known = (d.id for d in devices if d.id in inventory.devices)
    makes.update({device: inventory.shape_of(device).make for device in known})
    return makes


def _leases_on(turn: Turn, devices: Iterable[DeviceId]) -> list[LeaseId]:
    """Live leases with a share of these devices, those that gave it back already left alone."""
    leases: dict[LeaseId, None] = {}
    for device in devices:
        leases.update(dict.fromkeys(turn.state.inventory.devices[device].shares))
    return list(leases)


def _why(turn: Turn, lease: LeaseId, bad: Mapping[DeviceId, str]) -> str:
    named = dict.fromkeys(share.device for share in turn.state.leases[lease].lease.shares)
    return "; ".join(f"{device}: {why}" for device, why in bad.items() if device in named)


def _end_vanished(
    turn: Turn, host: HostEntry, installed: dict[LeaseId, None], *, restarted: bool
) -> None:
    """Sessions live on their host alone: one it no longer holds is over.

    What is RESERVED had no session yet and is simply installed again; so is a deadline lease
    on a host that kept its incarnation (its install was lost on the way), or that is only watched:
    nobody there holds it, so whoever restarts there does not lose it.
    """
    for lease in tuple(host.leases):
        entry = turn.state.leases[lease]
        if lease in installed or entry.lease.state is LeaseState.RESERVED:
            continue
        watched = host.gateway is None and entry.lease.hold is Hold.DEADLINE
        if restarted and not watched:
            end(turn, entry, EndReason.HOST_RESTARTED, f"host {host.host} came back without it")
        elif entry.lease.hold is Hold.SESSION:
            end(turn, entry, EndReason.SESSION_LOST, f"host {host.host} no longer holds it")


def reported(turn: Turn, event: on.HostReported) -> None:
    """Facts about devices; only changes of what is durable are journalled."""
    host = turn.state.inventory.hosts.get(event.host)
    if host is None:
        message = f"host {event.host} is not known: say hello first"
        turn.refuse(event.reply_to, ErrorCode.NOT_FOUND, message)
        return
    devices = event.devices
    problem = _usage_problem(host, event)
    if problem is None and devices is not None:
        problem = _devices_problem(turn, event.host, devices)
    if problem is not None:
        turn.refuse(event.reply_to, *problem)
        return
    if devices is not None:
        _know(turn, event.host, (host.incarnation, host.gateway, host.middlewares), devices)
    turn.state.inventory.observe(host, (), event.usage)
    heard(turn, host)
    turn.reply(event.reply_to, do.Done())


# ---------------------------------------------------------------------- silence


def heard(turn: Turn, host: HostEntry) -> None:
    """Any message proves life; one of a silent host makes it UP again."""
    host.heard_s = turn.at_s
    if host.state is not HostState.UP:
        turn.state.inventory.set_state(host, HostState.UP)
        turn.capacity_freed = True
        turn.state.timers.arm(TimerKind.HOST, host.host, turn.at_s + turn.budget.host_stale_s)


def left(turn: Turn, event: on.HostLeft) -> None:
    """Its connection ended: nothing new is promised there until it is back.

    A program that was killed is known at once by this, one that was stopped by its silence.
    """
    host = turn.state.inventory.hosts.get(event.host)
    if host is not None and host.state is HostState.UP:
        turn.state.inventory.set_state(host, HostState.STALE)


def silence(turn: Turn, name: HostId) -> None:
    """Its timer fired: step by step from UP to STALE to LOST, or heard since and timed anew."""
    host = turn.state.inventory.hosts.get(name)
    if host is None:
        return
    stale_s = host.heard_s + turn.budget.host_stale_s
    lost_s = host.heard_s + turn.budget.host_lost_s
    if turn.at_s >= lost_s:
        _lost(turn, host)
    elif turn.at_s >= stale_s:
        turn.state.inventory.set_state(host, HostState.STALE)
        turn.state.timers.arm(TimerKind.HOST, name, lost_s)
    else:
        turn.state.timers.arm(TimerKind.HOST, name, stale_s)


def _lost(turn: Turn, host: HostEntry) -> None:
    turn.state.inventory.set_state(host, HostState.LOST)
    silent_s = turn.at_s - host.heard_s
    _end_all(turn, host, f"host {host.host} has been silent for {silent_s:.1f} s")


def _end_all(turn: Turn, host: HostEntry, detail: str) -> None:
    for lease in tuple(host.leases):
        end(turn, turn.state.leases[lease], EndReason.HOST_LOST, detail)


# ---------------------------------------------------------------------- operators


def drain(turn: Turn, event: on.DrainAsked) -> None:
    """No new leases there; what runs, runs on, unless it is to be revoked. Idempotent."""
    host = turn.state.inventory.hosts.get(event.host)
    device = None if host is None or event.device is None else host.devices.get(event.device)
    if host is None or (event.device is not None and device is None):
        what = "is not known" if host is None else f"has no device {event.device}"
        turn.refuse(event.reply_to, ErrorCode.NOT_FOUND, f"host {event.host} {what}")
        return
    if device is not None:
        changed = device.drained is not event.drained
        part: to.Part = to.DeviceDrained(device=device.device.id, drained=event.drained)
        leases = tuple(device.shares)
    else:
        changed = host.drained is not event.drained
        part = to.HostDrained(host=event.host, drained=event.drained)
        leases = tuple(host.leases)
    if changed:
        turn.emit(part)
        turn.capacity_freed = True
    for lease in leases if event.drained and event.revoke else ():
        end(turn, turn.state.leases[lease], EndReason.REVOKED, f"{event.host} is drained")
    turn.reply(event.reply_to, do.Done())


def forget(turn: Turn, event: on.ForgetAsked) -> None:
    """A host that will not return: its capacity no longer counts as known."""
    host = turn.state.inventory.hosts.get(event.host)
    if host is None:
        turn.refuse(event.reply_to, ErrorCode.NOT_FOUND, f"host {event.host} is not known")
        return
    if host.state is HostState.UP:
        message = f"host {event.host} is up and would register again: stop it first"
        turn.refuse(event.reply_to, ErrorCode.CONFLICT, message)
        return
    _end_all(turn, host, f"host {event.host} was forgotten by an operator")
    turn.emit(to.HostForgotten(host=event.host))
    turn.state.timers.cancel(TimerKind.HOST, event.host)
    dispatch.judge_again(turn)
    turn.reply(event.reply_to, do.Done())


def declared(turn: Turn, event: on.CapacityDeclared) -> None:
    """What may register later counts as known, whatever was declared before does not."""
    if event.devices == turn.state.inventory.declared:
        return
    turn.emit(to.InventoryDeclared(devices=event.devices))
    dispatch.judge_again(turn)
