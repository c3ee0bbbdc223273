"""The durable state as parts, for journal compaction: applying them to a fresh state rebuilds it.

Two states are the same exactly when their snapshots are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from itertools import chain

from corekit.values import replace
from gpu_scheduler.core.state.state import LeaseEntry, State
from gpu_scheduler.model import LeaseState
from gpu_scheduler.protocol import changes as to


def snapshot(state: State) -> tuple[to.Entry, ...]:
    """The snapshot as one entry: half a snapshot is useless."""
    return (to.Entry(parts=tuple(parts(state))),)


def parts(state: State) -> Iterator[to.Part]:
    """The parts of that entry. Mutable data is copied before this returns: another thread may
    consume the parts while the state keeps changing.
    """
    waiting = state.queue.in_order_of_arrival()
    leases = [copy(entry) for entry in state.leases.values()]
    records = list(state.records.values())
    # last: it sets the position, which the parts before it have moved
    ended = [to.EpochEnded(epoch=state.epoch)] if state.epoch_ended else []
    last = to.EpochStarted(
        epoch=state.epoch,
        position=state.position - len(ended),
        run=state.run,
        build=state.build,
        socket=state.leader.socket,
        http=state.leader.http,
        master_key=state.master_key,
    )
    return chain(
        list(_known(state)),
        (to.RequestQueued(waiting=one) for one in waiting),
        chain.from_iterable(map(_lease_parts, leases)),
        list(_used(state)),
        list(_memories(state)),
        list(_learned(state)),
        (to.RecordWritten(record=record) for record in records),
        tuple(state.unknown),
        (last, *ended),
    )


def _known(state: State) -> Iterator[to.Part]:
    inventory = state.inventory
    for name, value in state.overrides.items():
        yield to.ParameterSet(name=name, value=value)
    yield to.InventoryDeclared(devices=inventory.declared)
    for host in inventory.hosts.values():
        yield host.registration(tuple(entry.device for entry in host.devices.values()))
        if host.own_drain is not None:
            yield to.HostDraining(
                host=host.host,
                incarnation=host.incarnation,
                draining=True,
                reason=host.own_drain.reason,
                since_s=host.own_drain.since_s,
                limit_s=host.own_drain.limit_s,
            )
        if host.drained:
            yield to.HostDrained(host=host.host, drained=True)
        for device in host.devices.values():
            if device.drained:
                yield to.DeviceDrained(device=device.device.id, drained=True)


def _used(state: State) -> Iterator[to.Part]:
    for tenant, used in state.tenants.used.items():
        yield to.TenantUsed(tenant=tenant, amount_s=used.amount.in_percent(), as_of_s=used.as_of_s)


def _memories(state: State) -> Iterator[to.Part]:
    for policy, memory in state.memories.items():
        yield to.PolicyRemembered(
            policy=policy, seed=memory.seed, draws=memory.draws, changed=dict(memory.values)
        )


def _learned(state: State) -> Iterator[to.Part]:
    for key, times in state.learned_times.items():
        yield to.WorkloadLearned(
            tenant=key.tenant,
            workload=key.workload,
            model=key.model,
            executions_s=times.executions_s,
            loadings_s=times.loadings_s,
            starts_s=times.starts_s,
            new_starts_s=times.new_starts_s,
            new_part=times.new_part,
            sandboxes=times.sandboxes,
            cold_starts=times.cold_starts,
            warm_starts=times.warm_starts,
            runs=times.runs,
        )
    for (tenant, workload), ways_s in state.learned_times.ways():
        yield to.WayLearned(tenant=tenant, workload=workload, ways_s=ways_s)


def _lease_parts(entry: LeaseEntry) -> Iterator[to.Part]:
    lease = entry.lease
    yield to.LeaseGranted(
        lease=replace(lease, state=LeaseState.RESERVED),
        request=entry.request,
        session=entry.session,
        waiting_since_s=entry.waiting_since_s,
        lease_s=entry.lease_s,
        granted_s=entry.granted_s,
        accepted=entry.accepted,
    )
    yield to.LeaseChanged(
        lease=lease.id,
        state=lease.state,
        accepted=entry.accepted,
        connect_by_s=entry.connect_by_s,
        active_s=entry.active_s,
        waited_s=entry.waited_s,
        new_sandbox=entry.new_sandbox,
        reason=lease.end_reason,
        detail=lease.end_detail,
    )
    if entry.booked_s is not None:
        yield to.LeaseBooked(lease=lease.id, booked_s=entry.booked_s)
    if entry.unbooked_s is not None:
        yield to.LeaseBooked(lease=lease.id, booked_s=entry.unbooked_s, after=lease.after)
    if entry.preempted_for is not None:
        yield to.LeasePreempted(lease=lease.id, attempt=entry.preempted_for)
