"""The workers that a simulated host keeps loaded without a lease, as gpud does (ADR 58)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from corekit.ids import DeviceId
from gpu_scheduler.floors import HostFloor
from gpu_scheduler.model import DeviceResidents, Resident
from gpu_scheduler.protocol.host import Install
from gpu_scheduler.warm import workload_key

#: A worker, and its device.
Worker = tuple[DeviceId, Resident]
#: The memory of a device beside its leases and workers; less than none: those have too much.
Room = Callable[[DeviceId], int]


class SimFloors:
    """A load takes no time; a lease ends the workers that it uses."""

    def __init__(self) -> None:
        self.floors: tuple[HostFloor, ...] = ()
        self.workers: dict[str, Worker] = {}  #: by id
        self._evicted: list[DeviceResidents] = []  #: not reported yet
        self._loads = 0

    def restart(self) -> None:
        """All workers died."""
        self.floors, self.workers, self._evicted = (), {}, []

    def published(self) -> tuple[DeviceResidents, ...]:
        """All workers, for a hello."""
        return tuple(DeviceResidents(device=at, added=(one,)) for at, one in self.workers.values())

    def memory_mib(self, device: DeviceId) -> int:
        return sum(one.memory_mib for at, one in self.workers.values() if at == device)

    def keep(self, room_mib: Room, leases: Sequence[Install]) -> tuple[DeviceResidents, ...]:
        """Load a worker of each floor that lacks one, where memory is free; the changes to
        report."""
        self.evict(room_mib)
        changes, self._evicted = self._evicted, []
        there = Counter((at, one.workload) for at, one in self.workers.values())
        awaited = {share.device for one in leases if one.ahead for share in one.shares}
        for floor in self.floors:
            device, need_mib = floor.share.device, floor.share.memory_mib
            count = there[_place(floor)] + sum(_is_of(lease, floor) for lease in leases)
            has_room = device not in awaited and need_mib <= room_mib(device)
            if count < floor.workers_min and has_room:
                self._loads += 1
                one = Resident(
                    id=f"w{self._loads}",
                    workload=_place(floor)[1],
                    memory_mib=need_mib,
                    loading_s=1.0,
                )
                self.workers[one.id] = device, one
                changes.append(DeviceResidents(device=device, added=(one,)))
        return tuple(changes)

    def evict(self, room_mib: Room, named: Sequence[str] = ()) -> None:
        """End the workers that are named, those beyond the floors, and those whose memory leases
        need."""
        left = Counter({_place(floor): floor.workers_min for floor in self.floors})
        for name, (device, one) in list(self.workers.items()):
            left[device, one.workload] -= 1
            if name in named or left[device, one.workload] < 0 or room_mib(device) < 0:
                del self.workers[name]
                self._evicted.append(DeviceResidents(device=device, removed=(name,)))


def _place(floor: HostFloor) -> tuple[DeviceId, str]:
    """The device of a floor, and the published key of its workload."""
    return floor.share.device, workload_key(floor.tenant, floor.workload)


def _is_of(install: Install, floor: HostFloor) -> bool:
    """Whether a lease that has its shares has a worker of the floor's workload on its device."""
    same = (install.tenant, install.workload) == (floor.tenant, floor.workload)
    there = any(share.device == floor.share.device for share in install.shares)
    return same and there and not install.ahead
