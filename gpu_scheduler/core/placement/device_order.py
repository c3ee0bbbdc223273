"""The cyclic order of the available devices: by host, then by index."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from corekit.ids import DeviceId
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.fits import unavailable_reason

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
