"""The devices that may serve a request, in the order of their fit, and the score of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from corekit.ids import DeviceId
from gpu_scheduler.core.inventory.devices import (
    COMPUTE_PERMILLE_MAX,
    DeviceClass,
    DeviceState,
    fits,
)
from gpu_scheduler.core.inventory.index import DeviceGroup, Devices, Index, preference
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.eviction import Taken, resident_key, taken
from gpu_scheduler.model import Placement, Request, Sharing
from gpu_scheduler.warm import keys_of

PARTS = 8  #: parts of a device; one part is the smallest slot
#: The number of equally loaded devices compared for a best-effort request.
LOAD_SAMPLE_MAX = 64

#: Slots lost, weighted by the size of the device; capacity left free (negative for SPREAD); the
#: size of the device. Lower is better.
Fit = tuple[int, float, int]
#: 1 when residents are evicted, seconds to load those again, and the fit.
EvictionCost = tuple[int, float, int, float, int]
#: Rank of the kind, rank of the model, 0 for a device with a resident, 1 with the warm key, 2 for a
#: cold device, 1 when residents are evicted, seconds to load those again, and the fit.
Score = tuple[int, int, int, int, float, int, float, int]


def slots(parts: int) -> int:
    """The number of requests of 1, 2, 4 or 8 eighths that fit into `parts` free eighths."""
    return parts + parts // 2 + parts // 4 + parts // 8


#: By eighths free.
SLOTS_BY_PARTS = tuple(slots(parts) for parts in range(PARTS + 1))


def fit(request: Request, device_state: DeviceState) -> Fit:
    """The fit of a request on a device in this state, which can serve it."""
    if request.sharing is Sharing.EXCLUSIVE:
        return (0, float(device_state.memory_mib - request.memory_mib), device_state.memory_mib)
    return shared_fit(
        request, device_state.memory_mib, device_state.free_mib, device_state.free_permille
    )


def score(request: Request, inventory: Inventory, device: DeviceId, *, warm: bool = False) -> Score:
    """All criteria for comparing devices that fit; lower is better."""
    device_state, takes = inventory.state_of(device), taken(request, inventory, device)
    cold = 0 if takes.used is not None else 2 - warm
    cost = eviction_cost(request, inventory, device, takes)
    return (*preference(request, device_state.device_class), cold, *cost)


def eviction_cost(
    request: Request, inventory: Inventory, device: DeviceId, takes: Taken
) -> EvictionCost:
    """The criteria after preference and warmth: evictions, then the fit; lower is better."""
    evicts = (int(bool(takes.evicted)), takes.loading_s)
    return (*evicts, *fit_on(request, inventory, device, takes))


def fit_on(request: Request, inventory: Inventory, device: DeviceId, takes: Taken) -> Fit:
    """The fit on one device: beside the residents that stay, unless some are evicted."""
    device_state = inventory.state_of(device)
    if request.is_best_effort:
        return load_fit(len(inventory.devices[device].shares), device_state)
    if not takes.evicted and (held_mib := inventory.residents.memory_mib(device)):
        held_mib -= 0 if takes.used is None else takes.used.memory_mib
        device_state = device_state._replace(free_mib=device_state.free_mib - held_mib)
    return fit(request, device_state)


def load_fit(leases: int, device_state: DeviceState) -> Fit:
    """The fit of a best-effort request: the leases of the device, then its allocations."""
    free = (
        device_state.free_mib / max(1, device_state.memory_mib)
        + device_state.free_permille / COMPUTE_PERMILLE_MAX
    )
    return (leases, -free, device_state.memory_mib)


def shared_fit(request: Request, memory_mib: int, free_mib: int, free_permille: int) -> Fit:
    asked_mib = request.memory_on_mib(memory_mib)
    asked_permille = request.compute_guarantee_permille
    if request.placement is not Placement.SPREAD:
        return packed_fit(asked_mib, asked_permille, memory_mib, free_mib, free_permille)
    left_mib, left_permille = free_mib - asked_mib, free_permille - asked_permille
    return (0, -(left_mib / max(1, memory_mib) + left_permille / COMPUTE_PERMILLE_MAX), memory_mib)


@lru_cache(maxsize=4096)
def packed_fit(
    asked_mib: int, asked_permille: int, memory_mib: int, free_mib: int, free_permille: int
) -> Fit:
    whole_mib = max(1, memory_mib)
    left_mib, left_permille = free_mib - asked_mib, free_permille - asked_permille
    left = left_mib / whole_mib + left_permille / COMPUTE_PERMILLE_MAX
    before = min(PARTS * free_mib // whole_mib, PARTS * free_permille // COMPUTE_PERMILLE_MAX)
    after = min(PARTS * left_mib // whole_mib, PARTS * left_permille // COMPUTE_PERMILLE_MAX)
    return ((SLOTS_BY_PARTS[before] - SLOTS_BY_PARTS[after]) * memory_mib, left, memory_mib)


# ---------------------------------------------------------------------- candidates


class Search(NamedTuple):
    """The devices that may serve one device of a request now."""

    request: Request
    inventory: Inventory
    attempt: str | None  #: the devices that are reserved for it are included

    def fits(self, device: DeviceId) -> bool:
        return fits(self.request, self.inventory.state_of(device), self.attempt) is None

    def resident_index(self) -> Index | None:
        """The index of the devices with a resident of the workload of the request."""
        workload = resident_key(self.request)
        return None if workload is None else self.inventory.residents.with_workload(workload)

    def is_warm(self, device: DeviceId) -> bool:
        """True for a device with the warm key of the request."""
        keys = keys_of(self.request.tenant, self.request.warm_key)
        return any(key in self.inventory.devices[device].resident for key in keys)

    def warm_indexes(self) -> tuple[Index, ...]:
        """Indexes of the devices with a resident of the workload of the request, then of those with
        its warm key: public, and of the tenant."""
        request = self.request
        if request.workload is None and request.warm_key is None:
            return ()
        loaded = self.resident_index()
        first = () if loaded is None else (loaded,)
        if request.warm_key is None:
            return first
        keyed = [self.inventory.warm(key) for key in keys_of(request.tenant, request.warm_key)]
        return (*first, *(index for index in keyed if index is not None))

    def same_rank(self, warm: Index, group: DeviceGroup) -> Iterable[DeviceGroup]:
        """The warm groups with the same preference as this group."""
        rank = preference(self.request, group.device_class)
        for groups in warm.ranked(self.request):
            if preference(self.request, groups[0].device_class) == rank:
                return groups
        return ()

    def keeping(self, groups: tuple[DeviceGroup, ...]) -> list[DeviceGroup]:
        """The groups of one rank, some with residents, by what they have where nothing is evicted.

        An exclusive request evicts all residents of a device.
        """
        clear = [group for group in groups if not group.loaded]
        if self.request.sharing is Sharing.EXCLUSIVE:
            return clear
        return [*clear, *self.same_rank(self.inventory.residents.beside, groups[0])]

    def by_load(
        self, device_class: DeviceClass, within: Devices | None
    ) -> Iterator[tuple[int, Iterator[DeviceId]]]:
        """Devices of a class (`within` a part of it) that fit, the fewest leases first."""
        by_lease_count = self.inventory.least_loaded(device_class)
        if within is not None and len(within) <= LOAD_SAMPLE_MAX:
            by_lease_count = _few_by_load(self.inventory, within)
        for leases, devices in by_lease_count:
            here = (device for device in devices if within is None or device in within)
            yield leases, filter(self.fits, here)

    def of_groups(self, groups: Iterable[DeviceGroup]) -> Iterator[DeviceId]:
        """The devices of groups that fit, group by group, reserved ones first.

        SPREAD starts from the emptiest row, PACK from the tightest; best effort goes by load.
        """
        return chain.from_iterable(map(self._of_group, groups))

    def _of_group(self, group: DeviceGroup) -> Iterator[DeviceId]:
        request = self.request
        if request.is_best_effort:
            for _, devices in self.by_load(group.device_class, group.devices):
                yield from devices
            return
        yield from filter(self.fits, group.reserved_for(self.attempt))
        asked_mib = request.memory_on_mib(group.device_class.memory_mib)
        if request.sharing is Sharing.EXCLUSIVE:
            yield from group.idle
        elif request.placement is Placement.SPREAD:
            for _, row in group.rows_down_to(request.compute_guarantee_permille):
                yield from row.freest(asked_mib)
        else:
            for _, row in group.rows_up_from(request.compute_guarantee_permille):
                yield from row.tightest(asked_mib)


def _few_by_load(inventory: Inventory, devices: Devices) -> Iterator[tuple[int, Devices]]:
    by_lease_count: dict[int, Devices] = {}
    for device in devices:
        by_lease_count.setdefault(len(inventory.devices[device].shares), {})[device] = None
    yield from sorted(by_lease_count.items())
