"""Devices indexed by the properties that decide feasibility, so that no decision scans them all.

Devices of one `DeviceClass` are a `DeviceGroup`, or two where some have residents: a permanent
mismatch is found for all of them at once. In a group, devices that are available now are in rows of
equal free compute, sorted by free memory: within a row, fit and score are monotonic in memory
except for the few steps of `slots`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeVar

from corekit.ids import DeviceId
from gpu_scheduler.core.inventory.devices import (
    DeviceClass,
    DeviceState,
    permanent_mismatch,
    unavailable_reason,
)
from gpu_scheduler.model import Request, Sharing
from gpu_scheduler.verdicts import NoFit

K = TypeVar("K")

#: Devices of one cell, in insertion order.
Devices = dict[DeviceId, None]
_NONE: Devices = {}


@dataclass(slots=True)
class Row:
    """Devices with the same free compute, without those that are allocated exclusively."""

    free_mib: list[int] = field(default_factory=list)  #: free memory of every device, ascending
    cells: dict[int, Devices] = field(default_factory=dict)  #: by free memory

    def add(self, device: DeviceId, free_mib: int) -> None:
        insort(self.free_mib, free_mib)
        self.cells.setdefault(free_mib, {})[device] = None

    def remove(self, device: DeviceId, free_mib: int) -> None:
        del self.free_mib[bisect_left(self.free_mib, free_mib)]
        cell = self.cells[free_mib]
        del cell[device]
        if not cell:
            del self.cells[free_mib]

    def tightest(self, memory_mib: int) -> Iterator[DeviceId]:
        """Devices with this much free, least free first. The row must not change meanwhile."""
        at = bisect_left(self.free_mib, memory_mib)
        while at < len(self.free_mib):
            cell = self.cells[self.free_mib[at]]
            yield from cell
            at += len(cell)

    def freest(self, memory_mib: int) -> Iterator[DeviceId]:
        """Devices with this much free, the most free first."""
        at = len(self.free_mib) - 1
        while at >= 0 and self.free_mib[at] >= memory_mib:
            cell = self.cells[self.free_mib[at]]
            yield from cell
            at -= len(cell)


@dataclass(slots=True)
class DeviceGroup:
    """All devices of one class, each in exactly one of the sets below."""

    device_class: DeviceClass
    loaded: bool = False  #: True: of devices with residents
    devices: Devices = field(default_factory=dict)  #: all of them
    rows: dict[int, Row] = field(default_factory=dict)  #: devices with free capacity, by compute
    _free_permille: list[int] = field(default_factory=list)  #: free compute of the rows, ascending
    idle: Devices = field(default_factory=dict)  #: devices in rows, without leases
    exclusive: Devices = field(default_factory=dict)  #: allocated exclusively
    #: Reserved for the head of the queue, by attempt.
    reserved: dict[str, Devices] = field(default_factory=dict)
    #: Not usable because of host or health.
    unavailable: dict[NoFit, Devices] = field(default_factory=dict)

    def add(self, device: DeviceId, device_state: DeviceState) -> None:
        self.devices[device] = None
        if (reason := unavailable_reason(device_state)) is not None:
            self.unavailable.setdefault(reason, {})[device] = None
        elif device_state.reserved_for is not None:
            self.reserved.setdefault(device_state.reserved_for, {})[device] = None
        elif device_state.exclusive:
            self.exclusive[device] = None
        else:
            self._into_row(device, device_state)
            if not device_state.shared:
                self.idle[device] = None

    def remove(self, device: DeviceId, device_state: DeviceState) -> None:
        del self.devices[device]
        if (reason := unavailable_reason(device_state)) is not None:
            _drop(self.unavailable, reason, device)
        elif device_state.reserved_for is not None:
            _drop(self.reserved, device_state.reserved_for, device)
        elif device_state.exclusive:
            del self.exclusive[device]
        else:
            self._out_of_row(device, device_state)
            self.idle.pop(device, None)

    def reallocate(self, device: DeviceId, old: DeviceState, new: DeviceState) -> None:
        """Move a device of which only the allocation changed."""
        if (
            old.exclusive
            or new.exclusive
            or old.reserved_for is not None
            or unavailable_reason(old) is not None
        ):
            self.remove(device, old)
            self.add(device, new)
            return
        if old.free_permille == new.free_permille:
            row = self.rows[old.free_permille]
            row.remove(device, old.free_mib)
            row.add(device, new.free_mib)
        else:
            self._out_of_row(device, old)
            self._into_row(device, new)
        if new.shared:
            self.idle.pop(device, None)
        else:
            self.idle[device] = None

    def _into_row(self, device: DeviceId, device_state: DeviceState) -> None:
        row = self.rows.get(device_state.free_permille)
        if row is None:
            row = self.rows[device_state.free_permille] = Row()
            insort(self._free_permille, device_state.free_permille)
        row.add(device, device_state.free_mib)

    def _out_of_row(self, device: DeviceId, device_state: DeviceState) -> None:
        row = self.rows[device_state.free_permille]
        row.remove(device, device_state.free_mib)
        if not row.free_mib:
            del self.rows[device_state.free_permille]
            del self._free_permille[bisect_left(self._free_permille, device_state.free_permille)]

    def has_free(self, compute_permille: int) -> bool:
        """True when a device of a row has this much compute free."""
        return bool(self._free_permille) and self._free_permille[-1] >= compute_permille

    def rows_up_from(self, compute_permille: int) -> Iterator[tuple[int, Row]]:
        """Rows with this much compute free, the least first."""
        for at in range(
            bisect_left(self._free_permille, compute_permille), len(self._free_permille)
        ):
            yield self._free_permille[at], self.rows[self._free_permille[at]]

    def rows_down_to(self, compute_permille: int) -> Iterator[tuple[int, Row]]:
        """Rows with this much compute free, the most first."""
        for at in range(
            len(self._free_permille) - 1, bisect_left(self._free_permille, compute_permille) - 1, -1
        ):
            yield self._free_permille[at], self.rows[self._free_permille[at]]

    def reserved_for(self, attempt: str | None) -> Devices:
        """Devices that are reserved for this request."""
        return _NONE if attempt is None else self.reserved.get(attempt, _NONE)

    def reserved_devices(self) -> Iterator[DeviceId]:
        """Devices that are reserved for the head of the queue."""
        for devices in self.reserved.values():
            yield from devices

    def nearest_first(self) -> Iterator[DeviceId]:
        """All devices, row by row, those nearest to being free first."""
        for row in self.rows.values():
            yield from row.freest(0)
        yield from self.reserved_devices()
        yield from self.exclusive
        for devices in self.unavailable.values():
            yield from devices

    def count_reasons(self, request: Request, counts: dict[NoFit | None, int]) -> None:
        """Add the number of devices by result of `fits`, without reserved ones; None = fits."""
        reason = permanent_mismatch(request, self.device_class)
        if reason is not None:
            reserved = sum(map(len, self.reserved.values()))
            _count(counts, reason, len(self.devices) - reserved)
            return
        for why, devices in self.unavailable.items():
            _count(counts, why, len(devices))
        _count(counts, NoFit.EXCLUSIVE_TAKEN, len(self.exclusive))
        if request.sharing is Sharing.EXCLUSIVE:
            lendable = sum(len(row.free_mib) for row in self.rows.values())
            _count(counts, None, len(self.idle))
            _count(counts, NoFit.SHARED_TAKEN, lendable - len(self.idle))
            return
        asked_mib = request.memory_on_mib(self.device_class.memory_mib)
        asked_permille = request.compute_guarantee_permille
        for free_permille, row in self.rows.items():
            short = bisect_left(row.free_mib, asked_mib)
            _count(counts, NoFit.MEMORY, short)
            enough = None if free_permille >= asked_permille else NoFit.COMPUTE
            _count(counts, enough, len(row.free_mib) - short)


def _drop(sets: dict[K, Devices], key: K, device: DeviceId) -> None:
    del sets[key][device]
    if not sets[key]:
        del sets[key]


def _count(counts: dict[NoFit | None, int], why: NoFit | None, devices: int) -> None:
    if devices:
        counts[why] = counts.get(why, 0) + devices


#: The most entries of each cache; a system has a few dozen kinds of requests.
CACHE_MAX = 1024


def feasibility_key(request: Request, memory_mib: int | None = None) -> tuple[object, ...]:
    """The fields of a request that decide whether it fits an idle device of a class.

    `memory_mib` replaces the memory of the request.
    """
    return (
        request.kinds,
        request.models,
        request.memory_mib if memory_mib is None else memory_mib,
        request.memory_pct,
        request.advisory,
        request.middleware,
        request.min_driver,
        request.min_runtime,
        request.requires,
        request.data,
        request.programs,
        request.data_sets,
        request.memory_max_mib,
    )


class Index:
    """Groups of devices, and the ranked groups that could ever serve a request."""

    def __init__(self) -> None:
        #: By class, and whether the devices have residents.
        self.groups: dict[tuple[DeviceClass, bool], DeviceGroup] = {}
        self._ranked: dict[tuple[object, ...], tuple[tuple[DeviceGroup, ...], ...]] = {}
        self._group_of: dict[DeviceId, DeviceGroup] = {}

    def classes(self) -> Iterable[DeviceClass]:
        """The classes of all devices, each once."""
        return dict.fromkeys(device_class for device_class, _ in self.groups)

    def add(self, device: DeviceId, device_state: DeviceState, *, loaded: bool = False) -> None:
        device_class = device_state.device_class
        group = self.groups.get((device_class, loaded))
        if group is None:
            group = self.groups[device_class, loaded] = DeviceGroup(device_class, loaded)
            self._ranked.clear()
        self._group_of[device] = group
        group.add(device, device_state)

    def move(self, device: DeviceId, old: DeviceState, new: DeviceState) -> None:
        """Move a device to another state; its class rarely changes."""
        group = self._group_of[device]
        if old.device_class != new.device_class:
            self.remove(device, old)
            self.add(device, new, loaded=group.loaded)
            return
        group.remove(device, old)
        group.add(device, new)

    def reallocate(self, device: DeviceId, old: DeviceState, new: DeviceState) -> None:
        """Move a device of which only the allocation changed."""
        self._group_of[device].reallocate(device, old, new)

    def remove(self, device: DeviceId, device_state: DeviceState) -> None:
        group = self._group_of.pop(device)
        group.remove(device, device_state)
        if not group.devices:
            del self.groups[group.device_class, group.loaded]
            self._ranked.clear()

    def ranked(self, request: Request) -> tuple[tuple[DeviceGroup, ...], ...]:
        """The groups that could ever serve `request`, by preference; equal ranks together.

        In a rank, devices without residents come first.
        """
        cache_key = feasibility_key(request)
        ranked = self._ranked.get(cache_key)
        if ranked is None:
            if len(self._ranked) >= CACHE_MAX:
                self._ranked.clear()
            ranked = self._ranked[cache_key] = self._rank(request)
        return ranked

    def _rank(self, request: Request) -> tuple[tuple[DeviceGroup, ...], ...]:
        ranks: dict[tuple[int, int], list[DeviceGroup]] = {}
        for group in self.groups.values():
            if permanent_mismatch(request, group.device_class) is None:
                ranks.setdefault(preference(request, group.device_class), []).append(group)
        return tuple(tuple(sorted(ranks[rank], key=attrgetter("loaded"))) for rank in sorted(ranks))


def preference(request: Request, made: DeviceClass) -> tuple[int, int]:
    """The rank of a device's kind and model in the request's lists; lower is better."""
    kind = request.kinds.index(made.kind) if request.kinds else 0
    model = request.models.index(made.model) if request.models else 0
    return kind, model
