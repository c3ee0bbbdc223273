"""The residents that a grant uses, and those that it evicts: the cheapest to load again first.

The memory of a resident that a lease uses counts inside its share. A share with a guarantee of
memory evicts until it fits beside what stays; an exclusive one evicts all others; a share without a
guarantee evicts nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from corekit.ids import DeviceId
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.data_sets import loaded_name
from gpu_scheduler.model import Request, Resident, Sharing
from gpu_scheduler.warm import workload_key

#: The middleware whose workers can stay without a lease; None = it is not named.
_WITH_WARM_WORKERS = (None, "builtin")


class Taken(NamedTuple):
    """The residents of one device that a grant takes out of the books."""

    used: Resident | None = None  #: of the request's own workload
    evicted: tuple[Resident, ...] = ()

    @property
    def loading_s(self) -> float:
        """The cost of the evictions: the time to load all of them again."""
        return sum(one.loading_s for one in self.evicted)


NOTHING_TAKEN = Taken()

_key = lru_cache(maxsize=4096)(workload_key)


def resident_key(request: Request) -> str | None:
    """The published key of the residents that the request may use; None = it uses none."""
    if request.workload is None or request.middleware not in _WITH_WARM_WORKERS:
        return None
    return _key(request.tenant, loaded_name(request.workload, request.data_sets))


def taken(request: Request, inventory: Inventory, device: DeviceId) -> Taken:
    """The residents that a grant of the request takes on a device that it fits."""
    residents = inventory.residents.of(device)
    if not residents:
        return NOTHING_TAKEN
    used = usable(request, inventory, device)
    if request.sharing is Sharing.EXCLUSIVE:
        return Taken(used, _cheapest_first(inventory, device, used))
    device_state = inventory.state_of(device)
    asked_mib = request.memory_on_mib(device_state.memory_mib)
    room_mib = device_state.free_mib - asked_mib
    held_mib = inventory.residents.memory_mib(device) - (0 if used is None else used.memory_mib)
    if not asked_mib or held_mib <= room_mib:
        return Taken(used)
    evicted: list[Resident] = []
    for one in _cheapest_first(inventory, device, used):
        if held_mib <= room_mib:
            break
        evicted.append(one)
        held_mib -= one.memory_mib
    return Taken(used, tuple(evicted))


def _cheapest_first(
    inventory: Inventory, device: DeviceId, but: Resident | None
) -> tuple[Resident, ...]:
    """The other residents, in the order in which they are evicted: those of floors last."""
    residents, kept = inventory.residents.of(device), inventory.residents.kept.get(device, ())
    others = [one for one in residents.values() if one is not but]

    def cost(one: Resident) -> tuple[bool, float, int, str]:
        return one.workload in kept, one.loading_s, -one.memory_mib, one.id

    return tuple(sorted(others, key=cost))


def usable(request: Request, inventory: Inventory, device: DeviceId) -> Resident | None:
    """The resident of the request's workload that its share has room for; of several, the one that
    takes longest to load. A host starts a new worker in a share that is smaller."""
    key = resident_key(request)
    own = [one for one in inventory.residents.of(device).values() if one.workload == key]
    if not own:
        return None
    whole_mib = inventory.state_of(device).memory_mib
    is_exclusive = request.sharing is Sharing.EXCLUSIVE
    share_mib = whole_mib if is_exclusive else request.memory_on_mib(whole_mib)
    fitting = [one for one in own if one.memory_mib <= share_mib]
    return max(fitting, key=lambda one: (one.loading_s, one.id), default=None)
