"""Placement: the devices that serve a request best now; all of them, or none.

The criteria, in order: the preferences of the request (kinds, then models), a warm device
before a cold one, then the fit. PACK loses the fewest *slots*, then leaves the least free; SPREAD
takes the emptiest device; an exclusive request wastes the least memory. A best-effort request (a
share without memory and guarantee) gets the device with the fewest leases.

A device has a slot for every request for an eighth, a quarter, a half or all of it (in memory and
in compute) that still fits, and slots of a larger device count for more: so small requests fill
gaps and small devices, and leave halves and whole devices free.

A request for one device looks at a few rows of the index. A gang takes devices of the first
preferences that fit it, row by row, and chooses among four times as many as it needs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, islice

from corekit.ids import DeviceId, HostId
from gpu_scheduler.core.inventory.index import (
    DeviceGroup,
    Devices,
    Index,
    feasibility_key,
    preference,
)
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.fits import (
    COMPUTE_PERMILLE_MAX,
    DeviceState,
    fits,
)
from gpu_scheduler.model import Placement, Request, Sharing
from gpu_scheduler.warm import keys_of

PARTS = 8  #: parts of a device; one part is the smallest slot
#: The number of devices compared for each device of a gang.
GANG_SAMPLE = 4
#: The number of equally loaded devices compared for a best-effort request.
LOAD_SAMPLE_MAX = 64

#: Slots lost, weighted by the size of the device; capacity left free (negative for SPREAD); the
#: size of the device. Lower is better.
Fit = tuple[int, float, int]
#: Rank of the kind, rank of the model, 1 for a cold device, and the fit.
Score = tuple[int, int, int, int, float, int]

_Best = tuple[Fit, DeviceId]


def slots(parts: int) -> int:
    """The number of requests of 1, 2, 4 or 8 eighths that fit into `parts` free eighths."""
    return parts + parts // 2 + parts // 4 + parts // 8


#: By eighths free.
_SLOTS = tuple(slots(parts) for parts in range(PARTS + 1))


def fit(request: Request, device_state: DeviceState) -> Fit:
    """The fit of a request on a device in this state, which can serve it."""
    if request.sharing is Sharing.EXCLUSIVE:
        return (0, float(device_state.memory_mib - request.memory_mib), device_state.memory_mib)
    return _shared_fit(
        request, device_state.memory_mib, device_state.free_mib, device_state.free_permille
    )


def score(
    request: Request, device_state: DeviceState, *, warm: bool = False, leases: int = 0
) -> Score:
    """All criteria for comparing devices that fit; lower is better."""
    fitting = (
        _load_fit(leases, device_state) if is_best_effort(request) else fit(request, device_state)
    )
    return (*preference(request, device_state), int(not warm), *fitting)


def is_best_effort(request: Request) -> bool:
    """True for a share without memory and guarantee."""
    return (
        request.sharing is Sharing.SHARED
        and not request.memory_mib
        and not request.memory_pct
        and not request.compute_guarantee_permille
    )


def _load_fit(leases: int, device_state: DeviceState) -> Fit:
    """The fit of a best-effort request: the leases of the device, then its allocations."""
    free = (
        device_state.free_mib / max(1, device_state.memory_mib)
        + device_state.free_permille / COMPUTE_PERMILLE_MAX
    )
    return (leases, -free, device_state.memory_mib)


def _shared_fit(request: Request, memory_mib: int, free_mib: int, free_permille: int) -> Fit:
    asked_mib = request.memory_on_mib(memory_mib)
    asked_permille = request.compute_guarantee_permille
    if request.placement is not Placement.SPREAD:
        return _packed_fit(asked_mib, asked_permille, memory_mib, free_mib, free_permille)
    left_mib, left_permille = free_mib - asked_mib, free_permille - asked_permille
    return (0, -(left_mib / max(1, memory_mib) + left_permille / COMPUTE_PERMILLE_MAX), memory_mib)


@lru_cache(maxsize=4096)
def _packed_fit(
    asked_mib: int, asked_permille: int, memory_mib: int, free_mib: int, free_permille: int
) -> Fit:
    whole_mib = max(1, memory_mib)
    left_mib, left_permille = free_mib - asked_mib, free_permille - asked_permille
    left = left_mib / whole_mib + left_permille / COMPUTE_PERMILLE_MAX
    before = min(PARTS * free_mib // whole_mib, PARTS * free_permille // COMPUTE_PERMILLE_MAX)
    after = min(PARTS * left_mib // whole_mib, PARTS * left_permille // COMPUTE_PERMILLE_MAX)
    return ((_SLOTS[before] - _SLOTS[after]) * memory_mib, left, memory_mib)


# ---------------------------------------------------------------------- one device


def place(
    request: Request, inventory: Inventory, attempt: str | None = None
) -> tuple[DeviceId, ...] | None:
    """The devices that serve `request` best now; None when they do not all fit.

    Devices that are reserved for `attempt` are included.
    """
    if request.count > 1:
        return _gang(request, inventory, attempt)
    warm = _warm(request, inventory)
    for groups in inventory.index.ranked(request):
        best = None
        for index in warm:
            known = _same_rank(request, index, groups[0])
            best = best or _best(request, inventory, known, attempt)
        best = best or _best(request, inventory, groups, attempt)
        if best is not None:
            return (best[1],)
    return None


def _warm(request: Request, inventory: Inventory) -> tuple[Index, ...]:
    """Indexes of the devices with the warm key of the request: public, and of the tenant."""
    keys = keys_of(request.tenant, request.warm_key)
    return tuple(index for key in keys if (index := inventory.warm(key)) is not None)


def _same_rank(request: Request, warm: Index, group: DeviceGroup) -> Iterable[DeviceGroup]:
    """The warm groups with the same preference as this group."""
    rank = preference(request, group.device_class)
    for groups in warm.ranked(request):
        if preference(request, groups[0].device_class) == rank:
            return groups
    return ()


def _best(
    request: Request, inventory: Inventory, groups: Iterable[DeviceGroup], attempt: str | None
) -> _Best | None:
    """The best fit among these groups; among equal fits, the first."""
    found: _Best | None = None
    best_effort = is_best_effort(request)
    for group in groups:
        if best_effort:
            found = _better(found, _least_loaded(request, inventory, group, attempt))
            continue
        if request.sharing is Sharing.EXCLUSIVE:
            found = _better(found, _best_empty(request, group))
        elif request.placement is Placement.SPREAD:
            found = _better(found, _emptiest(request, group))
        else:
            found = _tightest(request, group, found)
        if attempt in group.reserved:
            found = _better(
                found, _best_reserved(request, inventory, group.reserved[attempt], attempt)
            )
    return found


def _least_loaded(
    request: Request, inventory: Inventory, group: DeviceGroup, attempt: str | None
) -> _Best | None:
    """The device with the fewest leases, then the smallest allocations."""
    for leases, devices in _by_load(request, inventory, group, attempt):
        device_states = ((device, inventory.state_of(device)) for device in devices)
        ranked = (
            (_load_fit(leases, device_state), device) for device, device_state in device_states
        )
        best = min(islice(ranked, LOAD_SAMPLE_MAX), key=lambda one: one[0], default=None)
        if best is not None:
            return best
    return None


def _by_load(
    request: Request, inventory: Inventory, group: DeviceGroup, attempt: str | None
) -> Iterator[tuple[int, Iterator[DeviceId]]]:
    """Devices of a group that fit, by number of leases, the fewest first."""
    for leases, devices in inventory.least_loaded(group.device_class):
        here = (device for device in devices if device in group.devices)
        fit_now = (d for d in here if fits(request, inventory.state_of(d), attempt) is None)
        yield leases, fit_now


def _better(left: _Best | None, right: _Best | None) -> _Best | None:
    if left is None or right is None:
        return left or right
    return right if right[0] < left[0] else left


def _best_empty(request: Request, group: DeviceGroup) -> _Best | None:
    if not group.idle:
        return None
    memory_mib = group.device_class.memory_mib
    return (0, float(memory_mib - request.memory_mib), memory_mib), next(iter(group.idle))


def _emptiest(request: Request, group: DeviceGroup) -> _Best | None:
    memory_mib = group.device_class.memory_mib
    asked_mib = request.memory_on_mib(memory_mib)
    room = (memory_mib - asked_mib) / max(1, memory_mib)
    best: tuple[Fit, Devices] | None = None
    for free_permille, row in group.rows_down_to(request.compute_guarantee_permille):
        left_compute = (free_permille - request.compute_guarantee_permille) / COMPUTE_PERMILLE_MAX
        if best is not None and best[0][1] <= -(room + left_compute):
            break  # no device of this row or of one below it is emptier
        free_mib = row.free_mib[-1]
        if free_mib >= asked_mib:
            one = _shared_fit(request, memory_mib, free_mib, free_permille)
            if best is None or one < best[0]:
                best = one, row.cells[free_mib]
    return None if best is None else (best[0], next(iter(best[1])))


def _tightest(request: Request, group: DeviceGroup, best: _Best | None) -> _Best | None:
    """The tightest fit: row by row, until no remaining row can be better than `best`."""
    memory_mib = group.device_class.memory_mib
    asked_mib = request.memory_on_mib(memory_mib)
    whole_mib, asked_permille = max(1, memory_mib), request.compute_guarantee_permille
    least = _least_lost(PARTS * asked_mib // whole_mib, asked_permille) * memory_mib
    for free_permille, row in group.rows_up_from(asked_permille):
        left_compute = (free_permille - asked_permille) / COMPUTE_PERMILLE_MAX
        if best is not None and best[0] <= (least, left_compute, memory_mib):
            break
        for free_mib in _steps(asked_mib, whole_mib, row.free_mib):
            left = (free_mib - asked_mib) / whole_mib + left_compute
            if best is not None and best[0] <= (least, left, memory_mib):
                break
            one = _packed_fit(asked_mib, asked_permille, memory_mib, free_mib, free_permille)
            if best is None or one < best[0]:
                best = one, next(iter(row.cells[free_mib]))
    return best


@lru_cache(maxsize=1024)
def _least_lost(memory_parts: int, compute_permille: int) -> int:
    """The fewest slots that a grant of this size costs."""
    taken = min(memory_parts, PARTS * compute_permille // COMPUTE_PERMILLE_MAX)
    return min(_SLOTS[parts] - _SLOTS[parts - taken] for parts in range(taken, PARTS + 1))


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
    fitting = (d for d in kept if fits(request, inventory.state_of(d), attempt) is None)
    ranked = ((fit(request, inventory.state_of(device)), device) for device in fitting)
    return min(ranked, key=lambda one: one[0], default=None)


# ---------------------------------------------------------------------- several devices


def _gang(
    request: Request, inventory: Inventory, attempt: str | None
) -> tuple[DeviceId, ...] | None:
    """The devices of a gang, from the first preferences that fit all of it."""
    if request.placement is Placement.SAME_HOST:
        return _same_host(request, inventory, attempt)
    seen: list[DeviceId] = []
    for devices in _fitting(request, inventory, attempt):
        seen.extend(islice(devices, GANG_SAMPLE * request.count))
        if len(seen) >= request.count:
            return _arranged(request, inventory, _by_host(inventory, seen))
    return None


def _arranged(
    request: Request, inventory: Inventory, hosts: Mapping[HostId, list[DeviceId]]
) -> tuple[DeviceId, ...]:
    """PACK: devices on few hosts, ideally one that is then full. SPREAD: one per host in turn."""
    lines = list(hosts.values())
    if request.placement is Placement.SPREAD:
        return _round_robin(lines, request.count)
    if (one := _filled(request, inventory, lines)) is not None:
        return one
    lines.sort(key=len, reverse=True)
    return tuple([device for line in lines for device in line][: request.count])


def _filled(
    request: Request, inventory: Inventory, lines: Iterable[list[DeviceId]]
) -> tuple[DeviceId, ...] | None:
    """Devices of the host with enough of them and the fewest to spare.

    For a best-effort request, devices of the host with the least loaded devices.
    """
    enough = (line for line in lines if len(line) >= request.count)
    best_effort, entries = is_best_effort(request), inventory.devices

    def key(line: list[DeviceId]) -> tuple[int, int]:
        load = sum(len(entries[d].shares) for d in line[: request.count]) if best_effort else 0
        return load, len(line)

    best = min(enough, key=key, default=None)
    return None if best is None else tuple(best[: request.count])


def _round_robin(lines: list[list[DeviceId]], count: int) -> tuple[DeviceId, ...]:
    longest = max(len(line) for line in lines)
    turns = [line[i] for i in range(longest) for line in lines if i < len(line)]
    return tuple(turns[:count])


def _by_host(inventory: Inventory, devices: Iterable[DeviceId]) -> dict[HostId, list[DeviceId]]:
    hosts: dict[HostId, list[DeviceId]] = {}
    for device in devices:
        hosts.setdefault(inventory.devices[device].host, []).append(device)
    return hosts


def _fitting(
    request: Request, inventory: Inventory, attempt: str | None
) -> Iterator[Iterator[DeviceId]]:
    """The devices that fit, preference by preference; warm devices first."""
    warm = _warm(request, inventory)
    for groups in inventory.index.ranked(request):
        cold = (d for group in groups for d in _of_group(request, inventory, group, attempt))
        if not warm:
            yield cold
        else:
            known = [one for index in warm for one in _same_rank(request, index, groups[0])]
            hot = (d for group in known for d in _of_group(request, inventory, group, attempt))
            yield iter(dict.fromkeys(chain(islice(hot, request.count), cold)))


def _of_group(
    request: Request, inventory: Inventory, group: DeviceGroup, attempt: str | None
) -> Iterator[DeviceId]:
    """The devices of a group that fit, reserved ones first.

    SPREAD starts from the emptiest row, PACK from the tightest; best effort goes by load.
    """
    if is_best_effort(request):
        for _, devices in _by_load(request, inventory, group, attempt):
            yield from devices
        return
    for device in group.reserved.get(attempt, ()) if attempt is not None else ():
        if fits(request, inventory.state_of(device), attempt) is None:
            yield device
    asked_mib = request.memory_on_mib(group.device_class.memory_mib)
    if request.sharing is Sharing.EXCLUSIVE:
        yield from group.idle
    elif request.placement is Placement.SPREAD:
        for _, row in group.rows_down_to(request.compute_guarantee_permille):
            yield from row.freest(asked_mib)
    else:
        for _, row in group.rows_up_from(request.compute_guarantee_permille):
            yield from row.tightest(asked_mib)


# ---------------------------------------------------------------------- one host


def _same_host(
    request: Request, inventory: Inventory, attempt: str | None
) -> tuple[DeviceId, ...] | None:
    """Devices on one host; after a miss only hosts that were freed since are searched."""
    keeps = attempt is not None and any(
        attempt in g.reserved for g in inventory.index.groups.values()
    )
    cache_key = (
        feasibility_key(request),
        request.count,
        request.sharing,
        request.compute_guarantee_permille,
        attempt if keeps else None,
    )
    since = inventory.same_host_misses.get(cache_key)
    if since is not None:
        found = _on_hosts(request, inventory, attempt, _freed_since(inventory, since))
    else:
        found = _on_any_host(request, inventory, attempt)
    if found is None:
        inventory.cache(inventory.same_host_misses, cache_key, inventory.freed_seq)
    else:
        inventory.same_host_misses.pop(cache_key, None)
    return found


def _freed_since(inventory: Inventory, since: int) -> list[HostId]:
    hosts: list[HostId] = []
    for host in reversed(inventory.hosts_freed):
        if inventory.hosts_freed[host] <= since:
            break
        hosts.append(host)
    return hosts


def _on_hosts(
    request: Request, inventory: Inventory, attempt: str | None, hosts: Iterable[HostId]
) -> tuple[DeviceId, ...] | None:
    """Devices on one of these hosts: by preferences, then the fewest to spare."""
    best: tuple[Score, int] | None = None
    chosen: tuple[DeviceId, ...] | None = None
    for host in hosts:
        ranked = sorted(
            (score(request, inventory.state_of(device)), number, device)
            for number, device in enumerate(inventory.hosts[host].devices)
            if fits(request, inventory.state_of(device), attempt) is None
        )
        if len(ranked) >= request.count:
            one = (ranked[request.count - 1][0], len(ranked))
            if best is None or one < best:
                best, chosen = one, tuple(device for *_, device in ranked[: request.count])
    return chosen


def _on_any_host(
    request: Request, inventory: Inventory, attempt: str | None
) -> tuple[DeviceId, ...] | None:
    """Devices of the first host that has enough, with the sample of any gang."""
    hosts: dict[HostId, list[DeviceId]] = {}
    look = GANG_SAMPLE * request.count
    for devices in _fitting(request, inventory, attempt):
        for device in devices:
            look -= 1
            line = hosts.setdefault(inventory.devices[device].host, [])
            line.append(device)
            if look < 0 and len(line) >= request.count:
                return tuple(line)
            if look == 0 and (found := _filled(request, inventory, hosts.values())):
                return found
        if found := _filled(request, inventory, hosts.values()):
            return found
    return None
