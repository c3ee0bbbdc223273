"""The warm floors of one host: workers that load without a lease, as pure rules.

A device has the workers that its floors ask for, idle, loading or in leases of the workload. A
missing one loads in memory that no lease has or waits for, in place of idle workers of no floor.
Floors never displace each other; a lease displaces every worker. A load that fails, and a worker
that dies, are repeated with growing pauses.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace

from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.floors import HostFloor
from gpu_scheduler.model import Door, LeaseLifetime, LeaseState
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.warm.ahead import Changes, Learned
from remote_gpu.host.warm.table import FloorKey, WarmTable, WarmWorker, card_limits

#: The names of loads begin with it, and those of leases do not.
FLOOR = "floor-"
#: Of a load that no worker has shown; one that takes four times as long has failed.
LOAD_S_ASSUMED = 150.0
#: Pauses after failures: the first one, which doubles, and the longest; one without a failure for
#: twice as long counts from the first again.
PAUSE_S, PAUSE_S_MAX = 5.0, 600.0


class WarmFloors:
    """The floors that the scheduler asked this host to keep."""

    def __init__(self, warm: WarmTable, learned: Learned) -> None:
        self._warm = warm
        self._learned = learned
        self._floors: dict[FloorKey, HostFloor] = {}
        self._failed: dict[FloorKey, tuple[int, float]] = {}  #: failures in a row, time of the last
        self._numbers = itertools.count(1)

    def set(self, floors: Iterable[HostFloor], now_s: float) -> set[str]:
        """Replace all floors. Workers that are kept no longer are idle from now on; returns their
        names: a new scheduler has no floors for some seconds."""
        before = self._warm.kept()
        self._floors = {(one.tenant, one.workload, one.share.device): one for one in floors}
        self._failed = {key: one for key, one in self._failed.items() if key in self._floors}
        self._warm.floors = self._floors
        ended = before - self._warm.kept()
        self._warm.idle_from(ended, now_s)
        return ended

    def displaced(self, names: Iterable[str], now_s: float) -> None:
        """The host itself evicts these workers: those of floors do not load again at once."""
        counted = {*self._warm.kept(), *(one.id for one in self._warm.loading())}
        for name in counted.intersection(names):
            if (worker := self._warm.find(name)) is not None:
                self.failed(worker, now_s)

    def failed(self, worker: WarmWorker, now_s: float) -> None:
        """A worker did not load, or died or was evicted by its host while it was idle."""
        for device in worker.memory_mib:
            key = worker.tenant, worker.workload, device
            if key in self._floors:
                count, last_s = self._failed.get(key, (0, now_s))
                count = 0 if now_s - last_s > 2 * PAUSE_S_MAX else count
                self._failed[key] = count + 1, now_s

    def install_of(self, worker: WarmWorker) -> Install:
        """The install of a worker that begins to load, as of a lease of its floor."""
        (device,) = worker.memory_mib
        return _install(self._floors[worker.tenant, worker.workload, device], worker.id)

    def changes(
        self,
        queued: Iterable[Install],
        holders: Iterable[Install],
        memory_mib: Mapping[DeviceId, int],
        now_s: float,
    ) -> Changes:
        """The loads to begin, at most one more on each device, and the evictions before others.

        `queued`: the leases whose shares are booked and not free yet; `holders`: those that have
        theirs; `memory_mib`: of each device.
        """
        load, evict = list[WarmWorker](), list[str]()
        if not self._warm.allowed:
            return Changes()
        holders = tuple(holders)
        held = [share for one in holders for share in one.shares]
        closed = {*self._warm.limits.none_on, *(s.device for one in queued for s in one.shares)}
        closed |= {share.device for share in held if share.exclusive}
        for key, floor in self._floors.items():
            device = floor.share.device
            there_mib = sum(share.memory_mib for share in held if share.device == device)
            is_shut = floor.share.exclusive and there_mib > 0
            if device in closed or is_shut or device not in memory_mib:
                continue
            leases = sum(_is_of(one, key) for one in holders)
            loads_max = max(1, self._warm.limits.loads_max)
            is_full = self._warm.workers_of(floor) + leases >= floor.workers_min
            if is_full or self._warm.loads_on(device) >= loads_max or self._pauses(key, now_s):
                continue
            worker = self._worker(floor)
            if worker is None:
                continue
            closed.add(device)
            room_mib = memory_mib[device] - there_mib - sum(self._warm.memory_on(device))
            missing_mib = worker.memory_mib[device] - room_mib
            if missing_mib <= 0:
                load.append(worker)
            else:
                evict += self._evictions(device, missing_mib - self._warm.ending_mib(device))
        return Changes(tuple(load), tuple(evict))

    def _pauses(self, key: FloorKey, now_s: float) -> bool:
        count, last_s = self._failed.get(key, (0, 0.0))
        exponent = min(count - 1, 16)
        return count > 0 and now_s - last_s < min(PAUSE_S_MAX, PAUSE_S * 2**exponent)

    def _worker(self, floor: HostFloor) -> WarmWorker | None:
        """The worker that loads; None: what is not declared, and no worker has shown it."""
        name = f"{FLOOR}{next(self._numbers)}"
        install = _install(floor, name)
        found = self._learned.worker_for(install)
        if found is not None:
            used = floor.loads or found.used
            return replace(found, id=name, used=used, loads_for=install.lease)
        if not floor.loads:
            return None
        return WarmWorker(
            id=name,
            tenant=floor.tenant,
            workload=floor.workload,
            memory_mib={floor.share.device: floor.share.memory_mib},
            card_limits=card_limits((floor.share,)),
            loading_s=LOAD_S_ASSUMED,
            idle_since_s=0.0,
            models=(floor.share.model,),
            used=floor.loads,
            loads_for=install.lease,
        )

    def _evictions(self, device: DeviceId, missing_mib: int) -> list[str]:
        """The idle workers of no floor whose memory is enough together, the cheapest first."""
        chosen: list[str] = []
        kept = self._warm.kept()
        for other in self._warm.idle():
            if missing_mib <= 0:
                break
            if device in other.memory_mib and other.id not in kept:
                chosen.append(other.id)
                missing_mib -= other.memory_mib[device]
        return chosen if missing_mib <= 0 else []


def _is_of(install: Install, key: FloorKey) -> bool:
    tenant, workload, device = key
    same = (install.tenant, install.workload) == (tenant, workload)
    return same and any(share.device == device for share in install.shares)


def _install(floor: HostFloor, name: str) -> Install:
    """As of a lease; no lease has this name."""
    return Install(
        lease=LeaseId(name),
        fence=0,
        secret="",
        state=LeaseState.RESERVED,
        shares=(floor.share,),
        tenant=floor.tenant,
        hold=LeaseLifetime.SESSION,
        door=Door.GATEWAY,
        workload=floor.workload,
        cap_s=None,
        connect_by_s=None,
    )
