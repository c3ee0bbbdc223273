"""Hosts and devices as the scheduler knows them, indexed by what `fits` sees of them.

Devices that look alike share a shape; shapes that differ in free memory only share a family. Memory
is what fragments, and within a family feasibility and fit are monotonic in it: one shape of each
family is all that placing has to look at.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from corekit.ids import DeviceId, HostId, LeaseId
from corekit.values import dataclass, field, replace
from gpu_scheduler.core.fits import COMPUTE_PCT_MAX, Shape, empty_shape
from gpu_scheduler.model import Device, HostState, Share, Usage
from gpu_scheduler.versions import parse_version


@dataclass(slots=True)
class DeviceEntry:
    """One device and what is promised of it. Change it through `Inventory` alone."""

    device: Device  #: without `resident`, which is not durable
    host: HostId
    shares: dict[LeaseId, Share] = field(default_factory=dict)
    promised_mib: int = 0
    promised_pct: int = 0
    exclusive: LeaseId | None = None
    kept_for: str | None = None
    drained: bool = False  #: an operator wants no new leases on it
    said: Device | None = None  #: what its host said last; `device` is what counts
    clean_since_s: float | None = None  #: monotonic: recovering, and found clean since
    resident: tuple[str, ...] = ()
    usage: Usage | None = None
    shape: Shape | None = None  #: under which it is indexed


@dataclass(slots=True)
class HostEntry:
    """One host. `state` and `heard_s` are rebuilt from life after a restart."""

    host: HostId
    incarnation: str
    gateway: str | None
    drained: bool = False
    state: HostState = HostState.STALE  #: UP, STALE or LOST; see `shown_state`
    heard_s: float = 0.0  #: monotonic
    devices: dict[DeviceId, DeviceEntry] = field(default_factory=dict)
    leases: dict[LeaseId, None] = field(default_factory=dict)

    @property
    def shown_state(self) -> HostState:
        """Silence outweighs an operator's drain."""
        return HostState.DRAINED if self.drained and self.state is HostState.UP else self.state


@dataclass(slots=True)
class Family:
    """Devices whose shapes differ in free memory only."""

    free_mib: list[int] = field(default_factory=list)  #: of its shapes, ascending
    devices: int = 0


class Inventory:
    """All known hosts; every change keeps the indexes true."""

    def __init__(self) -> None:
        self.hosts: dict[HostId, HostEntry] = {}
        self.devices: dict[DeviceId, DeviceEntry] = {}
        self.declared: tuple[Device, ...] = ()
        self.shapes: dict[Shape, dict[DeviceId, None]] = {}
        self.families: dict[Shape, Family] = {}
        self.loosened: dict[DeviceId, None] = {}  #: may serve more than before; search.py takes it
        self._warm: dict[str, dict[DeviceId, None]] = {}

    # ------------------------------------------------------------------ reading

    def shape_of(self, device: DeviceId) -> Shape:
        shape = self.devices[device].shape
        assert shape is not None, "every known device is indexed"
        return shape

    def candidates(self, memory_mib: int, *, loosest: bool) -> Iterator[Shape]:
        """One shape of every family: the tightest with that much free, or the loosest of all.

        Families with less free give nothing.
        """
        for name, family in self.families.items():
            index = bisect_left(family.free_mib, memory_mib)
            if index < len(family.free_mib):
                yield name._replace(free_mib=family.free_mib[-1 if loosest else index])

    def warm(self, key: str) -> Iterable[DeviceId]:
        """Devices that hold this warm key."""
        return self._warm.get(key, {})

    def declared_shapes(self) -> Iterator[Shape]:
        """Declared devices that have not registered yet, as they would be."""
        for device in self.declared:
            if device.id not in self.devices:
                yield empty_shape(device, gateway=True)

    # ------------------------------------------------------------------ hosts

    def register(
        self, host: HostId, incarnation: str, gateway: str | None, devices: Iterable[Device]
    ) -> None:
        """Know a host, or know it better; promises on its devices stay."""
        entry = self.hosts.get(host)
        if entry is None:
            entry = self.hosts[host] = HostEntry(host, incarnation, gateway)
        entry.incarnation, entry.gateway = incarnation, gateway
        for device in devices:
            known = entry.devices.get(device.id)
            if known is None:
                known = DeviceEntry(replace(device, resident=()), host)
                entry.devices[device.id] = self.devices[device.id] = known
            known.device = replace(device, resident=())
        self._reindex_host(entry)

    def forget(self, host: HostId) -> None:
        entry = self.hosts.pop(host)
        for device in entry.devices.values():
            self._unindex(device)
            self._set_warm(device, ())
            del self.devices[device.device.id]

    def set_state(self, entry: HostEntry, state: HostState) -> None:
        entry.state = state
        self._reindex_host(entry)

    def set_drained(self, host: HostId, drained: bool) -> None:
        self.hosts[host].drained = drained
        self._reindex_host(self.hosts[host])

    def set_device_drained(self, device: DeviceId, drained: bool) -> None:
        self.devices[device].drained = drained
        self._reindex(self.devices[device])

    def set_device(self, device: Device) -> None:
        """Its host or its health says it differently."""
        self.devices[device.id].device = device
        self._reindex(self.devices[device.id])

    def observe(self, entry: HostEntry, devices: Iterable[Device], usage: Iterable[Usage]) -> None:
        """Take over what is not durable: warm keys and live figures."""
        for device in devices:
            self._set_warm(entry.devices[device.id], device.resident)
        for figures in usage:
            if figures.device in entry.devices:
                entry.devices[figures.device].usage = figures

    # ------------------------------------------------------------------ promises

    def promise(self, lease: LeaseId, share: Share) -> None:
        entry = self.devices[share.device]
        entry.shares[lease] = share
        entry.promised_mib += share.memory_mib
        entry.promised_pct += share.compute_guarantee_pct
        if share.exclusive:
            entry.exclusive = lease
        self._reindex(entry, tighter=True)

    def take_back(self, lease: LeaseId, share: Share) -> None:
        """Idempotent: an ENDING lease has given its shares back already."""
        entry = self.devices.get(share.device)
        if entry is None or entry.shares.pop(lease, None) is None:
            return
        entry.promised_mib -= share.memory_mib
        entry.promised_pct -= share.compute_guarantee_pct
        if entry.exclusive == lease:
            entry.exclusive = None
        self._reindex(entry)

    def keep(self, devices: Iterable[DeviceId], attempt: str | None) -> None:
        """Keep devices for the head of the queue; None lets them go."""
        for device in devices:
            entry = self.devices.get(device)
            if entry is not None:
                entry.kept_for = attempt
                self._reindex(entry)

    # ------------------------------------------------------------------ indexes

    def _reindex_host(self, entry: HostEntry) -> None:
        for device in entry.devices.values():
            self._reindex(device)

    def _reindex(self, entry: DeviceEntry, *, tighter: bool = False) -> None:
        shape = current_shape(entry, self.hosts[entry.host])
        if shape == entry.shape:
            return
        if not tighter:
            self.loosened[entry.device.id] = None
        self._unindex(entry)
        entry.shape = shape
        family = self.families.setdefault(shape.family, Family())
        family.devices += 1
        if shape not in self.shapes:
            self.shapes[shape] = {}
            insort(family.free_mib, shape.free_mib)
        self.shapes[shape][entry.device.id] = None

    def _unindex(self, entry: DeviceEntry) -> None:
        if entry.shape is None:
            return
        alike, family = self.shapes[entry.shape], self.families[entry.shape.family]
        del alike[entry.device.id]
        family.devices -= 1
        if not alike:
            del self.shapes[entry.shape]
            del family.free_mib[bisect_left(family.free_mib, entry.shape.free_mib)]
        if not family.devices:
            del self.families[entry.shape.family]

    def _set_warm(self, entry: DeviceEntry, keys: tuple[str, ...]) -> None:
        if keys == entry.resident:
            return
        for key in entry.resident:
            self._warm.get(key, {}).pop(entry.device.id, None)
            if key in self._warm and not self._warm[key]:
                del self._warm[key]
        for key in keys:
            self._warm.setdefault(key, {})[entry.device.id] = None
        entry.resident = keys


def current_shape(entry: DeviceEntry, host: HostEntry) -> Shape:
    """What `fits` sees of a device right now."""
    device, state = entry.device, host.shown_state
    if entry.drained and state is HostState.UP:
        state = HostState.DRAINED
    return Shape(
        kind=device.kind, model=device.model, memory_mib=device.memory_mib,
        gateway=host.gateway is not None, host_state=state, health=device.health,
        driver=parse_version(device.driver), runtime=parse_version(device.runtime),
        free_mib=device.memory_mib - entry.promised_mib,
        free_pct=COMPUTE_PCT_MAX - entry.promised_pct, exclusive=entry.exclusive is not None,
        shared=bool(entry.shares) and entry.exclusive is None, kept_for=entry.kept_for,
    )  # fmt: skip


def without_resident(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The durable part of what a host says about its devices."""
    return tuple(replace(device, resident=()) for device in devices)
