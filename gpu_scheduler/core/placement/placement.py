"""Placement: the devices that serve a request best now; all of them, or none.

The criteria, in order: the preferences of the request (kinds, then models), a device with
a resident of its workload, one with its warm key, one where nothing is evicted, the evictions that
are cheapest to load again (among a sample), then the fit. PACK loses the fewest *slots*, then
leaves the least free; SPREAD takes the emptiest device; an exclusive request wastes the least
memory. A best-effort request (a share without memory and guarantee) gets the device with the fewest
leases.

A device has a slot for every request for an eighth, a quarter, a half or all of it (in memory and
in compute) that still fits, and slots of a larger device count for more: so small requests fill
gaps and small devices, and leave halves and whole devices free.

A request for one device looks at a few rows of the index. A gang takes devices of the first
preferences that fit it, row by row, and chooses among four times as many as it needs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice

from corekit.ids import DeviceId
from gpu_scheduler.core.inventory.devices import COMPUTE_PERMILLE_MAX, DeviceClass
from gpu_scheduler.core.inventory.index import DeviceGroup, Devices
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.candidates import (
    LOAD_SAMPLE_MAX,
    PARTS,
    SLOTS_BY_PARTS,
    EvictionCost,
    Fit,
    Search,
    eviction_cost,
    fit_on,
    load_fit,
    packed_fit,
    shared_fit,
)
from gpu_scheduler.core.placement.eviction import NOTHING_TAKEN, taken
from gpu_scheduler.core.placement.fetching import soonest
from gpu_scheduler.core.placement.gangs import fitting_by_preference, gang
from gpu_scheduler.model import Placement, Request, Sharing

#: The number of devices compared by the cost of their evictions.
EVICTION_SAMPLE_MAX = 64

_Best = tuple[Fit, DeviceId]


# ---------------------------------------------------------------------- one device


def place(
    request: Request, inventory: Inventory, attempt: str | None = None
) -> tuple[DeviceId, ...] | None:
    """The devices that serve `request` best now; None when they do not all fit.

    Devices that are reserved for `attempt` are included.
    """
    search = Search(request, inventory, attempt)
    if request.count > 1:
        return gang(search)
    if request.data_sets:
        found_by_rank = (soonest(search, groups) for groups in inventory.index.ranked(request))
        device = next((one for one in found_by_rank if one is not None), None)
        return None if device is None else (device,)
    warm = search.warm_indexes()
    loaded = search.resident_index() if warm else None
    for groups in inventory.index.ranked(request):
        best = None
        for index in warm:
            known = search.same_rank(index, groups[0])
            if inventory.residents:
                found = _cheapest(search, known, only_usable=index is loaded)
            else:
                found = _best(search, known)
            best = best or found
        best = best or _best_of_rank(search, groups)
        if best is not None:
            return (best[1],)
    return None


def fitting(
    request: Request, inventory: Inventory, attempt: str | None = None
) -> Iterator[DeviceId]:
    """The devices that fit one device of `request` now, of the first preference that has some."""
    for devices in fitting_by_preference(Search(request, inventory, attempt)):
        for first in devices:
            return chain((first,), devices)
    return iter(())


def _best_of_rank(search: Search, groups: tuple[DeviceGroup, ...]) -> _Best | None:
    """The best device of one rank: one where nothing is evicted, else the cheapest eviction."""
    if search.request.is_best_effort:
        found: _Best | None = None
        for device_class in dict.fromkeys(group.device_class for group in groups):
            found = _better(found, _least_loaded(search, device_class, None))
        return found
    if not groups[-1].loaded:
        return _best_guaranteed(search, groups)
    best = _best_guaranteed(search, search.keeping(groups))
    return best or _cheapest(search, (group for group in groups if group.loaded))


def _cheapest(
    search: Search, groups: Iterable[DeviceGroup], *, only_usable: bool = False
) -> _Best | None:
    """The device whose evictions are the cheapest to load again, then the best fit, of a sample.

    `only_usable`: of those with a resident that the share has room for.
    """
    request, inventory, _ = search
    best: tuple[EvictionCost, DeviceId] | None = None
    for device in islice(search.of_groups(groups), EVICTION_SAMPLE_MAX):
        takes = taken(request, inventory, device)
        if only_usable and takes.used is None:
            continue
        cost = eviction_cost(request, inventory, device, takes)
        if best is None or cost < best[0]:
            best = cost, device
    return None if best is None else (best[0][-3:], best[1])


def _best(search: Search, groups: Iterable[DeviceGroup]) -> _Best | None:
    """The best fit among these groups; among equal fits, the first."""
    if not search.request.is_best_effort:
        return _best_guaranteed(search, groups)
    found: _Best | None = None
    for group in groups:
        found = _better(found, _least_loaded(search, group.device_class, group.devices))
    return found


def _best_guaranteed(search: Search, groups: Iterable[DeviceGroup]) -> _Best | None:
    found: _Best | None = None
    request = search.request
    asked_permille = request.compute_guarantee_permille
    for group in groups:
        if request.sharing is Sharing.EXCLUSIVE:
            found = _better(found, _best_empty(request, group))
        elif group.has_free(asked_permille):
            in_rows = _emptiest if request.placement is Placement.SPREAD else _tightest
            found = in_rows(request, group, asked_permille, found)
        if search.attempt in group.reserved:
            found = _better(found, _best_reserved(search, group.reserved_for(search.attempt)))
    return found


def _least_loaded(
    search: Search, device_class: DeviceClass, within: Devices | None
) -> _Best | None:
    state_of = search.inventory.state_of
    for leases, devices in search.by_load(device_class, within):
        ranked = ((load_fit(leases, state_of(device)), device) for device in devices)
        best = min(islice(ranked, LOAD_SAMPLE_MAX), key=lambda one: one[0], default=None)
        if best is not None:
            return best
    return None


def _better(left: _Best | None, right: _Best | None) -> _Best | None:
    if left is None or right is None:
        return left or right
    return right if right[0] < left[0] else left


def _best_empty(request: Request, group: DeviceGroup) -> _Best | None:
    if not group.idle:
        return None
    memory_mib = group.device_class.memory_mib
    return (0, float(memory_mib - request.memory_mib), memory_mib), next(iter(group.idle))


def _emptiest(
    request: Request, group: DeviceGroup, asked_permille: int, other: _Best | None
) -> _Best | None:
    memory_mib = group.device_class.memory_mib
    asked_mib = request.memory_on_mib(memory_mib)
    room = (memory_mib - asked_mib) / max(1, memory_mib)
    best: tuple[Fit, Devices] | None = None
    for free_permille, row in group.rows_down_to(asked_permille):
        left_compute = (free_permille - asked_permille) / COMPUTE_PERMILLE_MAX
        if best is not None and best[0][1] <= -(room + left_compute):
            break  # no device of this row or of one below it is emptier
        free_mib = row.free_mib[-1]
        if free_mib >= asked_mib:
            one = shared_fit(request, memory_mib, free_mib, free_permille)
            if best is None or one < best[0]:
                best = one, row.cells[free_mib]
    return other if best is None else _better(other, (best[0], next(iter(best[1]))))


def _tightest(
    request: Request, group: DeviceGroup, asked_permille: int, best: _Best | None
) -> _Best | None:
    """The tightest fit: row by row, until no remaining row can be better than `best`."""
    memory_mib = group.device_class.memory_mib
    asked_mib = request.memory_on_mib(memory_mib)
    whole_mib = max(1, memory_mib)
    least = _least_lost(PARTS * asked_mib // whole_mib, asked_permille) * memory_mib
    for free_permille, row in group.rows_up_from(asked_permille):
        left_compute = (free_permille - asked_permille) / COMPUTE_PERMILLE_MAX
        if best is not None and best[0] <= (least, left_compute, memory_mib):
            break
        for free_mib in _steps(asked_mib, whole_mib, row.free_mib):
            left = (free_mib - asked_mib) / whole_mib + left_compute
            if best is not None and best[0] <= (least, left, memory_mib):
                break
            one = packed_fit(asked_mib, asked_permille, memory_mib, free_mib, free_permille)
            if best is None or one < best[0]:
                best = one, next(iter(row.cells[free_mib]))
    return best


@lru_cache(maxsize=1024)
def _least_lost(memory_parts: int, compute_permille: int) -> int:
    """The fewest slots that a grant of this size costs."""
    asked = min(memory_parts, PARTS * compute_permille // COMPUTE_PERMILLE_MAX)
    return min(
        SLOTS_BY_PARTS[parts] - SLOTS_BY_PARTS[parts - asked] for parts in range(asked, PARTS + 1)
    )


def _steps(asked_mib: int, whole_mib: int, free_mib: list[int]) -> Iterator[int]:
    """The values of free memory in a row at which the fit can improve.

    These are the tightest, and the tightest after every eighth of the device at which the slots
    before or after the grant change: between two of these the first is the best.
    """
    at, step_mib = 0, asked_mib
    while (at := bisect_left(free_mib, step_mib, at)) < len(free_mib):
        here_mib = free_mib[at]
        yield here_mib
        before, after = PARTS * here_mib // whole_mib, PARTS * (here_mib - asked_mib) // whole_mib
        step_mib = -(-(before + 1) * whole_mib // PARTS)
        if (other_mib := asked_mib - (-(after + 1) * whole_mib // PARTS)) < step_mib:
            step_mib = other_mib


def _best_reserved(search: Search, devices: Devices) -> _Best | None:
    """The best fit of reserved devices where nothing is evicted."""
    request, inventory, _ = search
    ranked = (
        (fit_on(request, inventory, device, NOTHING_TAKEN), device)
        for device in filter(search.fits, devices)
        if not taken(request, inventory, device).evicted
    )
    return min(ranked, key=lambda one: one[0], default=None)
