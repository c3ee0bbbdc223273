"""Devices to reserve for the head of the queue once it was overtaken too often."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from corekit.ids import DeviceId
from gpu_scheduler.core.inventory.devices import DeviceState, is_feasible, unavailable_reason
from gpu_scheduler.core.inventory.inventory import HostEntry, Inventory
from gpu_scheduler.model import Placement, Request

#: The most candidates that are compared: allocated devices, or hosts with enough devices.
RESERVE_SAMPLE_MAX = 64


def reservable_for_head(request: Request, inventory: Inventory) -> tuple[DeviceId, ...]:
    """The available devices that are nearest to being free for the request.

    Empty when too few suitable devices are up, healthy and not drained.
    """
    if request.count > 1 and request.placement is Placement.SAME_HOST:
        return _reservable_on_one_host(request, inventory)
    groups = [group for groups in inventory.index.ranked(request) for group in groups]
    candidates = [iter(row.freest(0)) for group in groups for row in group.rows.values()]
    allocated = (
        device for group in groups for device in (*group.reserved_devices(), *group.exclusive)
    )

    def distance(device: DeviceId) -> tuple[bool, int, int]:
        return _distance(inventory.state_of(device))

    candidates.append(iter(sorted(islice(allocated, RESERVE_SAMPLE_MAX), key=distance)))
    nearest = tuple(islice(merge(*candidates, key=distance), request.count))
    return nearest if len(nearest) == request.count else ()


def _reservable_on_one_host(request: Request, inventory: Inventory) -> tuple[DeviceId, ...]:
    """Devices on one host: among a sample of hosts with enough, those nearest to being free."""
    hosts = (list(_usable(request, inventory, host)) for host in inventory.hosts.values())
    enough = islice(
        (devices for devices in hosts if len(devices) >= request.count), RESERVE_SAMPLE_MAX
    )
    candidates = [sorted(devices)[: request.count] for devices in enough]
    return tuple(
        device for _, device in min(candidates, key=lambda devices: devices[-1][0], default=[])
    )


def _usable(
    request: Request, inventory: Inventory, host: HostEntry
) -> Iterator[tuple[tuple[bool, int, int], DeviceId]]:
    for device in host.devices:
        device_state = inventory.state_of(device)
        available = unavailable_reason(device_state) is None
        if available and is_feasible(request, device_state.device_class):
            yield _distance(device_state), device


def _distance(device_state: DeviceState) -> tuple[bool, int, int]:
    return (device_state.exclusive, -device_state.free_mib, -device_state.free_permille)
