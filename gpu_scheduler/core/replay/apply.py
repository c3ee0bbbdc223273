"""The effect of each durable part on the state. No decisions: replay and live runs share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from corekit.ids import AttemptId, HostId
from corekit.values import replace
from gpu_scheduler.core.admission.tenants import (
    NOTHING,
    Amount,
    Used,
    amount_of,
    amount_of_percent,
    capacity_of,
)
from gpu_scheduler.core.inventory.inventory import Inventory, OwnDrain
from gpu_scheduler.core.state.learned_times import COMPLETE, Times, WorkloadOn
from gpu_scheduler.core.state.state import NO_RESIDENTS_TAKEN, Leader, LeaseEntry, State
from gpu_scheduler.model import LeaseLifetime, LeaseState
from gpu_scheduler.protocol import changes as to


def apply_part(state: State, part: to.Part) -> None:
    """Apply one part to the state."""
    state.position += 1
    _EFFECTS[type(part)](state, part)


def _began(state: State, part: to.EpochStarted) -> None:
    state.epoch, state.position, state.run = part.epoch, part.position, part.run
    state.build, state.master_key = part.build, part.master_key
    state.leader = Leader(socket=part.socket, http=part.http)
    state.epoch_ended = False


def _epoch_ended(state: State, part: to.EpochEnded) -> None:
    state.epoch_ended = part.epoch == state.epoch


def _used(state: State, part: to.TenantUsed) -> None:
    state.tenants.used[part.tenant] = Used(amount_of_percent(*part.amount_s), part.as_of_s)


def _learned(state: State, part: to.WorkloadLearned) -> None:
    times = Times(
        executions_s=part.executions_s,
        loadings_s=part.loadings_s,
        starts_s=part.starts_s,
        new_starts_s=part.new_starts_s,
        new_part=part.new_part,
        sandboxes=part.sandboxes,
        cold_starts=part.cold_starts,
        warm_starts=part.warm_starts,
        runs=part.runs,
    )
    state.learned_times.restore(WorkloadOn(part.tenant, part.workload, part.model), times)


def _way_learned(state: State, part: to.WayLearned) -> None:
    state.learned_times.learn_ways(part.tenant, part.workload, part.ways_s)


def _declared(state: State, part: to.InventoryDeclared) -> None:
    state.inventory.declared = part.devices


def _registered(state: State, part: to.HostRegistered) -> None:
    before = _capacity(state.inventory, part.host)
    state.inventory.register(part)
    state.tenants.resize(before, _capacity(state.inventory, part.host))


def _drains(state: State, part: to.HostDraining) -> None:
    drain = OwnDrain(part.reason, part.since_s, part.limit_s) if part.draining else None
    state.inventory.set_own_drain(part.host, part.incarnation, drain)


def _forgotten(state: State, part: to.HostForgotten) -> None:
    state.tenants.resize(_capacity(state.inventory, part.host), NOTHING)
    state.inventory.forget(part.host)


def _capacity(inventory: Inventory, host: HostId) -> Amount:
    entry = inventory.hosts.get(host)
    return NOTHING if entry is None else capacity_of(d.device for d in entry.devices.values())


def _prolonged(state: State, part: to.LeaseProlonged) -> None:
    state.leases[part.lease].lease_s = part.lease_s


def _preempted(state: State, part: to.LeasePreempted) -> None:
    state.leases[part.lease].preempted_for = part.attempt


def _transferred(state: State, part: to.LeaseTransferred) -> None:
    state.leases[part.lease].session = part.session


def _record_changed(state: State, part: to.RecordChanged) -> None:
    before = state.records[part.record.holder]
    known = before.__struct_fields__  # a newer version may have others
    same = {name: getattr(before, name) for name in part.same if name in known}
    state.set_record(replace(part.record, **same))


def _granted(state: State, part: to.LeaseGranted) -> None:
    lease = part.lease
    _dropped(state, lease.attempt)
    amount = amount_of(lease.shares)
    state.leases[lease.id] = LeaseEntry(
        lease=lease,
        request=part.request,
        amount=amount,
        session=part.session,
        waiting_since_s=part.waiting_since_s,
        lease_s=part.lease_s,
        granted_s=part.granted_s,
        accepted=part.accepted,
        taken=NO_RESIDENTS_TAKEN,
        active_s=part.granted_s if lease.state is LeaseState.ACTIVE else None,
    )
    state.lease_of[lease.attempt] = lease.id
    for share in lease.shares:
        state.inventory.hosts[share.host].leases[lease.id] = None
    _hold(state, state.leases[lease.id])


def _booked(state: State, part: to.LeaseBooked) -> None:
    entry = state.leases[part.lease]
    held = not entry.ahead
    if part.after and held:
        _let_go(state, entry)
    _take_off(state, entry)
    entry.lease = replace(entry.lease, after=part.after)
    entry.booked_s = None if part.after else part.booked_s
    entry.unbooked_s = part.booked_s if part.after else None
    if entry.ahead or not held:
        _hold(state, entry)


def _hold(state: State, entry: LeaseEntry) -> None:
    """Book the shares of a lease, or note that it waits for them."""
    lease = entry.lease
    if entry.ahead:
        for share in lease.shares:
            state.ahead.setdefault(share.device, {})[lease.id] = None
        return
    state.tenants.add(lease.tenant, entry.amount)
    count_shares(state, entry, +1)
    for share in lease.shares:
        state.inventory.allocate(lease.id, share)


def _let_go(state: State, entry: LeaseEntry) -> None:
    """Free the shares of a lease that is not over."""
    state.tenants.release(entry.lease.tenant, entry.amount)
    count_shares(state, entry, -1)
    for share in entry.lease.shares:
        state.inventory.deallocate(entry.lease.id, share)


def _take_off(state: State, entry: LeaseEntry) -> None:
    for share in entry.lease.shares if entry.ahead else ():
        of_device = state.ahead[share.device]
        of_device.pop(entry.lease.id)
        if not of_device:
            del state.ahead[share.device]


def _queued(state: State, part: to.RequestQueued) -> None:
    _dropped(state, part.waiting.attempt)
    state.queue.put(part.waiting)
    state.usage_counts.reservation_waits(part.waiting, +1)


def _dropped(state: State, attempt: AttemptId) -> None:
    waiting = state.queue.entries.get(attempt)
    if waiting is not None:
        state.queue.drop(attempt)
        state.usage_counts.reservation_waits(waiting, -1)


def _changed(state: State, part: to.LeaseChanged) -> None:
    entry = state.leases[part.lease]
    held = entry.lease.state is not LeaseState.ENDING
    entry.lease = replace(
        entry.lease, state=part.state, end_reason=part.reason, end_detail=part.detail
    )
    entry.accepted = part.accepted
    entry.connect_by_s = part.connect_by_s if part.connect_by_s is not None else entry.connect_by_s
    entry.active_s = part.active_s if part.active_s is not None else entry.active_s
    entry.waited_s = part.waited_s if part.waited_s is not None else entry.waited_s
    if part.new_sandbox is not None:
        entry.new_sandbox = part.new_sandbox
    if part.state in (LeaseState.ENDING, LeaseState.ENDED):
        if held:
            entry.freed_s, entry.loading_s = part.freed_s, part.loading_s
            entry.loaded_ahead_s = part.loaded_ahead_s
        _take_off(state, entry)
        for share in entry.lease.shares:
            state.inventory.deallocate(part.lease, share)
        if held and not entry.ahead:
            _given_back(state, entry, part.freed_s)
            _learn(state, entry, part)
    if part.state is LeaseState.ENDED:
        _ended(state, entry)


def _resized(state: State, part: to.LeaseResized) -> None:
    entry, limit_pct = state.leases[part.lease], part.compute_limit_pct
    entry.request = replace(entry.request, compute_limit_pct=limit_pct)
    shares = tuple(replace(share, compute_limit_pct=limit_pct) for share in entry.lease.shares)
    entry.lease = replace(entry.lease, shares=shares)
    for share in shares if not entry.ahead else ():
        state.inventory.devices[share.device].shares[entry.lease.id] = share


def _door_opened(state: State, part: to.LeaseDoorOpened) -> None:
    entry = state.leases[part.lease]
    entry.lease = replace(entry.lease, doors={**entry.lease.doors, part.host: part.address})


def _given_back(state: State, entry: LeaseEntry, freed_s: float | None) -> None:
    """Subtract a freed lease from its tenant; add its use, unless a snapshot already has it."""
    tenants, tenant = state.tenants, entry.lease.tenant
    tenants.release(tenant, entry.amount)
    count_shares(state, entry, -1)
    if freed_s is not None:
        held_s = max(0.0, freed_s - entry.held_since_s)
        half_life_s = state.parameters.usage_half_life_s
        tenants.charge(tenant, entry.amount, held_s, freed_s, half_life_s)


def count_shares(state: State, entry: LeaseEntry, sign: int) -> None:
    """Add the shares of a lease to those of its workload, or subtract them."""
    workload = entry.request.workload
    if workload is None:
        return
    key = (entry.lease.tenant, workload)
    count = state.shares_of.get(key, 0) + sign * len(entry.lease.shares)
    if count > 0:
        state.shares_of[key] = count
    else:
        state.shares_of.pop(key, None)


def _learn(state: State, entry: LeaseEntry, part: to.LeaseChanged) -> None:
    """Learn the times of a complete execution, unless a snapshot already has them.

    Code that failed teaches what it loaded, and nothing else.
    """
    workload, lease = entry.request.workload, entry.lease
    if workload is None or entry.active_s is None or part.freed_s is None:
        return
    if entry.preempted_for is not None:
        return
    if lease.hold is LeaseLifetime.SESSION and part.reason in COMPLETE:
        key = WorkloadOn(lease.tenant, workload, lease.shares[0].model)
        held_s = None if part.succeeded is False else max(0.0, part.freed_s - entry.active_s)
        start_s = _start_s(entry, entry.active_s)
        state.learned_times.learn(
            key, held_s, part.loading_s, start_s, part.loaded_ahead_s, entry.new_sandbox
        )


def _start_s(entry: LeaseEntry, active_s: float) -> float | None:
    """The time from the grant to the first session, without its wait for the shares."""
    if entry.booked_s is not None and entry.waited_s is None:
        return None
    return active_s - entry.granted_s - (entry.waited_s or 0.0)


def _ended(state: State, entry: LeaseEntry) -> None:
    lease = entry.lease
    del state.leases[lease.id]
    state.ending.pop(lease.id, None)
    if state.lease_of.get(lease.attempt) == lease.id:
        del state.lease_of[lease.attempt]
    for share in lease.shares:
        host = state.inventory.hosts.get(share.host)
        if host is not None:
            host.leases.pop(lease.id, None)


#: The handler of each part; one for every class of `changes.Part`.
_EFFECTS: Mapping[type[to.Part], Callable[[State, Any], None]] = {
    to.LeaseGranted: _granted,
    to.LeaseChanged: _changed,
    to.LeaseBooked: _booked,
    to.LeasePreempted: _preempted,
    to.LeaseProlonged: _prolonged,
    to.LeaseResized: _resized,
    to.LeaseTransferred: _transferred,
    to.LeaseDoorOpened: _door_opened,
    to.RecordWritten: lambda state, part: state.set_record(part.record),
    to.RecordChanged: _record_changed,
    to.RecordForgotten: lambda state, part: state.forget_record(part.holder),
    to.RequestQueued: _queued,
    to.RequestDropped: lambda state, part: _dropped(state, part.attempt),
    to.EpochStarted: _began,
    to.EpochEnded: _epoch_ended,
    to.ParameterSet: lambda state, part: state.set_parameter(part.name, part.value),
    to.PolicyRemembered: lambda state, part: state.remember(part),
    to.TenantUsed: _used,
    to.WorkloadLearned: _learned,
    to.WayLearned: _way_learned,
    to.InventoryDeclared: _declared,
    to.HostRegistered: _registered,
    to.HostDrained: lambda state, part: state.inventory.set_drained(part.host, part.drained),
    to.HostDraining: _drains,
    to.DeviceDrained: lambda state, part: state.inventory.set_device_drained(
        part.device, part.drained
    ),
    to.DeviceChanged: lambda state, part: state.inventory.set_device(part.device),
    to.HostForgotten: _forgotten,
    to.Unknown: lambda state, part: state.unknown.append(part),
}
