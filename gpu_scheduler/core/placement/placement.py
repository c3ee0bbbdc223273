"""Which devices serve a request best right now: all of them, or none.

The order of what decides: the request's preferences (kinds, then models), a warm device before a
cold one, then the fit. PACK loses as few *slots* as it can, then leaves as little free as it can;
SPREAD takes the emptiest device; an exclusive request wastes as little memory as it can. Who is
promised nothing (a share without memory and guarantee) gets the device with the fewest leases.

A device has a slot for every request of an eighth, a fourth, a half or the whole of it (in memory
and in compute) that still fits, and those of a larger device count for more: so small requests fill
odd corners and small devices, and leave halves and wholes alone.

One device costs a look at a few rows of the index. Several take the first preferences that can hold
all of them, row by row, and are arranged among four times as many as are needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from heapq import merge
from itertools import chain, islice

from corekit.ids import DeviceId, HostId
from gpu_scheduler.core.inventory.index import (
    DeviceGroup,
    Devices,
    Index,
    feasibility_key,
    preference,
)
from gpu_scheduler.core.inventory.inventory import HostEntry, Inventory
from gpu_scheduler.core.placement.fits import (
    COMPUTE_PCT_MAX,
    DeviceState,
    fits,
    is_feasible,
    unavailable_reason,
)
from gpu_scheduler.model import Placement, Request, Sharing
from gpu_scheduler.warm import keys_of

PARTS = 8  #: of a device: the smallest part that is a slot
#: A gang is arranged among so many devices for each that it needs, so that it finds a good host.
GANG_SAMPLE = 4
#: Hosts that are compared before one is kept for the head of the queue.
RESERVE_SAMPLE_MAX = 64
#: Equally loaded devices that are compared for one that is promised nothing.
LOAD_SAMPLE_MAX = 64

#: Slots lost, by size of the device; what is left free (SPREAD: less is worse); the size of the
#: device. Lower is better.
Fit = tuple[int, float, int]
#: What is compared: rank of the kind, rank of the model, 1 for a cold device, and the fit.
Score = tuple[int, int, int, int, float, int]

_Best = tuple[Fit, DeviceId]


def slots(parts: int) -> int:
    """How many requests of 1, 2, 4 or 8 eighths still fit into so many free eighths, each alone."""
    return parts + parts // 2 + parts // 4 + parts // 8


#: By eighths free.
_SLOTS = tuple(slots(parts) for parts in range(PARTS + 1))


def fit(request: Request, device_state: DeviceState) -> Fit:
    """How well a device of this device_state, which fits, serves the request."""
    if request.sharing is Sharing.EXCLUSIVE:
        return (0, float(device_state.memory_mib - request.memory_mib), device_state.memory_mib)
    return _shared_fit(
        request, device_state.memory_mib, device_state.free_mib, device_state.free_pct
    )


def score(
    request: Request, device_state: DeviceState, *, warm: bool = False, leases: int = 0
) -> Score:
    """Everything that decides between two devices that fit; lower is better."""
    fitting = (
        _load_fit(leases, device_state) if is_best_effort(request) else fit(request, device_state)
    )
    return (*preference(request, device_state), int(not warm), *fitting)


def is_best_effort(request: Request) -> bool:
    """A share without memory and guarantee: nothing is packed, but they share the computing."""
    return (
        request.sharing is Sharing.SHARED
        and not request.memory_mib
        and not request.compute_guarantee_pct
    )


def _load_fit(leases: int, device_state: DeviceState) -> Fit:
    """The load of a device for who is promised nothing: its leases, then what it promised."""
    free = (
        device_state.free_mib / max(1, device_state.memory_mib)
        + device_state.free_pct / COMPUTE_PCT_MAX
    )
    return (leases, -free, device_state.memory_mib)


def _shared_fit(request: Request, memory_mib: int, free_mib: int, free_pct: int) -> Fit:
    asked_mib, asked_pct = request.memory_mib, request.compute_guarantee_pct
    if request.placement is not Placement.SPREAD:
        return _packed_fit(asked_mib, asked_pct, memory_mib, free_mib, free_pct)
    left_mib, left_pct = free_mib - asked_mib, free_pct - asked_pct
    return (0, -(left_mib / max(1, memory_mib) + left_pct / COMPUTE_PCT_MAX), memory_mib)


@lru_cache(maxsize=4096)
def _packed_fit(
    asked_mib: int, asked_pct: int, memory_mib: int, free_mib: int, free_pct: int
) -> Fit:
    whole_mib = max(1, memory_mib)
    left_mib, left_pct = free_mib - asked_mib, free_pct - asked_pct
    left = left_mib / whole_mib + left_pct / COMPUTE_PCT_MAX
    before = min(PARTS * free_mib // whole_mib, PARTS * free_pct // COMPUTE_PCT_MAX)
    after = min(PARTS * left_mib // whole_mib, PARTS * left_pct // COMPUTE_PCT_MAX)
    return ((_SLOTS[before] - _SLOTS[after]) * memory_mib, left, memory_mib)


# ---------------------------------------------------------------------- one device


def place(
    request: Request, inventory: Inventory, attempt: str | None = None
) -> tuple[DeviceId, ...] | None:
    """The devices that serve `request` best right now; None when they do not all fit.

    `attempt` may use what is kept for it.
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
    """Devices that hold what the request names: for all tenants, for its own."""
    keys = keys_of(request.tenant, request.warm_key)
    return tuple(index for key in keys if (index := inventory.warm(key)) is not None)


def _same_rank(request: Request, warm: Index, group: DeviceGroup) -> Iterable[DeviceGroup]:
    """The warm groups that the request prefers as much as this one."""
    rank = preference(request, group.device_class)
    for groups in warm.ranked(request):
        if preference(request, groups[0].device_class) == rank:
            return groups
    return ()


def _best(
    request: Request, inventory: Inventory, groups: Iterable[DeviceGroup], attempt: str | None
) -> _Best | None:
    """The best fit among these groups; of equal ones, the one that came there first."""
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
        if attempt in group.kept:
            found = _better(found, _best_reserved(request, inventory, group.kept[attempt], attempt))
    return found


def _least_loaded(
    request: Request, inventory: Inventory, group: DeviceGroup, attempt: str | None
) -> _Best | None:
    """Of those with the fewest leases the one that promised least."""
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
    """Devices of a group that fit, by how many leases they have, the fewest first."""
    for leases, devices in inventory.least_loaded(group.device_class):
        here = (device for device in devices if device in group.devices)
        fit_now = (d for d in here if fits(request, inventory.state_of(d), attempt) is None)
        yield leases, fit_now


def _better(left: _Best | None, right: _Best | None) -> _Best | None:
    if left is None or right is None:
        return left or right
    return right if right[0] < left[0] else left


def _best_empty(request: Request, group: DeviceGroup) -> _Best | None:
    if not group.empty:
        return None
    memory_mib = group.device_class.memory_mib
    return (0, float(memory_mib - request.memory_mib), memory_mib), next(iter(group.empty))


def _emptiest(request: Request, group: DeviceGroup) -> _Best | None:
    memory_mib = group.device_class.memory_mib
    room = (memory_mib - request.memory_mib) / max(1, memory_mib)
    best: tuple[Fit, Devices] | None = None
    for free_pct, row in group.rows_down_to(request.compute_guarantee_pct):
        left_pct = (free_pct - request.compute_guarantee_pct) / COMPUTE_PCT_MAX
        if best is not None and best[0][1] <= -(room + left_pct):
            break  # neither this row nor one below it can be as empty
        free_mib = row.free_mib[-1]
        if free_mib >= request.memory_mib:
            one = _shared_fit(request, memory_mib, free_mib, free_pct)
            if best is None or one < best[0]:
                best = one, row.cells[free_mib]
    return None if best is None else (best[0], next(iter(best[1])))


def _tightest(request: Request, group: DeviceGroup, best: _Best | None) -> _Best | None:
    """Row by row from the tightest on, until none of the rest can be better than `best`."""
    memory_mib, asked_mib = group.device_class.memory_mib, request.memory_mib
    whole_mib, asked_pct = max(1, memory_mib), request.compute_guarantee_pct
    least = _least_lost(PARTS * asked_mib // whole_mib, asked_pct) * memory_mib
    for free_pct, row in group.rows_up_from(asked_pct):
        left_pct = (free_pct - asked_pct) / COMPUTE_PCT_MAX
        if best is not None and best[0] <= (least, left_pct, memory_mib):
            break
        for free_mib in _steps(asked_mib, whole_mib, row.free_mib):
            left = (free_mib - asked_mib) / whole_mib + left_pct
            if best is not None and best[0] <= (least, left, memory_mib):
                break
            one = _packed_fit(asked_mib, asked_pct, memory_mib, free_mib, free_pct)
            if best is None or one < best[0]:
                best = one, next(iter(row.cells[free_mib]))
    return best


@lru_cache(maxsize=1024)
def _least_lost(memory_parts: int, compute_pct: int) -> int:
    """No grant that takes so much of a device costs it fewer slots."""
    taken = min(memory_parts, PARTS * compute_pct // COMPUTE_PCT_MAX)
    return min(_SLOTS[parts] - _SLOTS[parts - taken] for parts in range(taken, PARTS + 1))


def _steps(asked_mib: int, whole_mib: int, free_mib: list[int]) -> Iterator[int]:
    """Of a row that is sorted by free memory: where the fit can take a step to the better.

    The tightest, and the tightest after every eighth of the device at which the slots before or
    after the grant change: between two of these the first is the best.
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
    """The first preferences that can hold all of it do."""
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
    """PACK: on few hosts, best on one that it fills. SPREAD: one of each host in tx."""
    first_by_class = list(hosts.values())
    if request.placement is Placement.SPREAD:
        return _round_robin(first_by_class, request.count)
    if (one := _filled(request, inventory, first_by_class)) is not None:
        return one
    first_by_class.sort(key=len, reverse=True)
    return tuple([device for line in first_by_class for device in line][: request.count])


def _filled(
    request: Request, inventory: Inventory, first_by_class: Iterable[list[DeviceId]]
) -> tuple[DeviceId, ...] | None:
    """The host with enough devices that has the fewest to spare.

    For who is promised nothing the one whose devices are loaded least.
    """
    enough = (line for line in first_by_class if len(line) >= request.count)
    best_effort, entries = is_best_effort(request), inventory.devices

    def key(line: list[DeviceId]) -> tuple[int, int]:
        load = sum(len(entries[d].shares) for d in line[: request.count]) if best_effort else 0
        return load, len(line)

    best = min(enough, key=key, default=None)
    return None if best is None else tuple(best[: request.count])


def _round_robin(first_by_class: list[list[DeviceId]], count: int) -> tuple[DeviceId, ...]:
    longest = max(len(line) for line in first_by_class)
    turns = [line[i] for i in range(longest) for line in first_by_class if i < len(line)]
    return tuple(turns[:count])


def _by_host(inventory: Inventory, devices: Iterable[DeviceId]) -> dict[HostId, list[DeviceId]]:
    hosts: dict[HostId, list[DeviceId]] = {}
    for device in devices:
        hosts.setdefault(inventory.devices[device].host, []).append(device)
    return hosts


def _fitting(
    request: Request, inventory: Inventory, attempt: str | None
) -> Iterator[Iterator[DeviceId]]:
    """The devices that fit, preference by preference; warm ones first, then as they come."""
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
    """Kept ones first; SPREAD from the emptiest row on, PACK from the tightest.

    Who is promised nothing gets the least loaded ones.
    """
    if is_best_effort(request):
        for _, devices in _by_load(request, inventory, group, attempt):
            yield from devices
        return
    for device in group.kept.get(attempt, ()) if attempt is not None else ():
        if fits(request, inventory.state_of(device), attempt) is None:
            yield device
    if request.sharing is Sharing.EXCLUSIVE:
        yield from group.empty
    elif request.placement is Placement.SPREAD:
        for _, row in group.rows_down_to(request.compute_guarantee_pct):
            yield from row.freest(request.memory_mib)
    else:
        for _, row in group.rows_up_from(request.compute_guarantee_pct):
            yield from row.tightest(request.memory_mib)


# ---------------------------------------------------------------------- one host


def _same_host(
    request: Request, inventory: Inventory, attempt: str | None
) -> tuple[DeviceId, ...] | None:
    """All on one host; what did not fit before is searched for on hosts that became freed_seq since."""
    keeps = attempt is not None and any(attempt in g.kept for g in inventory.index.groups.values())
    question = (
        feasibility_key(request),
        request.count,
        request.sharing,
        request.compute_guarantee_pct,
        attempt if keeps else None,
    )
    since = inventory.refused.get(question)
    if since is not None:
        found = _on_hosts(request, inventory, attempt, _freed_since(inventory, since))
    else:
        found = _on_any_host(request, inventory, attempt)
    if found is None:
        inventory.remember(inventory.refused, question, inventory.freed_seq)
    else:
        inventory.refused.pop(question, None)
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
    """On one of these hosts: the one with the best preferences, then the fewest to spare."""
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
    """Arranged as any gang, but searched for until some host has enough."""
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


# ---------------------------------------------------------------------- for the head of the queue


def reservable_for_head(request: Request, inventory: Inventory) -> tuple[DeviceId, ...]:
    """Devices to keep for a head that was passed too often: those nearest to being free for it.

    Usable ones only (up, healthy, not drained); empty when there are not enough of them.
    """
    if request.count > 1 and request.placement is Placement.SAME_HOST:
        return _reservable_on_one_host(request, inventory)
    groups = [group for groups in inventory.index.ranked(request) for group in groups]
    first_by_class = [iter(row.freest(0)) for group in groups for row in group.rows.values()]
    lent = (device for group in groups for device in (*group.reserved_devices(), *group.lent))

    def distance(device: DeviceId) -> tuple[bool, int, int]:
        return _distance(inventory.state_of(device))

    first_by_class.append(iter(sorted(islice(lent, RESERVE_SAMPLE_MAX), key=distance)))
    nearest = tuple(islice(merge(*first_by_class, key=distance), request.count))
    return nearest if len(nearest) == request.count else ()


def _reservable_on_one_host(request: Request, inventory: Inventory) -> tuple[DeviceId, ...]:
    """Of some hosts that have enough, the one whose devices are nearest to being free."""
    hosts = (list(_usable(request, inventory, host)) for host in inventory.hosts.values())
    enough = islice((line for line in hosts if len(line) >= request.count), RESERVE_SAMPLE_MAX)
    first_by_class = [sorted(line)[: request.count] for line in enough]
    return tuple(
        device for _, device in min(first_by_class, key=lambda line: line[-1][0], default=[])
    )


def _usable(
    request: Request, inventory: Inventory, host: HostEntry
) -> Iterator[tuple[tuple[bool, int, int], DeviceId]]:
    for device in host.devices:
        device_state = inventory.state_of(device)
        if unavailable_reason(device_state) is None and is_feasible(request, device_state):
            yield _distance(device_state), device


def _distance(device_state: DeviceState) -> tuple[bool, int, int]:
    """How far from free; the lower, the nearer."""
    return (device_state.exclusive, -device_state.free_mib, -device_state.free_pct)
