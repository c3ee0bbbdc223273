"""Hosts and devices, indexed by the inputs of `fits`.

Every change goes through `Inventory`, which maintains one index of all devices and one for each
warm key (`index.py`), those of the residents (`residents.py`), and collects freed devices: only
these can serve waiting requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from corekit.ids import DeviceId, HostId, LeaseId
from corekit.values import replace
from gpu_scheduler.core.inventory.devices import (
    ALLOCATION_AT,
    COMPUTE_PERMILLE_MAX,
    DeviceClass,
    DeviceState,
    device_class_of,
)
from gpu_scheduler.core.inventory.held_data import HeldDataSets
from gpu_scheduler.core.inventory.index import CACHE_MAX, Devices, Index
from gpu_scheduler.core.inventory.residents import Residents
from gpu_scheduler.data_names import Offered, offered_of
from gpu_scheduler.model import Device, HostState, Request, Resident, Share, Usage
from gpu_scheduler.names import POOL
from gpu_scheduler.protocol.changes import HostRegistered

T = TypeVar("T")

#: The most warm keys of one device, the last used first. Each costs a step at every change.
WARM_KEYS_MAX = 32

CacheKey = tuple[object, ...]


@dataclass(slots=True)
class DeviceEntry:
    """One device and its allocations. Changed through `Inventory` alone."""

    device: Device  #: without `resident`, which is not durable
    host: HostId
    shares: dict[LeaseId, Share] = field(default_factory=dict)
    allocated_mib: int = 0
    allocated_permille: int = 0
    exclusive: LeaseId | None = None
    reserved_for: str | None = None
    drained: bool = False  #: closed to new leases by an operator
    reported: Device | None = None  #: last report of its host; `device` is the value in force
    clean_since_s: float | None = None  #: monotonic: start of its clean reports, if recovering
    resident: tuple[str, ...] = ()
    usage: Usage | None = None
    device_state: DeviceState | None = None  #: the state under which it is indexed
    #: Devices of its class by number of leases.
    by_lease_count: dict[int, Devices] = field(default_factory=dict)
    load: int = 0  #: the number of leases by which it is indexed there; `_WHOLE`: exclusively


@dataclass(frozen=True, slots=True)
class OwnDrain:
    """The drain of a host by itself: its program stops, or its machine is about to go away."""

    reason: str
    since_s: float  #: wall clock
    limit_s: float | None  #: its leases end by then; None = no limit


@dataclass(slots=True)
class HostEntry:
    """One host. `state`, `last_seen_s` and `lost_s` are not durable."""

    host: HostId
    incarnation: str
    gateway: str | None
    middlewares: tuple[str, ...] = ()  #: middlewares that the host offers
    ephemeral: bool = False  #: forgotten `forget_after_s` after it is lost
    data: Offered = ()  #: data sets that the host has
    programs: Offered = ()  #: programs that `exec` runs there
    advance: bool = False  #: sessions of leases granted ahead may wait there
    loads_ahead: bool = False  #: workers of such leases load there before they have their shares
    data_space_mib: int = 0  #: for declared data sets; 0: it fetches none
    drained: bool = False  #: by an operator
    own_drain: OwnDrain | None = None  #: of this incarnation
    state: HostState = HostState.STALE  #: UP, STALE or LOST; see `shown_state`
    last_seen_s: float = 0.0  #: monotonic
    lost_s: float = 0.0  #: monotonic: the time at which it became LOST
    devices: dict[DeviceId, DeviceEntry] = field(default_factory=dict)
    leases: dict[LeaseId, None] = field(default_factory=dict)

    def registration(self, devices: tuple[Device, ...] = ()) -> HostRegistered:
        """The part that registers this host, with these devices."""
        return HostRegistered(
            host=self.host,
            incarnation=self.incarnation,
            gateway=self.gateway,
            devices=devices,
            middlewares=self.middlewares,
            ephemeral=self.ephemeral,
            data=dict(self.data),
            programs=dict(self.programs),
            advance=self.advance,
            loads_ahead=self.loads_ahead,
            data_space_mib=self.data_space_mib,
        )

    @property
    def shown_state(self) -> HostState:
        """The state for display: silence takes precedence over a drain."""
        is_drained = self.is_drained and self.state is HostState.UP
        return HostState.DRAINED if is_drained else self.state

    @property
    def is_drained(self) -> bool:
        """Closed to new leases, by an operator or by itself."""
        return self.drained or self.own_drain is not None


class Inventory:
    """All known hosts, with their indexes."""

    def __init__(self) -> None:
        self.hosts: dict[HostId, HostEntry] = {}
        self.devices: dict[DeviceId, DeviceEntry] = {}
        self._declared: tuple[Device, ...] = ()
        self.index = Index()  #: all devices
        self.residents = Residents()
        self.held = HeldDataSets()  #: declared data sets
        #: Devices whose new state may fit a request that the old one did not fit.
        self.freed: dict[DeviceId, None] = {}
        self.freed_seq = 0  #: one higher with each freed device
        self.hosts_forgotten = 0  #: ephemeral ones, in this run
        self.hosts_freed: dict[HostId, int] = {}  #: last `freed_seq` of each host, newest last
        #: Requests that fitted no single host, with `freed_seq` at that time.
        self.same_host_misses: dict[CacheKey, int] = {}
        self.feasible_cache: dict[CacheKey, int] = {}  #: number of feasible devices
        self.largest_cache: dict[CacheKey, Request | None] = {}  #: largest fits
        #: One higher when a device is added, removed, or changes between available and unavailable.
        self.availability_version = 0
        self.available_cache: dict[CacheKey, int] = {}  #: results for this availability version
        self._warm: dict[str, Index] = {}
        #: Devices of one class by number of leases: the load for best-effort requests.
        self._by_lease_count: dict[DeviceClass, dict[int, Devices]] = {}

    # ------------------------------------------------------------------ reading

    @property
    def declared(self) -> tuple[Device, ...]:
        """Devices of the configuration that may register later."""
        return self._declared

    @declared.setter
    def declared(self, devices: tuple[Device, ...]) -> None:
        self._declared = devices
        self._classes_changed()

    def state_of(self, device: DeviceId) -> DeviceState:
        device_state = self.devices[device].device_state
        assert device_state is not None, "every known device is indexed"
        return device_state

    def warm(self, key: str) -> Index | None:
        """The index of the devices with this warm key."""
        return self._warm.get(key)

    def least_loaded(self, device_class: DeviceClass) -> Iterator[tuple[int, Devices]]:
        """Devices of a class by number of leases, the fewest first, without exclusive ones."""
        by_lease_count = self._by_lease_count.get(device_class, {})
        for leases in sorted(by_lease_count):
            if leases != _WHOLE:
                yield leases, by_lease_count[leases]

    def declared_classes(self) -> Iterator[DeviceClass]:
        """The classes of declared devices that have not registered yet."""
        for device in self.declared:
            if device.id not in self.devices:
                yield device_class_of(device, gateway=True)

    def declared_by_host(self) -> list[list[DeviceClass]]:
        """The same: first those that may be on any host, then those of each host of a pool."""
        hosts: dict[str, list[DeviceClass]] = {"": []}
        for device in self.declared:
            if device.id not in self.devices:
                host = device.id.rpartition("/")[0] if device.id.startswith(POOL) else ""
                hosts.setdefault(host, []).append(device_class_of(device, gateway=True))
        return list(hosts.values())

    def cache(self, memory: dict[CacheKey, T], cache_key: CacheKey, answer: T) -> T:
        """Cache a result; the oldest is evicted beyond `CACHE_MAX`."""
        memory[cache_key] = answer
        if len(memory) > CACHE_MAX:
            del memory[next(iter(memory))]
        return answer

    # ------------------------------------------------------------------ hosts

    def register(self, part: HostRegistered) -> None:
        """Add or update a host; allocations on its devices stay.

        Its own drain is over when its program was started again.
        """
        entry = self.hosts.get(part.host)
        if entry is None:
            entry = self.hosts[part.host] = HostEntry(part.host, part.incarnation, part.gateway)
        if entry.incarnation != part.incarnation:
            entry.own_drain = None
        entry.incarnation, entry.gateway = part.incarnation, part.gateway
        entry.middlewares, entry.ephemeral = part.middlewares, part.ephemeral
        entry.advance, entry.loads_ahead = part.advance, part.loads_ahead
        entry.data_space_mib = part.data_space_mib
        entry.data, entry.programs = offered_of(part.data), offered_of(part.programs)
        for device in part.devices:
            known = entry.devices.get(device.id)
            if known is None:
                known = DeviceEntry(device, part.host)
                entry.devices[device.id] = self.devices[device.id] = known
            known.device = replace(device, resident=()) if device.resident else device
        self._reindex_host(entry)

    def forget(self, host: HostId) -> None:
        entry = self.hosts.pop(host)
        for device in entry.devices.values():
            self.change_residents(device.device.id, (), tuple(self.residents.of(device.device.id)))
            self._unindex(device)
            self.freed.pop(device.device.id, None)
            del self.devices[device.device.id]
        self.held.forget(host)
        self.hosts_freed.pop(host, None)
        self._classes_changed()
        self._availability_changed()

    def set_state(self, entry: HostEntry, state: HostState) -> None:
        entry.state = state
        self._reindex_host(entry)

    def set_drained(self, host: HostId, drained: bool) -> None:
        self.hosts[host].drained = drained
        self._reindex_host(self.hosts[host])

    def set_own_drain(self, host: HostId, incarnation: str, drain: OwnDrain | None) -> None:
        """Begin or end the drain of a host by itself, unless it was restarted or is unknown."""
        entry = self.hosts.get(host)
        if entry is not None and entry.incarnation == incarnation:
            entry.own_drain = drain
            self._reindex_host(entry)

    def set_device_drained(self, device: DeviceId, drained: bool) -> None:
        self.devices[device].drained = drained
        self._reindex(self.devices[device])

    def set_device(self, device: Device) -> None:
        """Replace a known device."""
        self.devices[device.id].device = device
        self._reindex(self.devices[device.id])

    def observe(self, entry: HostEntry, devices: Iterable[Device], usage: Iterable[Usage]) -> None:
        """Record warm keys and live figures, which are not durable."""
        for device in devices:
            self._set_warm(entry.devices[device.id], device.resident)
        for figures in usage:
            if figures.device in entry.devices:
                entry.devices[figures.device].usage = figures

    def change_residents(
        self, device: DeviceId, added: Iterable[Resident], removed: Iterable[str]
    ) -> None:
        """Remove residents of a device by id, then add others. Idempotent.

        Residents are evictable, so this frees no capacity and takes none.
        """
        device_state, before = self.state_of(device), bool(self.residents.of(device))
        self.residents.change(device, device_state, added, removed)
        loaded = bool(self.residents.of(device))
        if loaded is not before:
            self.index.remove(device, device_state)
            self.index.add(device, device_state, loaded=loaded)

    # ------------------------------------------------------------------ allocations

    def allocate(self, lease: LeaseId, share: Share) -> None:
        entry = self.devices[share.device]
        entry.shares[lease] = share
        entry.allocated_mib += share.memory_mib
        entry.allocated_permille += share.compute_guarantee_permille
        if share.exclusive:
            entry.exclusive = lease
        self._update_allocation(entry)

    def deallocate(self, lease: LeaseId, share: Share) -> None:
        """Free a share. Idempotent: an ENDING lease has already freed its shares."""
        entry = self.devices.get(share.device)
        if entry is None or lease not in entry.shares:
            return
        del entry.shares[lease]
        entry.allocated_mib -= share.memory_mib
        entry.allocated_permille -= share.compute_guarantee_permille
        if entry.exclusive == lease:
            entry.exclusive = None
        if self._update_allocation(entry):
            self._mark_freed(entry)

    def reserve(self, devices: Iterable[DeviceId], attempt: str | None) -> None:
        """Reserve devices for the head of the queue; None cancels the reservation."""
        for device in devices:
            entry = self.devices.get(device)
            if entry is not None:
                entry.reserved_for = attempt
                self._reindex(entry)

    # ------------------------------------------------------------------ indexes

    def _reindex_host(self, entry: HostEntry) -> None:
        for device in entry.devices.values():
            self._reindex(device)

    def _update_allocation(self, entry: DeviceEntry) -> bool:
        """Update the state of a device of which only the allocation changed."""
        _take_out(entry)
        _put_in(entry)
        old = entry.device_state
        assert old is not None, "an allocated device is indexed"
        new = DeviceState._make(old[:ALLOCATION_AT] + _allocation(entry))
        if new == old:
            return False
        entry.device_state = new
        self.index.reallocate(entry.device.id, old, new)
        if self.residents.of(entry.device.id):
            self.residents.reallocate(entry.device.id, old, new)
        for key in entry.resident:
            self._warm[key].reallocate(entry.device.id, old, new)
        return True

    def _reindex(self, entry: DeviceEntry) -> None:
        old, new = entry.device_state, current_state(entry, self.hosts[entry.host])
        if new == old:
            return
        entry.device_state = new
        new_class = old is None or old.device_class != new.device_class
        if new_class:
            self._remove_load(entry, old)
            entry.by_lease_count = self._by_lease_count.setdefault(new.device_class, {})
            _put_in(entry)
        indexes = [self.index, *(self._warm[key] for key in entry.resident)]
        for index in indexes:
            if old is None:
                index.add(entry.device.id, new)
            else:
                index.move(entry.device.id, old, new)
        if old is not None and self.residents.of(entry.device.id):
            self.residents.move(entry.device.id, old, new)
        if new_class:
            self._classes_changed()
        if old is None or not old.equal_but_allocation(new):
            self._availability_changed()
        if old is None or not is_reduction(old, new):
            self._mark_freed(entry)

    def _classes_changed(self) -> None:
        self.feasible_cache.clear()
        self.largest_cache.clear()

    def _availability_changed(self) -> None:
        self.availability_version += 1
        self.available_cache.clear()

    def _mark_freed(self, entry: DeviceEntry) -> None:
        self.freed_seq += 1
        self.freed[entry.device.id] = None
        self.hosts_freed.pop(entry.host, None)
        self.hosts_freed[entry.host] = self.freed_seq

    def _unindex(self, entry: DeviceEntry) -> None:
        device_state = entry.device_state
        if device_state is None:
            return
        self.index.remove(entry.device.id, device_state)
        for key in entry.resident:
            self._drop_warm_key(key, entry, device_state)
        self._remove_load(entry, device_state)
        entry.device_state = None

    def _remove_load(self, entry: DeviceEntry, device_state: DeviceState | None) -> None:
        if device_state is None:
            return
        _take_out(entry)
        if not entry.by_lease_count:
            del self._by_lease_count[device_state.device_class]

    def _drop_warm_key(self, key: str, entry: DeviceEntry, device_state: DeviceState) -> None:
        index = self._warm[key]
        index.remove(entry.device.id, device_state)
        if not index.groups:
            del self._warm[key]

    def _set_warm(self, entry: DeviceEntry, reported: tuple[str, ...]) -> None:
        keys = tuple(dict.fromkeys(reported[:WARM_KEYS_MAX]))
        if keys == entry.resident:
            return
        device_state = self.state_of(entry.device.id)
        for key in entry.resident:
            self._drop_warm_key(key, entry, device_state)
        for key in keys:
            self._warm.setdefault(key, Index()).add(entry.device.id, device_state)
        entry.resident = keys


_WHOLE = -1  #: load of a device that is allocated exclusively


def _put_in(entry: DeviceEntry) -> None:
    """Index a device by the number of its leases now."""
    entry.load = len(entry.shares) if entry.exclusive is None else _WHOLE
    entry.by_lease_count.setdefault(entry.load, {})[entry.device.id] = None


def _take_out(entry: DeviceEntry) -> None:
    devices = entry.by_lease_count[entry.load]
    del devices[entry.device.id]
    if not devices:
        del entry.by_lease_count[entry.load]


def is_reduction(old: DeviceState, new: DeviceState) -> bool:
    """True when every request that fits the new state of a device also fitted the old state."""
    return (
        old.equal_but_allocation(new)
        and new.free_mib <= old.free_mib
        and new.free_permille <= old.free_permille
        and new.exclusive >= old.exclusive
        and (new.shared or new.exclusive) >= (old.shared or old.exclusive)
        and new.reserved_for == old.reserved_for
    )


def current_state(entry: DeviceEntry, host: HostEntry) -> DeviceState:
    """The input of `fits` for a device now."""
    device, host_state = entry.device, host.shown_state
    if entry.drained and host_state is HostState.UP:
        host_state = HostState.DRAINED
    device_class = device_class_of(
        device,
        gateway=host.gateway is not None,
        middlewares=host.middlewares,
        data=host.data,
        programs=host.programs,
        data_space_mib=host.data_space_mib,
    )
    return DeviceState(device_class, host_state, device.health, *_allocation(entry))


def _allocation(entry: DeviceEntry) -> tuple[int, int, bool, bool, str | None]:
    """The fields of the state of a device that allocations and reservations change."""
    exclusive = entry.exclusive is not None
    return (
        entry.device.memory_mib - entry.allocated_mib,
        COMPUTE_PERMILLE_MAX - entry.allocated_permille,
        exclusive,
        not exclusive and bool(entry.shares),
        entry.reserved_for,
    )


def without_resident(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The durable part of reported devices."""
    return tuple(replace(d, resident=()) if d.resident else d for d in devices)
