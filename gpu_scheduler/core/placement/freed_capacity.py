"""Where capacity came free: shapes of devices that may serve whom they could not before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from corekit.ids import DeviceId
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.fits import Shape


@dataclass(slots=True)
class Openings:
    """Gathered until nobody waits whom one of them serves."""

    shapes: dict[Shape, list[DeviceId]] = field(default_factory=dict)  #: devices that had it

    def take_in(self, inventory: Inventory) -> None:
        """What became looser since; shapes that their devices lost meanwhile are left out."""
        known = [device for device in inventory.loosened if device in inventory.devices]
        inventory.loosened.clear()
        self.add(inventory, known)
        for shape, devices in list(self.shapes.items()):
            while devices and not _has(inventory, devices[-1], shape):
                devices.pop()
            if not devices:
                del self.shapes[shape]

    def add(self, inventory: Inventory, devices: Iterable[DeviceId]) -> None:
        """The rest of what was granted may serve the next one, too."""
        for device in devices:
            self.shapes.setdefault(inventory.shape_of(device), []).append(device)


def _has(inventory: Inventory, device: DeviceId, shape: Shape) -> bool:
    return device in inventory.devices and inventory.shape_of(device) == shape
