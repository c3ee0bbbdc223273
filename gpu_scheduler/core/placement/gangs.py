"""Devices for a request that needs several: all of them, or none.

A gang takes devices of the first preferences that fit it, row by row, and chooses among four times
as many as it needs: PACK few hosts, SPREAD one device per host in turn, SAME_HOST one host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from corekit.ids import DeviceId, HostId
from gpu_scheduler.core.inventory.index import feasibility_key
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.candidates import Search
from gpu_scheduler.core.placement.fetching import FetchScore, fetch_score, with_data
from gpu_scheduler.model import Placement

#: The number of devices compared for each device of a gang.
GANG_SAMPLE = 4


def gang(search: Search) -> tuple[DeviceId, ...] | None:
    """The devices of a gang, from the first preferences that fit all of it."""
    count = search.request.count
    if search.request.placement is Placement.SAME_HOST:
        return _same_host(search)
    seen: list[DeviceId] = []
    for devices in fitting_by_preference(search):
        seen.extend(islice(devices, GANG_SAMPLE * count))
        if len(seen) >= count:
            return _arranged(search, list(_by_host(search, seen).values()))
    return None


def _arranged(search: Search, lines: list[list[DeviceId]]) -> tuple[DeviceId, ...]:
    """PACK: devices on few hosts, ideally one that is then full. SPREAD: one per host in turn.

    `lines`: the devices of each host.
    """
    count = search.request.count
    if search.request.placement is Placement.SPREAD:
        longest = max(len(line) for line in lines)
        turns = [line[i] for i in range(longest) for line in lines if i < len(line)]
        return tuple(turns[:count])
    if (one := _filled(search, lines)) is not None:
        return one
    lines.sort(key=len, reverse=True)
    return tuple([device for line in lines for device in line][:count])


def _filled(search: Search, lines: Iterable[list[DeviceId]]) -> tuple[DeviceId, ...] | None:
    """Devices of the host with enough of them and the fewest to spare.

    For a best-effort request, devices of the host with the least loaded devices.
    """
    count, entries = search.request.count, search.inventory.devices
    best_effort = search.request.is_best_effort

    def key(line: list[DeviceId]) -> tuple[int, int]:
        load = sum(len(entries[d].shares) for d in line[:count]) if best_effort else 0
        return load, len(line)

    best = min((line for line in lines if len(line) >= count), key=key, default=None)
    return None if best is None else tuple(best[:count])


def _by_host(search: Search, devices: Iterable[DeviceId]) -> dict[HostId, list[DeviceId]]:
    hosts: dict[HostId, list[DeviceId]] = {}
    for device in devices:
        hosts.setdefault(search.inventory.devices[device].host, []).append(device)
    return hosts


def fitting_by_preference(search: Search) -> Iterator[Iterator[DeviceId]]:
    """The devices that fit, preference by preference: warm ones first, evictions last."""
    warm, request = search.warm_indexes(), search.request
    for groups in search.inventory.index.ranked(request):
        cold = search.of_groups(groups)
        if request.data_sets:
            cold = chain(with_data(search, groups), cold)
        if not warm and not groups[-1].loaded:
            yield _each_once(cold) if request.data_sets else cold
            continue
        known = [one for index in warm for one in search.same_rank(index, groups[0])]
        hot = search.of_groups(known)
        if groups[-1].loaded:
            cold = chain(search.of_groups(search.keeping(groups)), cold)
        yield _each_once(chain(islice(hot, request.count), cold))


def _each_once(devices: Iterable[DeviceId]) -> Iterator[DeviceId]:
    seen: dict[DeviceId, None] = {}
    for device in devices:
        if device not in seen:
            seen[device] = None
            yield device


# ---------------------------------------------------------------------- one host


def _same_host(search: Search) -> tuple[DeviceId, ...] | None:
    """Devices on one host; after a miss only hosts that were freed since are searched."""
    request, inventory, attempt = search
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
        found = _on_hosts(search, _freed_since(inventory, since))
    else:
        found = _on_any_host(search)
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


def _on_hosts(search: Search, hosts: Iterable[HostId]) -> tuple[DeviceId, ...] | None:
    """Devices on one of these hosts: by preferences, then the fewest to spare."""
    request, inventory, _ = search
    best: tuple[FetchScore, int] | None = None
    chosen: tuple[DeviceId, ...] | None = None
    for host in hosts:
        ranked = sorted(
            (fetch_score(search, device), number, device)
            for number, device in enumerate(inventory.hosts[host].devices)
            if search.fits(device)
        )
        if len(ranked) >= request.count:
            one = (ranked[request.count - 1][0], len(ranked))
            if best is None or one < best:
                best, chosen = one, tuple(device for *_, device in ranked[: request.count])
    return chosen


def _on_any_host(search: Search) -> tuple[DeviceId, ...] | None:
    count = search.request.count
    hosts: dict[HostId, list[DeviceId]] = {}
    look = GANG_SAMPLE * count
    for devices in fitting_by_preference(search):
        for device in devices:
            look -= 1
            line = hosts.setdefault(search.inventory.devices[device].host, [])
            line.append(device)
            if look < 0 and len(line) >= count:
                return tuple(line)
            if look == 0 and (found := _filled(search, hosts.values())):
                return found
        if found := _filled(search, hosts.values()):
            return found
    return None
