"""Feasibility of requests on all known devices, even if allocated, silent, drained or bad now.

Known devices are registered and not forgotten, or declared. Results are cached until a known device
changes; results about available devices (`available_mib`) until the availability changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from corekit.suggest import did_you_mean
from corekit.values import replace
from gpu_scheduler.constraints import dotted
from gpu_scheduler.core.inventory.devices import (
    DeviceClass,
    is_feasible,
    permanent_mismatch,
    unavailable_reason,
    unmet_constraint,
    versions_by_name,
)
from gpu_scheduler.core.inventory.index import feasibility_key
from gpu_scheduler.core.inventory.inventory import HostEntry, Inventory
from gpu_scheduler.data_names import Offered, first_missing, name_of, pinned, short
from gpu_scheduler.model import HostState, Placement, Request
from gpu_scheduler.verdicts import NoFit, Shortage

#: The request without the requirement of a permanent mismatch; a later one is closer to a fit.
_WITHOUT: Mapping[NoFit, Callable[[Request], Request]] = {
    NoFit.KIND: lambda request: replace(request, kinds=()),
    NoFit.MODEL: lambda request: replace(request, models=()),
    NoFit.MIDDLEWARE: lambda request: replace(request, middleware=None),
    NoFit.ADVISORY: lambda request: replace(request, advisory=True),
    NoFit.DRIVER: lambda request: replace(request, min_driver=None),
    NoFit.RUNTIME: lambda request: replace(request, min_runtime=None),
    NoFit.VERSION: lambda request: replace(request, requires=()),
    NoFit.DATA: lambda request: replace(request, data=()),
    NoFit.PROGRAM: lambda request: replace(request, programs=()),
    NoFit.DATA_SPACE: lambda request: replace(request, data_sets=()),
    NoFit.TOO_LARGE: lambda request: replace(request, memory_max_mib=None),
}
_MISMATCHES = (*_WITHOUT, NoFit.MEMORY)
#: Fields that the largest fit reduces.
_REDUCED = (
    *("count", "memory_mib", "memory_pct", "kinds", "models", "middleware", "advisory"),
    *("min_driver", "min_runtime", "requires", "data", "programs", "data_sets", "memory_max_mib"),
)


def is_infeasible(request: Request, inventory: Inventory) -> bool:
    """True when too few known devices could ever serve the request."""
    if request.count == 1 and inventory.index.ranked(request):
        return False
    return feasible_devices(request, inventory) < request.count


def feasible_devices(request: Request, inventory: Inventory) -> int:
    """The number of known devices that could ever serve the request together.

    For SAME_HOST, the most on one host; all declared devices may be on one host, except those of
    pools, whose hosts are stated.
    """
    on_one = request.count > 1 and request.placement is Placement.SAME_HOST
    cache_key = (on_one, feasibility_key(request))
    if cache_key not in inventory.feasible_cache:
        feasible = _feasible_devices(request, inventory, on_one)
        inventory.cache(inventory.feasible_cache, cache_key, feasible)
    return inventory.feasible_cache[cache_key]


def _feasible_devices(request: Request, inventory: Inventory, on_one: bool) -> int:
    if on_one:
        return max(sum(is_feasible(request, m) for m in ms) for ms in _classes_by_host(inventory))
    declared = sum(
        is_feasible(request, device_class) for device_class in inventory.declared_classes()
    )
    groups = (group for groups in inventory.index.ranked(request) for group in groups)
    return declared + sum(len(group.devices) for group in groups)


def available_mib(request: Request, inventory: Inventory) -> int:
    """The most memory for which `request.count` devices that are up and healthy are large enough.

    Ignores allocations and the memory of the request; −1 = too few such devices.
    """
    on_one = request.count > 1 and request.placement is Placement.SAME_HOST
    cache_key = (request.count, on_one, feasibility_key(request, memory_mib=0))
    if cache_key not in inventory.available_cache:
        anything = replace(request, memory_mib=0)
        hosts = _up_by_host(anything, inventory) if on_one else [_up(anything, inventory)]
        together = (sorted(sizes, reverse=True) for sizes in hosts if len(sizes) >= request.count)
        max_mib = max((sizes[request.count - 1] for sizes in together), default=-1)
        inventory.cache(inventory.available_cache, cache_key, max_mib)
    return inventory.available_cache[cache_key]


def _up(request: Request, inventory: Inventory) -> list[int]:
    """Memory of the available devices for the request, at most `count` of each device class."""
    groups = (group for groups in inventory.index.ranked(request) for group in groups)
    up = (
        (g.device_class.memory_mib, len(g.devices) - sum(map(len, g.unavailable.values())))
        for g in groups
    )
    return [memory_mib for memory_mib, n in up for _ in range(min(n, request.count))]


def _up_by_host(request: Request, inventory: Inventory) -> Iterator[list[int]]:
    for host in inventory.hosts.values():
        if host.state is HostState.UP and len(host.devices) >= request.count:
            device_states = map(inventory.state_of, host.devices)
            yield [
                s.memory_mib
                for s in device_states
                if unavailable_reason(s) is None and is_feasible(request, s.device_class)
            ]


def _classes_by_host(inventory: Inventory) -> Iterator[list[DeviceClass]]:
    """Device classes of a new host, and of each known host, with the declared devices.

    Declared devices are on hosts with a gateway. A host of a pool has those of its offer alone.
    """
    declared, *of_pools = inventory.declared_by_host()
    yield declared
    yield from of_pools
    for host in inventory.hosts.values():
        classes = [inventory.state_of(device).device_class for device in host.devices]
        yield classes if host.gateway is None else [*classes, *declared]


# ---------------------------------------------------------------------- the largest fit


def largest(request: Request, inventory: Inventory) -> Request | None:
    """The largest similar request that all known devices could serve; None = no device is known.

    Only requirements that cannot be met are reduced: first those that no device meets, then the
    count while the memory is kept, then the memory. Without live leases it would be granted.
    """
    cache_key = (request.count, request.placement, feasibility_key(request))
    if cache_key not in inventory.largest_cache:
        inventory.cache(inventory.largest_cache, cache_key, _largest(request, inventory))
    found = inventory.largest_cache[cache_key]
    if found is None:
        return None
    return replace(request, **{name: getattr(found, name) for name in _REDUCED})


def _largest(request: Request, inventory: Inventory) -> Request | None:
    if not inventory.index.groups and next(inventory.declared_classes(), None) is None:
        return None
    relaxed = _relaxed(request, inventory)
    choices = [_most(relaxed, sizes) for sizes in _sizes(relaxed, inventory)]
    count, memory_mib = max(choices, key=lambda choice: _rank(relaxed, *choice))
    return replace(relaxed, count=count, memory_mib=memory_mib, memory_pct=0)


def _relaxed(request: Request, inventory: Inventory) -> Request:
    """The request without the requirements that no known device meets; memory is not considered."""
    while (without := _WITHOUT.get(_closest(request, inventory) or NoFit.MEMORY)) is not None:
        request = without(request)
    return request


def _closest(request: Request, inventory: Inventory) -> NoFit | None:
    """The mismatch of the closest device classes; None when one matches."""
    classes = (*inventory.index.classes(), *inventory.declared_classes())
    reasons = [permanent_mismatch(request, device_class) for device_class in classes]
    return None if None in reasons else max(reasons, key=_MISMATCHES.index)


def _sizes(request: Request, inventory: Inventory) -> Iterator[list[int]]:
    """Memory of devices that may serve the request together, largest first; a list per choice."""
    anything = replace(request, memory_mib=0)
    if request.placement is Placement.SAME_HOST:
        for classes in _classes_by_host(inventory):
            sizes = (
                device_class.memory_mib
                for device_class in classes
                if is_feasible(anything, device_class)
            )
            yield sorted(sizes, reverse=True)
        return
    declared = [m.memory_mib for m in inventory.declared_classes() if is_feasible(anything, m)]
    groups = (group for groups in inventory.index.ranked(anything) for group in groups)
    known = [g.device_class.memory_mib for g in groups for _ in range(len(g.devices))]
    yield sorted([*known, *declared], reverse=True)


def _most(request: Request, sizes: list[int]) -> tuple[int, int]:
    sizes = sizes[: request.count]
    enough = sum(size >= request.memory_mib for size in sizes)
    if enough:
        return enough, sizes[enough - 1]
    whole = ((count * size, count, size) for count, size in enumerate(sizes, 1))
    _, count, size = max(whole, default=(0, 0, 0))
    return count, size


def _rank(request: Request, count: int, memory_mib: int) -> tuple[bool, int, int, int]:
    """The rank of a fit: enough memory on fewer devices ranks above less memory on all of them."""
    enough = count > 0 and memory_mib >= request.memory_mib
    return (enough, count if enough else count * memory_mib, memory_mib, count)


# ---------------------------------------------------------------------- what is short


def shortage(request: Request, inventory: Inventory) -> Shortage | None:
    """The unmet requirement of a request; None for a feasible request."""
    classes = (*inventory.index.classes(), *inventory.declared_classes())
    if not classes:
        return Shortage(what=NoFit.COUNT, wanted=str(request.count), most="0")
    feasible = feasible_devices(request, inventory)
    if feasible >= request.count:
        return None
    closest = _closest(request, inventory)
    if closest is None:
        alone = replace(request, placement=Placement.PACK)
        on_one = feasible_devices(alone, inventory) >= request.count
        what = NoFit.SAME_HOST if on_one else NoFit.COUNT
        return Shortage(what=what, wanted=str(request.count), most=str(feasible))
    if closest in (NoFit.DATA, NoFit.PROGRAM):
        return _missing_names(request, inventory, closest)
    wanted, most = _in_words(
        closest, request, [m for m in classes if permanent_mismatch(request, m) is closest]
    )
    return Shortage(what=closest, wanted=wanted, most=most)


def _in_words(what: NoFit, request: Request, classes: list[DeviceClass]) -> tuple[str, str]:
    match what:
        case NoFit.KIND:
            return "/".join(request.kinds), _listed(device_class.kind for device_class in classes)
        case NoFit.MODEL:
            return "/".join(request.models), _listed(device_class.model for device_class in classes)
        case NoFit.MIDDLEWARE:
            offered = (name for device_class in classes for name in device_class.middlewares or ())
            return f"middleware {request.middleware}", _listed(offered) or "none"
        case NoFit.DRIVER:
            newest = max(device_class.driver for device_class in classes)
            return f"driver {request.min_driver}", dotted(newest) or "unknown"
        case NoFit.RUNTIME:
            newest = max(device_class.runtime for device_class in classes)
            return f"runtime {request.min_runtime}", dotted(newest) or "unknown"
        case NoFit.VERSION:
            return _unmet(request, classes)
        case NoFit.DATA_SPACE:
            asked_mib = -(-sum(one.bytes for one in request.data_sets) >> 20)
            space_mib = max(device_class.data_space_mib or 0 for device_class in classes)
            most = f"{space_mib} MiB" if space_mib else "none (`gpud --data-space`)"
            return f"{asked_mib} MiB of space for data", most
        case NoFit.TOO_LARGE:
            least_mib = min(device_class.memory_mib for device_class in classes)
            return f"at most {request.memory_max_mib} MiB", f"{least_mib} MiB"
        case NoFit.MEMORY:
            return (
                f"{request.memory_mib} MiB",
                f"{max(device_class.memory_mib for device_class in classes)} MiB",
            )
        case _:
            return "a gateway", "none"


def _unmet(request: Request, classes: list[DeviceClass]) -> tuple[str, str]:
    """The first constraint that devices do not meet, and the versions that they have."""
    unmet = [unmet_constraint(request, device_class) for device_class in classes]
    first = next(one for one in unmet if one is not None)
    beside = (m for m, one in zip(classes, unmet, strict=True) if one == first)
    found = (dict(versions_by_name(m)).get(first.name) or "unknown" for m in beside)
    return str(first), f"{first.name} {_listed(found)}"


#: The most names listed in a message.
_NAMES_MAX = 8


def _listed(names: Iterator[str]) -> str:
    known = list(dict.fromkeys(names))
    more = len(known) - _NAMES_MAX
    return "/".join(known[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


# ---------------------------------------------------------------------- names that no host has

#: The most hosts, and the most names of one host, in a message.
_HOSTS_MAX, _HOST_NAMES_MAX = 3, 8


class _NamedHost(NamedTuple):
    """One host that has a fitting device, but not all names."""

    host: HostEntry
    has: tuple[str, ...]  #: `data proteins`
    lacks: tuple[str, ...]
    other: tuple[str, ...]  #: `proteins@sha256:…`: its content under a name that it lacks


def _missing_names(request: Request, inventory: Inventory, what: NoFit) -> Shortage:
    """The shortage of a request whose closest devices mismatch as `what`: DATA or PROGRAM."""
    hosts = [
        _named_host(request, host)
        for host in inventory.hosts.values()
        if any(
            permanent_mismatch(request, inventory.state_of(device).device_class) is what
            for device in host.devices
        )
    ]
    hosts.sort(key=lambda one: (len(one.lacks), one.host.host))
    named = "; ".join(_named_text(one) for one in hosts[:_HOSTS_MAX])
    more = len(hosts) - _HOSTS_MAX
    most = named + (f" and {more} more hosts" if more > 0 else "") + _hint(request, inventory, what)
    return Shortage(what=what, wanted=" and ".join(hosts[0].lacks), most=most)


def _named_host(request: Request, host: HostEntry) -> _NamedHost:
    asked = [("data", one, host.data) for one in request.data]
    asked += [("program", one, host.programs) for one in request.programs]
    lacks = [(kind, one) for kind, one, there in asked if first_missing((one,), there) is not None]
    has = [(kind, one) for kind, one, _ in asked if (kind, one) not in lacks]
    other = [
        pinned(name, digest)
        for kind, one, there in asked
        if (kind, one) in lacks
        for name, digest in there
        if name == name_of(one)
    ]
    return _NamedHost(
        host,
        has=tuple(f"{kind} {short(one)}" for kind, one in has),
        lacks=tuple(f"{kind} {short(one)}" for kind, one in lacks),
        other=tuple(map(short, other)),
    )


def _named_text(one: _NamedHost) -> str:
    """`host gpu-b has data blastdb, lacks program blast`; with other content, also that content."""
    has = f"has {', '.join(one.has)}, " if one.has else ""
    other = f" (it has {', '.join(one.other)})" if one.other else ""
    return f"host {one.host.host} {has}lacks {', '.join(one.lacks)}{other}"


def _hint(request: Request, inventory: Inventory, what: NoFit) -> str:
    """A name close to the missing one, else the names that hosts have."""
    asked = request.data if what is NoFit.DATA else request.programs
    known = sorted({name for offered in _offers(inventory, what) for name, _ in offered})
    unknown = next((name for name in map(name_of, asked) if name not in known), None)
    if unknown is None:
        return ""
    listed = ", ".join(known[:_HOST_NAMES_MAX]) or "none"
    word = "data sets" if what is NoFit.DATA else "programs"
    hint = did_you_mean(unknown, known, otherwise=f"; the {word} of all hosts: {listed}")
    return f" ({hint.removeprefix('; ')})"


def _offers(inventory: Inventory, what: NoFit) -> Iterator[Offered]:
    for host in inventory.hosts.values():
        yield host.data if what is NoFit.DATA else host.programs
