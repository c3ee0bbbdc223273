"""What all known devices could ever hold, whatever is lent, silent, drained or bad available_cache.

Known: registered and not forgotten, and declared. Answers are remembered until the known changes;
and of those that are up and healthy available_cache (`available_mib`) until that does.
"""

from __future__ import annotations

from collections.abc import Iterator

from corekit.values import replace
from gpu_scheduler.core.inventory.index import feasibility_key
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.fits import (
    DeviceClass,
    device_class_of,
    is_feasible,
    permanent_mismatch,
    unavailable_reason,
)
from gpu_scheduler.model import HostState, NoFit, Placement, Request, Shortage

#: Reasons that no waiting cures, as `permanent_mismatch` tells them: the later, the closer to a fit.
_REASONS = (
    NoFit.KIND,
    NoFit.MODEL,
    NoFit.MIDDLEWARE,
    NoFit.ADVISORY,
    NoFit.DRIVER,
    NoFit.RUNTIME,
    NoFit.TOO_LARGE,
    NoFit.MEMORY,
)


def impossible(request: Request, inventory: Inventory) -> bool:
    """True when no known device, or not enough of them, could ever hold the request."""
    if request.count == 1 and inventory.index.ranked(request):
        return False
    return feasible_devices(request, inventory) < request.count


def feasible_devices(request: Request, inventory: Inventory) -> int:
    """How many known devices could ever serve `request` together, up to what it needs and more.

    For SAME_HOST the most that one host has; declared devices may all be on one host.
    """
    on_one = request.count > 1 and request.placement is Placement.SAME_HOST
    question = ("devices_ever", on_one, feasibility_key(request))
    if question not in inventory.ever:
        ever = _feasible_devices(request, inventory, on_one)
        inventory.remember(inventory.ever, question, ever)
    devices: int = inventory.ever[question]
    return devices


def _feasible_devices(request: Request, inventory: Inventory, on_one: bool) -> int:
    if on_one:
        return max(sum(is_feasible(request, m) for m in ms) for ms in _makes_by_host(inventory))
    declared = sum(
        is_feasible(request, device_class) for device_class in inventory.declared_makes()
    )
    groups = (group for groups in inventory.index.ranked(request) for group in groups)
    return declared + sum(len(group.devices) for group in groups)


def available_mib(request: Request, inventory: Inventory) -> int:
    """The most memory that as many devices as it needs have, which are up and healthy.

    Whatever is lent of them, and whatever memory it asks; −1 = there are not enough of them.
    """
    on_one = request.count > 1 and request.placement is Placement.SAME_HOST
    question = (request.count, on_one, feasibility_key(request, memory_mib=0))
    if question not in inventory.available_cache:
        anything = replace(request, memory_mib=0)
        hosts = _up_by_host(anything, inventory) if on_one else [_up(anything, inventory)]
        together = (sorted(sizes, reverse=True) for sizes in hosts if len(sizes) >= request.count)
        max_mib = max((sizes[request.count - 1] for sizes in together), default=-1)
        inventory.remember(inventory.available_cache, question, max_mib)
    return inventory.available_cache[question]


def _up(request: Request, inventory: Inventory) -> list[int]:
    """Memory of the devices for it, as many of each device_class as count."""
    groups = (group for groups in inventory.index.ranked(request) for group in groups)
    up = (
        (g.device_class.memory_mib, len(g.devices) - sum(map(len, g.unavailable_reason.values())))
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
                if unavailable_reason(s) is None and is_feasible(request, s)
            ]


def _makes_by_host(inventory: Inventory) -> Iterator[list[DeviceClass]]:
    """Of a host that is new, and of each that is known, with what may still tx up on it.

    Declared devices are those of hosts with a gateway: on others they permanent_mismatch are.
    """
    declared = list(inventory.declared_makes())
    yield declared
    for host in inventory.hosts.values():
        gateway, offered = host.gateway is not None, host.middlewares
        classes = [
            device_class_of(entry.device, gateway=gateway, middlewares=offered)
            for entry in host.devices.values()
        ]
        yield [*classes, *declared] if gateway else classes


# ---------------------------------------------------------------------- the largest fit


def largest(request: Request, inventory: Inventory) -> Request | None:
    """The largest request of this sort that all known devices together can hold; None = nothing.

    What is short is taken back, nothing else: words that no device has, then the count as far as
    the memory stays, then the memory. It would be granted if nothing were lent.
    """
    question = ("largest", request.count, request.placement, feasibility_key(request))
    if question not in inventory.ever:
        inventory.remember(inventory.ever, question, _largest(request, inventory))
    found: Request | None = inventory.ever[question]
    if found is None:
        return None
    return replace(
        request,
        count=found.count,
        memory_mib=found.memory_mib,
        kinds=found.kinds,
        models=found.models,
        middleware=found.middleware,
        advisory=found.advisory,
        min_driver=found.min_driver,
        min_runtime=found.min_runtime,
        memory_max_mib=found.memory_max_mib,
    )


def _largest(request: Request, inventory: Inventory) -> Request | None:
    if not inventory.index.groups and next(inventory.declared_makes(), None) is None:
        return None
    relaxed = _relaxed(request, inventory)
    choices = [_most(relaxed, sizes) for sizes in _sizes(relaxed, inventory)]
    count, memory_mib = max(choices, key=lambda choice: _rank(relaxed, *choice))
    return replace(relaxed, count=count, memory_mib=memory_mib)


def _relaxed(request: Request, inventory: Inventory) -> Request:
    """Without the words that no known device can serve; its memory stands aside."""
    relaxed = request
    while (closest := _closest(relaxed, inventory)) not in (None, NoFit.MEMORY):
        match closest:
            case NoFit.KIND:
                relaxed = replace(relaxed, kinds=())
            case NoFit.MODEL:
                relaxed = replace(relaxed, models=())
            case NoFit.MIDDLEWARE:
                relaxed = replace(relaxed, middleware=None)
            case NoFit.ADVISORY:
                relaxed = replace(relaxed, advisory=True)
            case NoFit.DRIVER:
                relaxed = replace(relaxed, min_driver=None)
            case NoFit.RUNTIME:
                relaxed = replace(relaxed, min_runtime=None)
            case _:
                relaxed = replace(relaxed, memory_max_mib=None)
    return relaxed


def _closest(request: Request, inventory: Inventory) -> NoFit | None:
    """Why the classes that come closest do not serve it; None when one does."""
    classes = (*inventory.index.groups, *inventory.declared_makes())
    reasons = [permanent_mismatch(request, device_class) for device_class in classes]
    return None if None in reasons else max(reasons, key=_REASONS.index)


def _sizes(request: Request, inventory: Inventory) -> Iterator[list[int]]:
    """Memory of the devices that may serve it together, the largest first: one list per choice."""
    anything = replace(request, memory_mib=0)
    if request.placement is Placement.SAME_HOST:
        for classes in _makes_by_host(inventory):
            sizes = (
                device_class.memory_mib
                for device_class in classes
                if is_feasible(anything, device_class)
            )
            yield sorted(sizes, reverse=True)
        return
    declared = [m.memory_mib for m in inventory.declared_makes() if is_feasible(anything, m)]
    groups = (group for groups in inventory.index.ranked(anything) for group in groups)
    known = [g.device_class.memory_mib for g in groups for _ in range(len(g.devices))]
    yield sorted([*known, *declared], reverse=True)


def _most(request: Request, sizes: list[int]) -> tuple[int, int]:
    """How many of these devices, with how much memory each."""
    sizes = sizes[: request.count]
    enough = sum(size >= request.memory_mib for size in sizes)
    if enough:
        return enough, sizes[enough - 1]
    whole = ((count * size, count, size) for count, size in enumerate(sizes, 1))
    _, count, size = max(whole, default=(0, 0, 0))
    return count, size


def _rank(request: Request, count: int, memory_mib: int) -> tuple[bool, int, int, int]:
    """Enough memory for fewer devices is more than less memory for all of them."""
    enough = count > 0 and memory_mib >= request.memory_mib
    return (enough, count if enough else count * memory_mib, memory_mib, count)


# ---------------------------------------------------------------------- what is short


def shortage(request: Request, inventory: Inventory) -> Shortage | None:
    """What an impossible request wants too much of; None for a possible one."""
    classes = (*inventory.index.groups, *inventory.declared_makes())
    if not classes:
        return Shortage(what=NoFit.COUNT, wanted=str(request.count), most="0")
    ever = feasible_devices(request, inventory)
    if ever >= request.count:
        return None
    closest = _closest(request, inventory)
    if closest is None:
        alone = replace(request, placement=Placement.PACK)
        on_one = feasible_devices(alone, inventory) >= request.count
        what = NoFit.SAME_HOST if on_one else NoFit.COUNT
        return Shortage(what=what, wanted=str(request.count), most=str(ever))
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
            return f"driver {request.min_driver}", _dotted(newest)
        case NoFit.RUNTIME:
            newest = max(device_class.runtime for device_class in classes)
            return f"runtime {request.min_runtime}", _dotted(newest)
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


#: Models told in a sentence.
_NAMES_MAX = 8


def _listed(names: Iterator[str]) -> str:
    known = list(dict.fromkeys(names))
    more = len(known) - _NAMES_MAX
    return "/".join(known[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version)) or "not known"
