"""Workers that load for leases granted ahead, while the leases before them run: pure rules.

What a workload loads, its memory and its time are those of its last warm worker on a device of the
same model. A worker loads in memory that no lease has or waits for, so that the lease that runs is
never in its way: the other way round, a lease that needs the memory ends the worker. Idle workers
make room for it unless they take much longer to load: its use is certain, and theirs is not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.warm.table import WarmTable, WarmWorker, card_limits

#: Of all tenants of one host; the one not kept for longest is forgotten.
LEARNED_MAX = 1024
#: Beside the memory of the last worker: two processes that loaded the same differ a little.
_SPARE_PCT, _SPARE_MIB_MIN = 10, 16
#: An idle worker that takes more times as long to load stays.
_DEARER_MAX = 2.0


class Learned:
    """The last warm worker of each workload, by the model of its device."""

    def __init__(self) -> None:
        self._workers: OrderedDict[tuple[str, str, str], WarmWorker] = OrderedDict()

    def __len__(self) -> int:
        return len(self._workers)

    def kept(self, worker: WarmWorker) -> None:
        """A worker of one device has become warm; one that names no calls teaches nothing."""
        if len(worker.models) == 1 and worker.used and worker.loading_s > 0:
            key = (worker.tenant, worker.workload, worker.models[0])
            self._workers[key] = worker
            self._workers.move_to_end(key)
            if len(self._workers) > LEARNED_MAX:
                self._workers.popitem(last=False)

    def forget(self, worker: WarmWorker) -> None:
        """A worker failed to load the same."""
        for model in worker.models:
            self._workers.pop((worker.tenant, worker.workload, model), None)

    def worker_for(self, install: Install) -> WarmWorker | None:
        """The worker that would load for a lease of one device; None: it is not known what."""
        if install.workload is None or len(install.shares) != 1:
            return None
        share = install.shares[0]
        known = self._workers.get((install.tenant, install.workload, share.model))
        if known is None:
            return None
        (known_mib,) = known.memory_mib.values()
        if known_mib > share.memory_mib:
            return None
        spare_mib = max(_SPARE_MIB_MIN, known_mib * _SPARE_PCT // 100)
        memory_mib = min(share.memory_mib, known_mib + spare_mib)
        return WarmWorker(
            id=f"ahead-{install.fence}",
            tenant=install.tenant,
            workload=install.workload,
            memory_mib={share.device: memory_mib},
            card_limits=card_limits(install.shares),
            loading_s=known.loading_s,
            idle_since_s=0.0,
            models=known.models,
            used=known.used,
            loads_for=install.lease,
        )


class Changes(NamedTuple):
    """The loads to begin for leases ahead, and the evictions before them."""

    load: tuple[WarmWorker, ...] = ()  #: to begin now
    evict: tuple[str, ...] = ()  #: idle workers, in whose memory others will load


class LoadsAhead:
    """The loads for the leases of one host that wait for their shares."""

    def __init__(self, warm: WarmTable) -> None:
        self.learned = Learned()
        self._warm = warm
        self._begun: dict[LeaseId, None] = {}  # each lease has one load at most

    def ended(self, lease: LeaseId) -> tuple[str, ...]:
        """Forget a lease; returns its worker, if it loads still."""
        if self._begun.pop(lease, self) is self:
            return ()
        return self._warm.loading_of(lease)

    def awaited(self, queued: Iterable[Install]) -> dict[LeaseId, str]:
        """The workers that leases will get, of those that are warm or load."""
        found: dict[LeaseId, str] = {}
        for install in queued:
            worker = self._warm.candidate(install, found.values())
            if worker is not None:
                found[install.lease] = worker.id
        return found

    def changes(
        self,
        queued: Collection[Install],
        holders: Collection[Install],
        memory_mib: Mapping[DeviceId, int],
    ) -> Changes:
        """The loads to begin, one more on each device, in the order of the leases.

        `queued`: the leases without shares, those that are booked first; `holders`: the others;
        `memory_mib`: of each device. A lease after another one of its workload gets its worker.
        """
        load, evict = list[WarmWorker](), list[str]()
        if not any(install.ahead for install in queued) or not self._warm.allowed:
            return Changes()
        awaited = self.awaited(queued)
        held = [share for one in holders for share in one.shares]
        before = {key for one in holders for key in _keys(one)}
        booked = [share for one in queued if not one.ahead for share in one.shares]
        closed = {share.device for share in booked} | {*self._warm.limits.none_on}
        closed |= {share.device for share in held if share.exclusive}
        for install in queued:
            is_left = not before.isdisjoint(_keys(install))
            before.update(_keys(install))
            worker = None if is_left else self._worker_for(install, awaited, closed)
            if worker is None:
                continue
            (device,) = worker.memory_mib
            closed.add(device)
            held_mib = sum(share.memory_mib for share in held if share.device == device)
            room_mib = memory_mib.get(device, 0) - held_mib - sum(self._warm.memory_on(device))
            missing_mib = worker.memory_mib[device] - room_mib
            if missing_mib <= 0:
                self._begun[install.lease] = None
                load.append(worker)
            else:
                missing_mib -= self._warm.ending_mib(device)
                evict += self._evictions(worker, device, missing_mib, awaited.values())
        return Changes(tuple(load), tuple(evict))

    def _worker_for(
        self, install: Install, awaited: Mapping[LeaseId, str], closed: Collection[DeviceId]
    ) -> WarmWorker | None:
        if not install.ahead or install.lease in awaited or install.lease in self._begun:
            return None
        devices = [share.device for share in install.shares]
        loads_max = self._warm.limits.loads_max
        if any(one in closed or self._warm.loads_on(one) >= loads_max for one in devices):
            return None
        return self.learned.worker_for(install)

    def _evictions(
        self,
        worker: WarmWorker,
        device: DeviceId,
        missing_mib: int,
        awaited: Collection[str],
    ) -> list[str]:
        """The idle workers whose memory is enough together, the cheapest first; else none."""
        chosen, kept = list[str](), self._warm.kept()
        for other in self._warm.idle():
            if missing_mib <= 0 or other.loading_s > _DEARER_MAX * worker.loading_s:
                break
            if device in other.memory_mib and other.id not in (*awaited, *kept):
                chosen.append(other.id)
                missing_mib -= other.memory_mib[device]
        return chosen if missing_mib <= 0 else []


def _keys(install: Install) -> list[tuple[str, str, DeviceId]]:
    """The workload of a lease, on each of its devices."""
    tenant, workload = install.tenant, install.workload
    return [] if workload is None else [(tenant, workload, one.device) for one in install.shares]
