"""Available devices in their cyclic order (by host, then by index), and freed capacity."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from corekit.ids import DeviceId
from gpu_scheduler.core.inventory.devices import DeviceState, unavailable_reason
from gpu_scheduler.core.inventory.inventory import Inventory

#: The rank of a device in the order.
Rank = tuple[str, int, str]


def rank_of(inventory: Inventory, device: DeviceId) -> Rank:
    """The rank of a known device."""
    entry = inventory.devices[device]
    return entry.host, entry.device.index, device


class DeviceOrder:
    """The sorted available devices; sorted again after the availability has changed."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._ranks: list[Rank] = []

    def ranks(self, inventory: Inventory) -> list[Rank]:
        """The ranks of all available devices, in order."""
        if self._version != inventory.availability_version:
            self._version = inventory.availability_version
            self._ranks = sorted(
                rank_of(inventory, device)
                for device in inventory.devices
                if unavailable_reason(inventory.state_of(device)) is None
            )
        return self._ranks

    def after(self, inventory: Inventory, rank: Rank | None) -> Iterator[DeviceId]:
        """Every available device once, the one after `rank` first; from the start without one."""
        ranks = self.ranks(inventory)
        first = 0 if rank is None else bisect_right(ranks, rank)
        for number in range(len(ranks)):
            yield DeviceId(ranks[(first + number) % len(ranks)][2])


@dataclass(slots=True)
class FreedCapacity:
    """Device states that may fit requests that did not fit before.

    Each stays until no waiting request fits it.
    """

    #: State → devices that had it.
    device_states: dict[DeviceState, list[DeviceId]] = field(default_factory=dict)

    def take_in(self, inventory: Inventory) -> None:
        """Add the devices freed since the last call; remove states that no device has any more."""
        known = [device for device in inventory.freed if device in inventory.devices]
        inventory.freed.clear()
        self.add(inventory, known)
        for device_state, devices in list(self.device_states.items()):
            while devices and not _has(inventory, devices[-1], device_state):
                devices.pop()
            if not devices:
                del self.device_states[device_state]

    def add(self, inventory: Inventory, devices: Iterable[DeviceId]) -> None:
        """Add the remaining capacity of granted devices: it may serve the next request."""
        for device in devices:
            self.device_states.setdefault(inventory.state_of(device), []).append(device)


def _has(inventory: Inventory, device: DeviceId, device_state: DeviceState) -> bool:
    return device in inventory.devices and inventory.state_of(device) == device_state
