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
from gpu_scheduler.core.inventory.devices import COMPUTE_PERMILLE_MAX, DeviceClass, fits
from gpu_scheduler.core.inventory.index import DeviceGroup, Devices
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.candidates import (
    LOAD_SAMPLE_MAX,
    PARTS,
    SLOTS_BY_PARTS,
    EvictionCost,
    Fit,
    by_load,
    eviction_cost,
    fit_on,
    load_fit,
    of_group,
    packed_fit,
    resident_index,
    same_rank,
    shared_fit,
    warm_indexes,
)
from gpu_scheduler.core.placement.eviction import NOTHING_TAKEN, taken
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
    if request.count > 1:
        return gang(request, inventory, attempt)
    warm = warm_indexes(request, inventory)
    loaded = resident_index(request, inventory) if warm else None
    for groups in inventory.index.ranked(request):
        best = None
        for index in warm:
            known = same_rank(request, index, groups[0])
            if inventory.residents:
                only_usable = index is loaded
                found = _cheapest(request, inventory, known, attempt, only_usable=only_usable)
            else:
                found = _best(request, inventory, known, attempt)
            best = best or found
        best = best or _best_of_rank(request, inventory, groups, attempt)
        if best is not None:
            return (best[1],)
    return None


def fitting(
    request: Request, inventory: Inventory, attempt: str | None = None
) -> Iterator[DeviceId]:
    """The devices that fit one device of `request` now, of the first preference that has some."""
    for devices in fitting_by_preference(request, inventory, attempt):
        for first in devices:
            return chain((first,), devices)
    return iter(())


def _best_of_rank(
    request: Request, inventory: Inventory, groups: tuple[DeviceGroup, ...], attempt: str | None
) -> _Best | None:
    """The best device of one rank: one where nothing is evicted, else the cheapest eviction."""
    if request.is_best_effort:
        found: _Best | None = None
        for device_class in dict.fromkeys(group.device_class for group in groups):
            found = _better(found, _least_loaded(request, inventory, device_class, None, attempt))
        return found
    if not groups[-1].loaded:
        return _best_guaranteed(request, inventory, groups, attempt)
    keeping: list[DeviceGroup] = [group for group in groups if not group.loaded]
    if request.sharing is not Sharing.EXCLUSIVE:
        keeping += same_rank(request, inventory.residents.beside, groups[0])
    evicting = (group for group in groups if group.loaded)
    best = _best_guaranteed(request, inventory, keeping, attempt)
    return best or _cheapest(request, inventory, evicting, attempt)


def _cheapest(
    request: Request,
    inventory: Inventory,
    groups: Iterable[DeviceGroup],
    attempt: str | None,
    *,
    only_usable: bool = False,
) -> _Best | None:
    """The device whose evictions are the cheapest to load again, then the best fit, of a sample.

    `only_usable`: of those with a resident that the share has room for.
    """
    fitting = (d for group in groups for d in of_group(request, inventory, group, attempt))
    best: tuple[EvictionCost, DeviceId] | None = None
    for device in islice(fitting, EVICTION_SAMPLE_MAX):
        takes = taken(request, inventory, device)
        if only_usable and takes.used is None:
            continue
        cost = eviction_cost(request, inventory, device, takes)
        if best is None or cost < best[0]:
            best = cost, device
    return None if best is None else (best[0][-3:], best[1])


def _best(
    request: Request, inventory: Inventory, groups: Iterable[DeviceGroup], attempt: str | None
) -> _Best | None:
    """The best fit among these groups; among equal fits, the first."""
    if not request.is_best_effort:
        return _best_guaranteed(request, inventory, groups, attempt)
    found: _Best | None = None
    for group in groups:
        one = _least_loaded(request, inventory, group.device_class, group.devices, attempt)
        found = _better(found, one)
    return found


def _best_guaranteed(
    request: Request, inventory: Inventory, groups: Iterable[DeviceGroup], attempt: str | None
) -> _Best | None:
    found: _Best | None = None
    asked_permille = request.compute_guarantee_permille
    for group in groups:
        if request.sharing is Sharing.EXCLUSIVE:
            found = _better(found, _best_empty(request, group))
        elif group.has_free(asked_permille):
            in_rows = _emptiest if request.placement is Placement.SPREAD else _tightest
            found = in_rows(request, group, asked_permille, found)
        if attempt in group.reserved:
            found = _better(
                found, _best_reserved(request, inventory, group.reserved[attempt], attempt)
            )
    return found


def _least_loaded(
    request: Request,
    inventory: Inventory,
    device_class: DeviceClass,
    within: Devices | None,
    attempt: str | None,
) -> _Best | None:
    for leases, devices in by_load(request, inventory, device_class, within, attempt):
        device_states = ((device, inventory.state_of(device)) for device in devices)
        ranked = (
            (load_fit(leases, device_state), device) for device, device_state in device_states
        )
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


def _best_reserved(
    request: Request, inventory: Inventory, kept: Devices, attempt: str | None
) -> _Best | None:
    """The best fit of reserved devices where nothing is evicted."""
    fitting = (
        device
        for device in kept
        if fits(request, inventory.state_of(device), attempt) is None
        and not taken(request, inventory, device).evicted
    )
    ranked = ((fit_on(request, inventory, device, NOTHING_TAKEN), device) for device in fitting)
    return min(ranked, key=lambda one: one[0], default=None)
