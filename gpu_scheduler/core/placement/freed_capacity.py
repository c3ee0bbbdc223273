"""Freed capacity: device states that may fit requests that did not fit before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from corekit.ids import DeviceId
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.fits import DeviceState


@dataclass(slots=True)
class FreedCapacity:
    """Freed device states, each kept until no waiting request fits it."""

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
