"""The warm workers of one host, as a pure table beside that of the leases.

    lease ends ──keep──▶ idle ──take──▶ the next lease of its tenant, workload and devices
    lease ahead, floor ──load──▶ loading ──keep──▶ idle
                          idle, loading ──evict──▶ ending ──gone──▶ forgotten

A warm worker occupies memory of its devices, outside of every lease, until a lease takes it or its
process has ended. A lease that needs the memory is placed after that. One that loads for a lease
granted ahead (`ahead.py`), or for a floor (`floors.py`), occupies all that it may need.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.floors import HostFloor
from gpu_scheduler.model import Device, DeviceKind, Resident, Share
from gpu_scheduler.names import is_emulated
from gpu_scheduler.protocol.host import Install, WarmLimits
from gpu_scheduler.warm import workload_key

#: Of one host, whatever the limits of its devices are: each is a process.
WORKERS_MAX = 256

#: Id, memory and elastic limit of each card, as a driver got them when the worker was started:
#: they cannot be changed in its process.
CardLimits: TypeAlias = "tuple[tuple[DeviceId, int, int | float, bool], ...]"

#: Operations that the calls of a worker used, with the arguments, as JSON, that say what they load.
Used: TypeAlias = "tuple[tuple[str, str], ...]"


#: Tenant, workload and device of a warm floor.
FloorKey: TypeAlias = "tuple[str, str, DeviceId]"


def is_card(of: Share | Device) -> bool:
    """Whether it is of an NVIDIA card with a driver."""
    return of.kind is DeviceKind.CUDA and not is_emulated(of.model)


def card_limits(shares: tuple[Share, ...]) -> CardLimits:
    """The limits that the driver of NVIDIA's cards enforces for these shares."""
    return tuple(
        (share.device, share.memory_mib, share.compute_limit_pct, share.exclusive)
        for share in shares
        if is_card(share)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmWorker:
    """A worker without a lease."""

    id: str  #: unique to this period between two leases
    tenant: str
    workload: str
    memory_mib: Mapping[DeviceId, int]  #: that its end frees, by device
    card_limits: CardLimits = ()
    loading_s: float  #: the cost of loading its models again
    idle_since_s: float
    models: tuple[str, ...] = ()  #: of its devices
    used: Used = ()  #: what another worker of its workload would load
    ahead_s: float = 0.0  #: that it has loaded before any lease had it
    loads_for: LeaseId | None = None  #: it still loads, for this lease; None = it is idle
    program: bool = False  #: the parked process of a function's run, not a worker

    @property
    def cards(self) -> tuple[DeviceId, ...]:
        """Its NVIDIA cards, whose drivers free memory some time after its end."""
        return tuple(device for device, *_ in self.card_limits)

    @property
    def resident(self) -> dict[DeviceId, Resident]:
        key = workload_key(self.tenant, self.workload)
        return {
            device: Resident(
                id=self.id, workload=key, memory_mib=memory_mib, loading_s=self.loading_s
            )
            for device, memory_mib in self.memory_mib.items()
        }

    def suits(self, install: Install) -> bool:
        """Whether a lease may use it: same tenant, workload and devices, the same limits on cards,
        and enough memory for what is loaded."""
        shares = {share.device: share.memory_mib for share in install.shares}
        return (
            install.workload == self.workload
            and install.tenant == self.tenant
            and shares.keys() == self.memory_mib.keys()
            and all(shares[device] >= mib for device, mib in self.memory_mib.items())
            and card_limits(install.shares) == self.card_limits
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictions:
    """The evictions that a lease needs before it is placed."""

    evict: tuple[str, ...]  #: to begin now
    ready: bool  #: nothing has to end first


class WarmTable:
    """The warm workers of one host. `now_s` is monotonic."""

    def __init__(self) -> None:
        self.limits = WarmLimits()
        self.floors: Mapping[FloorKey, HostFloor] = {}
        self._idle: dict[str, WarmWorker] = {}
        self._loading: dict[str, WarmWorker] = {}
        self._ending: dict[str, WarmWorker] = {}
        self._stuck: dict[str, None] = {}  # of those that end: they cannot be killed

    @property
    def allowed(self) -> bool:
        """True where workers may stay without a lease."""
        return self.limits.workers_max > 0 and self.limits.memory_pct_max > 0

    def __len__(self) -> int:
        return len(self._idle) + len(self._loading) + len(self._ending)

    def workers_of(self, floor: HostFloor) -> int:
        """The workers of a floor without a lease, those that load included."""
        return len(_of(floor, (*self._idle.values(), *self._loading.values())))

    def kept(self) -> set[str]:
        """The idle workers of floors: of each one as many as it asks for, those used last."""
        kept: set[str] = set()
        for floor in self.floors.values():
            newest = sorted(_of(floor, self._idle.values()), key=lambda one: -one.idle_since_s)
            kept.update(worker.id for worker in newest[: floor.workers_min])
        return kept

    def idle_from(self, names: Iterable[str], now_s: float) -> None:
        """Restart the time for which idle workers may stay."""
        for name in names:
            self._idle[name] = replace(self._idle[name], idle_since_s=now_s)

    def find(self, name: str) -> WarmWorker | None:
        return self._idle.get(name) or self._loading.get(name)

    def keep(self, worker: WarmWorker) -> None:
        """Add a worker whose lease has ended, or that loads for one."""
        (self._idle if worker.loads_for is None else self._loading)[worker.id] = worker

    def loaded(self, worker: WarmWorker) -> bool:
        """A worker has loaded, and is idle now; False: it was evicted, or a lease has it."""
        if self._loading.pop(worker.id, None) is None:
            return False
        self._idle[worker.id] = worker
        return True

    def candidate(
        self, install: Install, promised: Collection[str] = (), *, program: bool | None = None
    ) -> WarmWorker | None:
        """The worker that a lease gets: one that its install names, else one that suits and is not
        `promised` to another; a function's program first, then the one that was idle for the
        shortest time; else one that loads for it. `program`: True = a program only, False = none.
        """
        suited = [
            worker
            for worker in self._idle.values()
            if program in (None, worker.program) and worker.suits(install)
        ]
        named = [worker for worker in suited if worker.id in install.residents]
        free = [
            worker
            for worker in suited
            if worker.id not in promised and worker.id not in install.evict
        ]
        found = max(named or free, key=lambda one: (one.program, one.idle_since_s), default=None)
        return found if found or program else self.loading_for(install)

    def loading_for(self, install: Install) -> WarmWorker | None:
        """The worker that loads for a lease, and suits it."""
        there = self._loading.values()
        own = (one for one in there if one.loads_for == install.lease and one.suits(install))
        return next(own, None)

    def loading_of(self, lease: LeaseId) -> tuple[str, ...]:
        """The worker that loads for a lease, if there is one."""
        return tuple(name for name, one in self._loading.items() if one.loads_for == lease)

    def loads_on(self, device: DeviceId) -> int:
        """The number of workers that load on a device."""
        return sum(device in worker.memory_mib for worker in self._loading.values())

    def take(self, name: str) -> WarmWorker:
        """Remove a worker that a lease uses from now on."""
        return self._idle.pop(name, None) or self._loading.pop(name)

    def room(
        self, install: Install, free_mib: Mapping[DeviceId, int], taken: str | None
    ) -> Evictions:
        """The evictions for a lease: those that its install names, and the cheapest to load again
        until the others fit. `free_mib`: of its devices, beside all leases and this one; `taken`:
        the worker that it gets."""
        others = [worker for worker in self._all() if worker.id != taken]
        chosen = {worker.id: worker for worker in others if worker.id in install.evict}
        for device, free in free_mib.items():
            there = [worker for worker in others if device in worker.memory_mib]
            left = [
                worker
                for worker in there
                if worker.id not in chosen and worker.id not in self._ending
            ]
            excess = sum(worker.memory_mib[device] for worker in left) - free
            for worker in self._cheapest_first(left):
                if excess <= 0:
                    break
                chosen[worker.id] = worker
                excess -= worker.memory_mib[device]
        waits = any(
            sum(worker.memory_mib[device] for worker in others if device in worker.memory_mib)
            > free
            for device, free in free_mib.items()
        )
        evict = tuple(name for name in chosen if name not in self._ending)
        return Evictions(evict=evict, ready=not chosen and not waits)

    def evict(self, names: Iterable[str]) -> tuple[WarmWorker, ...]:
        """Mark workers as ending; returns those that were idle, or loading, until now."""
        found = [self.take(name) for name in names if self.find(name) is not None]
        self._ending.update((worker.id, worker) for worker in found)
        return tuple(found)

    def gone(self, name: str) -> bool:
        """Forget a worker whose process has ended. False: it is unknown."""
        self._stuck.pop(name, None)
        there = (self._idle, self._loading, self._ending)
        return any(workers.pop(name, None) is not None for workers in there)

    def stuck(self, name: str) -> None:
        """Mark a worker that cannot be killed."""
        if name in self._ending:
            self._stuck[name] = None

    def beyond_limits(
        self,
        memory_mib: Mapping[DeviceId, int],
        now_s: float,
        awaited: Collection[str] = (),
    ) -> tuple[str, ...]:
        """The idle workers to evict by the limits: those idle for too long or on a drained
        device, then the cheapest to load again of each device with too many or too large ones.

        `memory_mib`: of each device; `awaited`: workers that leases granted ahead will get: they
        are evicted on drained devices only, as are those of floors and those that load, and where
        none may stay.
        """
        limits, awaited = self.limits, {*awaited, *self.kept()}
        chosen = {
            worker.id: None
            for worker in (*self._idle.values(), *self._loading.values())
            if not self.allowed or any(device in worker.memory_mib for device in limits.none_on)
        }
        chosen |= {
            worker.id: None
            for worker in self._idle.values()
            if worker.id not in awaited and now_s - worker.idle_since_s >= limits.idle_s_max
        }
        for device in dict.fromkeys(
            device for worker in self._all() for device in worker.memory_mib
        ):
            part_mib = memory_mib.get(device, 0) * limits.memory_pct_max // 100
            there = [
                worker
                for worker in self._idle.values()
                if worker.id not in chosen
                and worker.id not in awaited
                and device in worker.memory_mib
            ]
            count, used_mib = len(there), sum(worker.memory_mib[device] for worker in there)
            for worker in self._cheapest_first(there):
                if count <= limits.workers_max and used_mib <= part_mib:
                    break
                chosen[worker.id] = None
                count, used_mib = count - 1, used_mib - worker.memory_mib[device]
        left = [worker for worker in self._idle.values() if worker.id not in chosen]
        excess = max(0, len(left) - WORKERS_MAX)
        return (*chosen, *(worker.id for worker in self._cheapest_first(left)[:excess]))

    def to_free(self, memory_mib: int) -> tuple[str, ...]:
        """The workers to evict so that the host has so much more memory, those that load and then
        the cheapest first; memory of those that end counts already."""
        missing = memory_mib - sum(
            sum(worker.memory_mib.values()) for worker in self._ending.values()
        )
        chosen: list[str] = []
        for worker in (*self._loading.values(), *self._cheapest_first(self._idle.values())):
            if missing <= 0:
                break
            chosen.append(worker.id)
            missing -= sum(worker.memory_mib.values())
        return tuple(chosen)

    def memory_on(self, device: DeviceId, besides: str = "") -> list[int]:
        """Memory of a device that each warm worker but one occupies, those that end included."""
        return [
            worker.memory_mib[device]
            for worker in self._all()
            if device in worker.memory_mib and worker.id != besides
        ]

    def stuck_mib(self, device: DeviceId) -> int:
        """Memory of a device that workers occupy which cannot be killed."""
        return sum(self._ending[name].memory_mib.get(device, 0) for name in self._stuck)

    def devices(self) -> tuple[DeviceId, ...]:
        return tuple(
            dict.fromkeys(device for worker in self._all() for device in worker.memory_mib)
        )

    def residents(self) -> dict[DeviceId, tuple[Resident, ...]]:
        """The idle workers as published, by device."""
        found: dict[DeviceId, tuple[Resident, ...]] = {}
        for worker in self._idle.values():
            for device, resident in worker.resident.items():
                found[device] = (*found.get(device, ()), resident)
        return found

    def ids(self) -> tuple[str, ...]:
        """The idle workers, and those that load."""
        return (*self._idle, *self._loading)

    def loading(self) -> tuple[WarmWorker, ...]:
        return tuple(self._loading.values())

    def idle(self) -> tuple[WarmWorker, ...]:
        """The idle workers, in the order in which they are evicted."""
        return tuple(self._cheapest_first(self._idle.values()))

    def ending_mib(self, device: DeviceId) -> int:
        """Memory of a device that will be free soon."""
        ending = (one for name, one in self._ending.items() if name not in self._stuck)
        return sum(worker.memory_mib.get(device, 0) for worker in ending)

    def _all(self) -> list[WarmWorker]:
        return [*self._idle.values(), *self._loading.values(), *self._ending.values()]

    def _cheapest_first(self, workers: Iterable[WarmWorker]) -> list[WarmWorker]:
        """By the cost of loading again, those of floors last; of equal ones, the one that was idle
        for the longest time."""
        kept = self.kept()

        def cost(worker: WarmWorker) -> tuple[bool, float, float, str]:
            return worker.id in kept, worker.loading_s, worker.idle_since_s, worker.id

        return sorted(workers, key=cost)


def _of(floor: HostFloor, workers: Iterable[WarmWorker]) -> list[WarmWorker]:
    """The workers that count for a floor: they have loaded what it declares, in its share."""
    share = floor.share
    key = floor.tenant, floor.workload, (share.device,), card_limits((share,))
    return [
        one
        for one in workers
        if (one.tenant, one.workload, tuple(one.memory_mib), one.card_limits) == key
        and one.memory_mib[share.device] <= share.memory_mib
        and all(any(_is_same(load, used) for used in one.used) for load in floor.loads)
        and not one.program
    ]


def _is_same(load: tuple[str, str], used: tuple[str, str]) -> bool:
    """Whether a call loads what a floor declares: the arguments that both name are equal."""
    named, there = _arguments(load[1]), _arguments(used[1])
    return load[0] == used[0] and all(there.get(name, one) == one for name, one in named.items())


@functools.lru_cache(maxsize=4096)
def _arguments(text: str) -> Mapping[str, object]:
    """The arguments of a call; none of a text without a JSON object."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
