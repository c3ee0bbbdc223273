"""The ends of leases: servers, workers and batch processes are killed, then the shares are free.

An end that an error interrupts is repeated and continues where it was, so that no share stays
booked, and none is free before its processes have ended.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass

from corekit.aio.supervise import Nursery
from corekit.ids import LeaseId
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.leases.steps import LeaseStep
from remote_gpu.host.warm.workers import WarmWorkers
from remote_gpu.host.workers.endings import Endings, KilledProcess
from remote_gpu.host.workers.lease_workers import LeaseWorkers
from remote_gpu.host.workers.worker import Worker

_PARK_S = 1.0  #: longest delay of the report of an end, for the program that the lease leaves


@dataclass(slots=True, kw_only=True)
class _Ending:
    """The processes of a lease that ends, and what became of them so far."""

    step: LeaseStep
    worker: asyncio.Task[Worker | None] | None  #: the lease's, which may be starting
    worker_is_left: bool = False
    kept: str = ""  #: id of the worker, if it stays warm
    processes: list[KilledProcess]  #: killed, to be awaited
    parks: asyncio.Future[str] | None = None  #: done once its run is parked, by its id, or gone


class LeaseEnds:
    """The ends that are under way; lives in the event loop."""

    def __init__(
        self,
        leases: Leases,
        endings: Endings,
        workers: LeaseWorkers,
        warm: WarmWorkers,
        nursery: Nursery,
        left: Callable[[LeaseId], None],
    ) -> None:
        """`left`: called once the worker or program of a lease is warm, or known not to be."""
        self._leases = leases
        self._endings = endings
        self._workers = workers
        self._warm = warm
        self._nursery = nursery
        self._left = left
        self._unbinding: dict[LeaseId, asyncio.Task[None]] = {}  # ends of sessions' workers

    def begin(
        self,
        step: LeaseStep,
        *others: KilledProcess | None,
        parks: asyncio.Future[str] | None = None,
    ) -> None:
        """End a lease, of which the `others`, its server and its run, end already, unless its run
        `parks`."""
        worker = self._workers.leave(step.lease)
        processes = [one for one in others if one is not None]
        ending = _Ending(step=step, worker=worker, processes=processes, parks=parks)
        self._nursery.start_end(functools.partial(self._end, ending), "kill")

    def unbind(self, lease: LeaseId) -> None:
        """End the lanes and memory of a session that is over. The lease continues, as does a worker
        that has no lane yet."""
        if (worker := self._workers.unbind(lease)) is None:
            return
        worker.kill()
        end = functools.partial(self._unbound, lease, worker, self._unbinding.get(lease))
        self._unbinding[lease] = self._nursery.start_end(end, "unbind")

    async def _unbound(
        self, lease: LeaseId, worker: Worker, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await before
        await self._endings.end(self._endings.of_lease(lease), worker)

    async def _end(self, ending: _Ending) -> None:
        lease = ending.step.lease
        ended = self._endings.of_lease(lease)
        if not ending.worker_is_left:
            await self._leave_worker(ending)
        if ending.parks is not None:
            await asyncio.wait({ending.parks}, timeout=_PARK_S)
        self._left(lease)
        await self._workers.batches.leave(lease, ending.processes.append)
        for process in ending.processes:
            await self._endings.end(ended, process)
        if (unbinding := self._unbinding.get(lease)) is not None:
            await asyncio.shield(unbinding)
            del self._unbinding[lease]
        await self._endings.clean(ended, held=functools.partial(self._distrust, ending))
        self._leases.apply(self._leases.table.gone(lease))

    async def _leave_worker(self, ending: _Ending) -> None:
        """Keep the worker warm; kill it if that fails or is not wanted."""
        lease, keeps = ending.step.lease, ending.step.keeps
        self._warm.unused_program(lease)
        worker = None if ending.worker is None else await asyncio.shield(ending.worker)
        ending.worker_is_left = True
        if worker is None:
            await self._warm.unused(lease)
            return
        try:
            if keeps is not None:
                self._workers.turns.leave(lease, worker)
                ending.kept = await self._warm.keep(keeps, worker)
        finally:
            if not ending.kept:
                worker.kill()
                ending.processes.append(worker)

    def _distrust(self, ending: _Ending) -> None:
        """Evict the warm worker and program of a lease after which a card is not clean."""
        why = "it holds more memory of a card than it reports"
        parks = ending.parks
        kept = (ending.kept, parks.result() if parks is not None and parks.done() else "")
        self._leases.apply(self._leases.table.evict_warm(kept, why))
