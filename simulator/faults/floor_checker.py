"""Checks of warm floors after every decision, and at the end, independent of the core's (ADR 58).

That a floor delays no request is an invariant of the queue (`simulator.invariants`): what could be
served does not wait, and that check knows no floors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from corekit.ids import DeviceId
from gpu_scheduler.core import events as on
from gpu_scheduler.core.handlers.floors import CHECK_S
from gpu_scheduler.core.inventory.devices import share_of, unavailable_reason
from gpu_scheduler.core.inventory.floors import FloorKey
from gpu_scheduler.core.state.state import State
from gpu_scheduler.floors import TENANT_WORKERS_MAX, WarmFloor
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops
from gpu_scheduler.warm import workload_key

if TYPE_CHECKING:
    from simulator.faults.host import SimHost

#: From the end of a floor until a check has taken its slots, with the delay of a timer.
ENDED_S = CHECK_S + 1.0
#: Longest time until the workers of floors are there, or gone, once nothing else happens: that of
#: a silent session, a check, a report for each of the workers, and lost answers.
SETTLED_S = 60.0


class FloorChecker:
    """Floors that end with their sessions, within quotas, at the cost of no lease."""

    def __init__(self) -> None:
        self._ended_s: dict[FloorKey, float] = {}  #: with slots, without a session; since when
        self._placed: object = None  #: the slots that were checked last
        self.counts: Counter[str] = Counter()  #: floors that were declared, workers that came

    def note(self, state: State, event: on.Event, entries: Sequence[to.Entry]) -> list[str]:
        """A sentence for every violation after one decision."""
        if isinstance(event, on.HostAsked) and isinstance(event.op, host_ops.Report):
            self.counts["workers"] += sum(len(one.added) for one in event.op.residents)
        parts = [part for entry in entries for part in entry.parts]
        return [
            *self._declared(event, parts),
            *self._ended(state, event.at_s),
            *_evicted(state, parts),
            *self._beside_leases(state, parts),
            *_within_quotas(state),
        ]

    def _declared(self, event: on.Event, parts: Iterable[to.Part]) -> Iterable[str]:
        if isinstance(event, on.Asked) and isinstance(event.op, ops.KeepWarm):
            self.counts["declared"] += len(event.op.floors)
            for part in parts:
                if isinstance(part, to.LeaseChanged | to.LeasePreempted):
                    yield f"a floor changes {part.lease}"

    def _ended(self, state: State, at_s: float) -> Iterable[str]:
        for session in state.floors.sessions():
            if session not in state.sessions:
                yield f"the floors of {session} outlive it"
        wanted = state.floors.wanted()
        left = [key for key in state.floors.slots if key not in wanted]
        self._ended_s = {key: self._ended_s.get(key, at_s) for key in left}
        for key, since_s in self._ended_s.items():
            if at_s - since_s > ENDED_S:
                yield f"the slots of {key} outlive the last session that declares it"

    def _beside_leases(self, state: State, parts: Iterable[to.Part]) -> Iterable[str]:
        """New slots whose workers are still to be loaded have memory that no lease has."""
        if state.floors.slots is self._placed:
            return
        self._placed = state.floors.slots
        if any(isinstance(part, to.LeaseGranted | to.LeaseBooked) for part in parts):
            return  # after the slots were placed, and evicts
        wanted, need_mib = state.floors.wanted(), Counter[DeviceId]()
        for key in [key for key in wanted if key in state.floors.slots]:
            for device, count in Counter(one.device for one in state.floors.slots[key]).items():
                known = state.inventory.devices[device]
                share = share_of(wanted[key].request, known.device, known.host)
                missing = count - _workers(state, key, device)
                need_mib[device] += max(0, missing) * share.memory_mib
        for device, mib in need_mib.items():
            left_mib = _memory_mib(state, device)
            if mib > max(0, left_mib):
                yield f"{device}: {mib} MiB are to be loaded beside leases that leave {left_mib}"


def _workers(state: State, key: FloorKey, device: DeviceId) -> int:
    """The workers of a workload on a device, and the leases of it."""
    requests = [state.leases[lease].request for lease in state.inventory.devices[device].shares]
    leases = sum((one.tenant, one.workload or "") == key for one in requests)
    residents = state.inventory.residents.of(device).values()
    return leases + sum(one.workload == workload_key(*key) for one in residents)


def _memory_mib(state: State, device: DeviceId) -> int:
    """The memory of a device that no lease has."""
    known = state.inventory.devices[device]
    return known.device.memory_mib - sum(share.memory_mib for share in known.shares.values())


def _evicted(state: State, parts: Iterable[to.Part]) -> Iterable[str]:
    """A lease that gets its shares takes their memory from every worker."""
    granted = {part.lease.id for part in parts if isinstance(part, to.LeaseGranted)}
    granted |= {part.lease for part in parts if isinstance(part, to.LeaseBooked)}
    for device, known in state.inventory.devices.items() if granted else ():
        if granted.intersection(known.shares):
            workers = state.inventory.residents.of(device)
            mib, left_mib = (
                sum(one.memory_mib for one in workers.values()),
                _memory_mib(state, device),
            )
            if mib > left_mib:
                yield f"{device}: workers keep {mib} MiB beside leases that leave {left_mib}"


def _within_quotas(state: State) -> Iterable[str]:
    workers: Counter[str] = Counter()
    for (tenant, _), slots in state.floors.slots.items():
        workers[tenant] += len(slots)
    for tenant, count in workers.items():
        most = _workers_max(state, tenant)
        if count > most:
            yield f"tenant {tenant} has {count} workers of floors, of at most {most}"


def _workers_max(state: State, tenant: str) -> int:
    quota = state.parameters.quota(tenant).devices
    return TENANT_WORKERS_MAX if quota is None else int(quota)


# ---------------------------------------------------------------------- at the end


def unmet(state: State, floors: Iterable[WarmFloor], hosts: Iterable[SimHost]) -> list[str]:
    """A sentence for each floor that lacks a worker which a host has room for, without leases."""
    hosts = [host for host in hosts if host.id in state.inventory.hosts]
    workers = Counter(one.workload for host in hosts for _, one in host.warm.workers.values())
    by_key = {workload_key(one.request.tenant, one.request.workload or ""): one for one in floors}
    used = Counter[str]()
    for key, floor in by_key.items():
        used[floor.request.tenant] += workers[key]
    return [
        f"{floor.request.workload} has {workers[key]} workers of {floor.workers_min}"
        for key, floor in by_key.items()
        if workers[key] < floor.workers_min
        and used[floor.request.tenant] < _workers_max(state, floor.request.tenant)
        and any(_has_room(state, floor, host) for host in hosts)
    ]


def _has_room(state: State, floor: WarmFloor, host: SimHost) -> bool:
    """Whether a device that is in order has the memory for one more worker."""
    for device, known in state.inventory.hosts[host.id].devices.items():
        need_mib = share_of(floor.request, known.device, host.id).memory_mib
        available = unavailable_reason(state.inventory.state_of(device)) is None
        if available and need_mib <= host.room_mib(device):
            return True
    return False


def stayed(state: State, hosts: Iterable[SimHost]) -> list[str]:
    """A sentence for each worker, and for the slots, once no session declares a floor."""
    found = [f"{host.id} keeps {one.id}" for host in hosts for _, one in host.warm.workers.values()]
    return found + [f"{key} has slots" for key in state.floors.slots]
