"""What each durable part does to the state. No decisions: replay and life run the same code."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from gpu_scheduler.core import changes as do
from gpu_scheduler.core.inventory import Inventory
from gpu_scheduler.core.state import LeaseEntry, State
from gpu_scheduler.model import LeaseState


def apply_part(state: State, part: do.Part) -> None:
    """Bring one part into the state."""
    state.position += 1
    match part:
        case do.EpochStarted():
            state.epoch, state.position = part.epoch, part.position
        case (
            do.InventoryDeclared() | do.HostRegistered() | do.HostDrained() | do.DeviceDrained()
            | do.DeviceChanged() | do.HostForgotten()
        ):  # fmt: skip
            _known(state.inventory, part)
        case do.RequestQueued():
            state.queue.put(part.waiting)
        case do.RequestDropped():
            state.queue.drop(part.attempt)
        case do.LeaseGranted():
            _granted(state, part)
        case do.LeaseChanged():
            _changed(state, part)
        case do.RecordWritten():
            state.set_record(part.record)
        case do.ParameterSet():
            state.set_parameter(part.name, part.value)
        case do.RecordForgotten():
            state.forget_record(part.holder)
        case _:
            assert_never(part)


def _known(
    inventory: Inventory,
    part: do.InventoryDeclared | do.HostRegistered | do.HostDrained | do.DeviceDrained
    | do.DeviceChanged | do.HostForgotten,
) -> None:  # fmt: skip
    match part:
        case do.InventoryDeclared():
            inventory.declared = part.devices
        case do.HostRegistered():
            inventory.register(part.host, part.incarnation, part.gateway, part.devices)
        case do.HostDrained():
            inventory.set_drained(part.host, part.drained)
        case do.DeviceDrained():
            inventory.set_device_drained(part.device, part.drained)
        case do.DeviceChanged():
            inventory.set_device(part.device)
        case do.HostForgotten():
            inventory.forget(part.host)
        case _:
            assert_never(part)


def _granted(state: State, part: do.LeaseGranted) -> None:
    lease = part.lease
    state.queue.drop(lease.attempt)
    state.leases[lease.id] = LeaseEntry(
        lease=lease, request=part.request, session=part.session,
        waiting_since_s=part.waiting_since_s, lease_s=part.lease_s, granted_s=part.granted_s,
        accepted=part.accepted,
        active_s=part.granted_s if lease.state is LeaseState.ACTIVE else None,
    )  # fmt: skip
    state.lease_of[lease.attempt] = lease.id
    for share in lease.shares:
        state.inventory.hosts[share.host].leases[lease.id] = None
        state.inventory.promise(lease.id, share)


def _changed(state: State, part: do.LeaseChanged) -> None:
    entry = state.leases[part.lease]
    entry.lease = replace(
        entry.lease, state=part.state, end_reason=part.reason, end_detail=part.detail
    )
    entry.accepted = part.accepted
    entry.connect_by_s = part.connect_by_s if part.connect_by_s is not None else entry.connect_by_s
    entry.active_s = part.active_s if part.active_s is not None else entry.active_s
    if part.state in (LeaseState.ENDING, LeaseState.ENDED):
        for share in entry.lease.shares:
            state.inventory.take_back(part.lease, share)
    if part.state is LeaseState.ENDED:
        _ended(state, entry)


def _ended(state: State, entry: LeaseEntry) -> None:
    lease = entry.lease
    del state.leases[lease.id]
    if state.lease_of.get(lease.attempt) == lease.id:
        del state.lease_of[lease.attempt]
    for share in lease.shares:
        host = state.inventory.hosts.get(share.host)
        if host is not None:
            host.leases.pop(lease.id, None)
