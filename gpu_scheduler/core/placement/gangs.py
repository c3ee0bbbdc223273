"""Devices for a request that needs several: all of them, or none.

A gang takes devices of the first preferences that fit it, row by row, and chooses among four times
as many as it needs: PACK few hosts, SPREAD one device per host in turn, SAME_HOST one host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice

from corekit.ids import DeviceId, HostId
from gpu_scheduler.core.inventory.devices import fits
from gpu_scheduler.core.inventory.index import feasibility_key
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.candidates import (
    Score,
    of_group,
    same_rank,
    score,
    warm_indexes,
)
from gpu_scheduler.model import Placement, Request, Sharing

#: The number of devices compared for each device of a gang.
GANG_SAMPLE = 4


def gang(
    request: Request, inventory: Inventory, attempt: str | None
) -> tuple[DeviceId, ...] | None:
    """The devices of a gang, from the first preferences that fit all of it."""
    if request.placement is Placement.SAME_HOST:
        return _same_host(request, inventory, attempt)
    seen: list[DeviceId] = []
    for devices in fitting_by_preference(request, inventory, attempt):
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
    best_effort, entries = request.is_best_effort, inventory.devices

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


def fitting_by_preference(
    request: Request, inventory: Inventory, attempt: str | None
) -> Iterator[Iterator[DeviceId]]:
    """The devices that fit, preference by preference: warm ones first, evictions last."""
    warm = warm_indexes(request, inventory)
    for groups in inventory.index.ranked(request):
        everything = (d for group in groups for d in of_group(request, inventory, group, attempt))
        cold: Iterator[DeviceId] = everything
        if not warm and not groups[-1].loaded:
            yield cold
            continue
        known = [one for index in warm for one in same_rank(request, index, groups[0])]
        if groups[-1].loaded and request.sharing is not Sharing.EXCLUSIVE:
            clear = (group for group in groups if not group.loaded)
            keeping = (*clear, *same_rank(request, inventory.residents.beside, groups[0]))
            here = (d for group in keeping for d in of_group(request, inventory, group, attempt))
            cold = chain(here, cold)
        hot = (d for group in known for d in of_group(request, inventory, group, attempt))
        yield _each_once(chain(islice(hot, request.count), cold))


def _each_once(devices: Iterable[DeviceId]) -> Iterator[DeviceId]:
    seen: dict[DeviceId, None] = {}
    for device in devices:
        if device not in seen:
            seen[device] = None
            yield device


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
            (score(request, inventory, device), number, device)
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
    hosts: dict[HostId, list[DeviceId]] = {}
    look = GANG_SAMPLE * request.count
    for devices in fitting_by_preference(request, inventory, attempt):
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
