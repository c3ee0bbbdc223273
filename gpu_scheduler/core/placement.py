"""Which devices serve a request: best fit over memory and compute, by preference and placement.

All devices of a request or none. A single device costs one look per family of shapes; single
devices are looked at only for warm keys and for requests of more than one.
"""

from __future__ import annotations

from collections.abc import Iterable

from corekit.ids import DeviceId, HostId
from gpu_scheduler.core.fits import COMPUTE_PCT_MAX, Shape, fits, fits_ever
from gpu_scheduler.core.inventory import Inventory
from gpu_scheduler.model import Placement, Request, Sharing

#: Rank of the kind, rank of the model, then how good the fit is; lower is better.
Score = tuple[int, int, float, int]


def score(request: Request, shape: Shape) -> Score:
    """PACK prefers the tightest fit, SPREAD the loosest; preferences outweigh both."""
    kind = request.kinds.index(shape.kind) if request.kinds else 0
    model = request.models.index(shape.model) if request.models else 0
    left = leftover(request, shape)
    return (kind, model, -left if request.placement is Placement.SPREAD else left, shape.memory_mib)


def leftover(request: Request, shape: Shape) -> float:
    """What would stay free: memory and compute, each as a part of the device; 0 = fills it.

    For an exclusive request, what it would waste: free memory in MiB that it did not ask for.
    """
    if request.sharing is Sharing.EXCLUSIVE:
        return float(shape.memory_mib - request.memory_mib)
    memory = (shape.free_mib - request.memory_mib) / max(1, shape.memory_mib)
    return memory + (shape.free_pct - request.compute_guarantee_pct) / COMPUTE_PCT_MAX


def place(
    request: Request, inventory: Inventory, attempt: str | None = None
) -> tuple[DeviceId, ...] | None:
    """The devices that serve `request` best right now; None when they do not all fit."""
    if request.count > 1:
        return _gang(request, inventory, attempt)
    device = _warm(request, inventory, attempt) or _one(request, inventory, attempt)
    return None if device is None else (device,)


def _one(request: Request, inventory: Inventory, attempt: str | None) -> DeviceId | None:
    loosest = request.placement is Placement.SPREAD
    shapes = inventory.candidates(request.memory_mib, loosest=loosest)
    fitting = [shape for shape in shapes if fits(request, shape, attempt) is None]
    if not fitting:
        return None
    best = min(fitting, key=lambda shape: score(request, shape))
    return next(iter(inventory.shapes[best]))


def _warm(request: Request, inventory: Inventory, attempt: str | None) -> DeviceId | None:
    """The best of the devices that hold the warm key."""
    if request.warm_key is None:
        return None
    shapes = ((d, inventory.shape_of(d)) for d in inventory.warm(request.warm_key))
    fitting = [(d, shape) for d, shape in shapes if fits(request, shape, attempt) is None]
    return min(fitting, key=lambda pair: score(request, pair[1]))[0] if fitting else None


def _gang(
    request: Request, inventory: Inventory, attempt: str | None
) -> tuple[DeviceId, ...] | None:
    fitting = [shape for shape in inventory.shapes if fits(request, shape, attempt) is None]
    ranked = _ranked(request, inventory, fitting)
    if len(ranked) < request.count:
        return None
    hosts = _by_host(inventory, ranked)
    match request.placement:
        case Placement.SAME_HOST:
            return _same_host(request, inventory, hosts)
        case Placement.SPREAD:
            return _round_robin(list(hosts.values()), request.count)
        case Placement.PACK:
            fullest = sorted(hosts.values(), key=lambda devices: -min(len(devices), request.count))
            return tuple([device for devices in fullest for device in devices][: request.count])


def _ranked(request: Request, inventory: Inventory, fitting: list[Shape]) -> list[DeviceId]:
    """All fitting devices, best first: warm ones before the others."""
    warm = dict.fromkeys(inventory.warm(request.warm_key)) if request.warm_key else {}
    shapes = sorted(fitting, key=lambda shape: score(request, shape))
    devices = [device for shape in shapes for device in inventory.shapes[shape]]
    return sorted(devices, key=lambda device: device not in warm)  # stable: order within stays


def _by_host(inventory: Inventory, devices: Iterable[DeviceId]) -> dict[HostId, list[DeviceId]]:
    hosts: dict[HostId, list[DeviceId]] = {}
    for device in devices:
        hosts.setdefault(inventory.devices[device].host, []).append(device)
    return hosts


def _same_host(
    request: Request, inventory: Inventory, hosts: dict[HostId, list[DeviceId]]
) -> tuple[DeviceId, ...] | None:
    enough = [
        devices[: request.count] for devices in hosts.values() if len(devices) >= request.count
    ]
    if not enough:
        return None
    return tuple(min(enough, key=lambda ds: [score(request, inventory.shape_of(d)) for d in ds]))


def _round_robin(lines: list[list[DeviceId]], count: int) -> tuple[DeviceId, ...]:
    """One of each host in turn."""
    longest = max(len(line) for line in lines)
    turns = [line[i] for i in range(longest) for line in lines if i < len(line)]
    return tuple(turns[:count])


def devices_ever(request: Request, inventory: Inventory) -> int:
    """How many known devices could ever serve `request` together, up to what it needs and more.

    Known: registered and not forgotten (silent, drained and unhealthy ones too), and declared. For
    SAME_HOST the most that one host has; declared devices may all be on one host.
    """
    declared = sum(fits_ever(request, shape) for shape in inventory.declared_shapes())
    if request.placement is not Placement.SAME_HOST or request.count == 1:
        families = inventory.families.items()
        return declared + sum(f.devices for name, f in families if fits_ever(request, name))
    shapes = [shape for shape in inventory.shapes if fits_ever(request, shape)]
    devices = [device for shape in shapes for device in inventory.shapes[shape]]
    hosts = _by_host(inventory, devices)
    return declared + max((len(theirs) for theirs in hosts.values()), default=0)


def keepable(request: Request, inventory: Inventory) -> tuple[DeviceId, ...]:
    """Devices to keep for a head that was passed too often: those nearest to being free for it.

    Usable ones only (up, healthy, not drained); empty when there are not enough of them.
    """
    usable = [
        shape for shape in inventory.shapes
        if fits(request, shape.emptied()._replace(
            host_state=shape.host_state, health=shape.health)) is None
    ]  # fmt: skip
    nearest = sorted(usable, key=lambda s: (s.exclusive, -s.free_mib, -s.free_pct))
    devices = [device for shape in nearest for device in inventory.shapes[shape]]
    if request.placement is Placement.SAME_HOST:
        hosts = _by_host(inventory, devices)
        devices = next((ds for ds in hosts.values() if len(ds) >= request.count), [])
    return tuple(devices[: request.count]) if len(devices) >= request.count else ()
