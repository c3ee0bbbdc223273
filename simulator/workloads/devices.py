"""Devices of simulated hosts: memory of leases and warm workers, under the rules of gpud.

A worker outlives its lease as a warm worker of its tenant and workload. The scheduler names the
warm workers that a lease uses and those that must go; if the lease does not fit beside the rest,
the host evicts more, cheapest to load again first. Before that it ends loads: in memory that no
lease has, workers load what they loaded before, for leases granted ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from corekit.ids import DeviceId, HostId, LeaseId
from corekit.values import replace
from gpu_scheduler.model import Device, DeviceKind, DeviceResidents, Resident
from gpu_scheduler.protocol.host import Install, WarmLimits
from simulator.workloads.model import HostSpec


@dataclass(slots=True)
class WarmWorker:
    """A worker without a lease, and the time at which its last lease ended."""

    resident: Resident
    idle_since_s: float


@dataclass(slots=True)
class SimDevice:
    """One device: the memory of its leases, its warm workers, and their unreported changes."""

    device: Device
    host: HostId
    leases: dict[LeaseId, int] = field(default_factory=dict)  #: lease → its memory in MiB
    warm: dict[str, WarmWorker] = field(default_factory=dict)  #: by id of the resident
    added: dict[str, Resident] = field(default_factory=dict)  #: not reported yet
    removed: dict[str, None] = field(default_factory=dict)
    loading: dict[LeaseId, Resident] = field(default_factory=dict)  #: for leases ahead
    awaited: dict[LeaseId, str] = field(default_factory=dict)  #: workloads of leases ahead
    workloads: dict[LeaseId, str | None] = field(default_factory=dict)  #: of the other leases
    evictions: int = 0

    @property
    def id(self) -> DeviceId:
        return self.device.id

    def install(self, lease: LeaseId, memory_mib: int, workload: str | None) -> Resident | None:
        """Begin a lease; its warm worker, if the device still has one of the workload key."""
        used = None
        if workload is not None:
            used = next((w for w in self.warm.values() if w.resident.workload == workload), None)
        if used is not None:
            self._forget(used.resident.id)
        own = self.loading.pop(lease, None)  # its memory is within the share
        self.awaited.pop(lease, None)
        self.leases[lease], self.workloads[lease] = memory_mib, workload
        self._make_room()
        return own if used is None else used.resident

    def load(self, lease: LeaseId, resident: Resident, limits: WarmLimits) -> bool:
        """Begin to load for a lease ahead; False: a lease before it leaves a worker of its
        workload, one is loaded, or there is no room."""
        warm = (worker.resident.workload for worker in self.warm.values())
        before = (key for other, key in self.awaited.items() if other != lease)
        there = resident.workload in {*warm, *self.workloads.values(), *before}
        loading_mib = sum(one.memory_mib for one in self.loading.values())
        free_mib = self.device.memory_mib - sum(self.leases.values()) - self._warm_mib()
        free_mib -= loading_mib
        if there or len(self.loading) >= limits.loads_max or resident.memory_mib > free_mib:
            return False
        self.loading[lease] = resident
        return True

    def loaded(self, lease: LeaseId, at_s: float) -> bool:
        """A load has ended; False: it was stopped, or the lease has the device."""
        if (resident := self.loading.pop(lease, None)) is None:
            return False
        self.warm[resident.id] = WarmWorker(resident, at_s)
        self.added[resident.id] = resident
        return True

    def evict(self, ids: Iterable[str]) -> None:
        """Evict warm workers by id; an unknown one is gone already."""
        for id_ in ids:
            if id_ in self.warm:
                self._forget(id_)
                self.evictions += 1

    def end(self, lease: LeaseId) -> None:
        """End a lease without keeping its worker."""
        self.leases.pop(lease, None)
        self.workloads.pop(lease, None)

    def keep(self, resident: Resident, at_s: float, limits: WarmLimits) -> None:
        """Keep the worker of an ended lease, within the limits."""
        self.warm[resident.id] = WarmWorker(resident, at_s)
        self.added[resident.id] = resident
        most_mib = self.device.memory_mib * limits.memory_pct_max // 100
        while counted := self._counted(limits):
            used_mib = sum(worker.resident.memory_mib for worker in counted)
            if len(counted) <= limits.workers_max and used_mib <= most_mib:
                break
            others = [worker for worker in counted if worker.resident.id != resident.id]
            self._evict_cheapest(others or counted)
        self._make_room()

    def evict_idle(self, at_s: float, limits: WarmLimits) -> None:
        """Evict the warm workers that were without a lease for too long."""
        counted = self._counted(limits)
        self.evict([w.resident.id for w in counted if at_s - w.idle_since_s >= limits.idle_s_max])

    def changes(self) -> DeviceResidents:
        """The changes since the last report, which they are part of now."""
        found = DeviceResidents(
            device=self.id, added=tuple(self.added.values()), removed=tuple(self.removed)
        )
        self.added, self.removed = {}, {}
        return found

    def _counted(self, limits: WarmLimits) -> list[WarmWorker]:
        """The warm workers that the limits count: no lease ahead will get them."""
        awaited = set(self.awaited.values()) if limits.loads_max else ()
        return [one for one in self.warm.values() if one.resident.workload not in awaited]

    def _warm_mib(self) -> int:
        return sum(worker.resident.memory_mib for worker in self.warm.values())

    def _make_room(self) -> None:
        loading_mib = sum(one.memory_mib for one in self.loading.values())
        if sum(self.leases.values()) + self._warm_mib() + loading_mib > self.device.memory_mib:
            self.loading.clear()
        while self.warm and sum(self.leases.values()) + self._warm_mib() > self.device.memory_mib:
            self._evict_cheapest(self.warm.values())

    def _evict_cheapest(self, workers: Iterable[WarmWorker]) -> None:
        """Evict the worker that loads again in the least time; of equal ones the idle longest."""
        cheapest = min(workers, key=lambda w: (w.resident.loading_s, w.idle_since_s))
        self.evict((cheapest.resident.id,))

    def _forget(self, id_: str) -> None:
        del self.warm[id_]
        if self.added.pop(id_, None) is None:
            self.removed[id_] = None


@dataclass(slots=True)
class SimHost:
    """One host with its devices."""

    name: HostId
    devices: dict[DeviceId, SimDevice]
    limits: WarmLimits = field(default_factory=WarmLimits)
    #: By workload key and model of device: what its last worker had loaded.
    known: dict[tuple[str, str], Resident] = field(default_factory=dict)

    def kept(self, device: SimDevice, resident: Resident) -> None:
        """A worker has become warm: others can load the same."""
        self.known[resident.workload, device.device.model] = resident

    def load(self, install: Install, workload: str | None) -> Resident | None:
        """Begin to load for a lease ahead; None: it is loaded, unknown what, or has no room."""
        device = self.devices[install.shares[0].device]
        if workload is not None:
            device.awaited[install.lease] = workload
        known = None if workload is None else self.known.get((workload, device.device.model))
        if known is None or not self.limits.workers_max:
            return None
        resident = replace(known, id=f"ahead-{install.fence}")
        return resident if device.load(install.lease, resident, self.limits) else None

    def evict(self, install: Install) -> None:
        """Evict the warm workers that an install names."""
        if install.evict:
            for device in self.devices.values():
                device.evict(install.evict)

    def report(self) -> tuple[DeviceResidents, ...]:
        """The changes of all its devices since the last report."""
        changed = [device for device in self.devices.values() if device.added or device.removed]
        return tuple([device.changes() for device in changed])


def hosts_of(specs: Iterable[HostSpec]) -> Iterator[SimHost]:
    """The hosts of a run; a device has the name of its host, and its place there."""
    for spec in specs:
        for index in range(spec.hosts):
            name = HostId(spec.name if spec.hosts == 1 else f"{spec.name}{index}")
            devices: dict[DeviceId, SimDevice] = {}
            for place in range(spec.devices):
                device = Device(
                    id=DeviceId(f"{name}.{place}"),
                    index=place,
                    kind=DeviceKind(spec.kind),
                    model=spec.model,
                    memory_mib=spec.memory_mib,
                )
                devices[device.id] = SimDevice(device, name)
            yield SimHost(name, devices)
