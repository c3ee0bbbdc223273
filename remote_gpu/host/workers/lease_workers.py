"""The workers of leases: each begins at its lease's first lane, new or warm, and ends with it."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.model import DeviceKind, EndReason, Share
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.data.sets import DataSets
from remote_gpu.host.devices.card_checks import CardChecks, read_fault
from remote_gpu.host.devices.emulation import real_shares
from remote_gpu.host.environment import worker_variables
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.leases.steps import LeaseStep
from remote_gpu.host.leases.table import CAP_S_MAX, InstalledLease
from remote_gpu.host.reports.traces import HostTraces
from remote_gpu.host.sharing.batches import Batches, joins, own_shares
from remote_gpu.host.sharing.turns import Turns
from remote_gpu.host.warm.floors import FLOOR
from remote_gpu.host.warm.table import card_limits, is_card
from remote_gpu.host.warm.workers import WarmWorkers
from remote_gpu.host.workers.pool import WorkerPool
from remote_gpu.host.workers.worker import Worker
from remote_gpu.wire.errors import Refusal, Refused
from remote_gpu.worker.control import WorkerStart

logger = logging.getLogger(__name__)

#: A crashed worker is replaced this many times within a lease; then the lease ends as DEVICE_BAD.
CRASHES_MAX = 5
LANES_MAX = 16  #: open at once on one lease; each is a thread in its worker
#: Least quota of a worker, for the data of calls; a request may include no memory.
_MEMORY_FLOOR_BYTES = 64 << 20


class Loading(NamedTuple):
    """The loads of models of a lease's workers."""

    seconds: float
    size_bytes: int


class LeaseWorkers:
    """The present worker of each lease; lives in the event loop."""

    def __init__(
        self,
        leases: Leases,
        pool: WorkerPool,
        data: DataSets,
        warm: WarmWorkers,
        turns: Turns,
        cards: CardChecks,
        traces: HostTraces,
        budget: Budget,
        nursery: Nursery,
    ) -> None:
        self._leases = leases
        self._cards = cards
        self._pool = pool
        self._data = data
        self._warm = warm
        self.turns = turns
        self._traces = traces
        self._budget = budget
        self._nursery = nursery
        self.batches = Batches(pool.take, self._first_message, turns, nursery, self._card_failed)
        self._tasks: dict[LeaseId, asyncio.Task[Worker | None]] = {}
        self._crashes: dict[LeaseId, int] = {}
        self._ended_loading: dict[LeaseId, Loading] = {}  # of a lease's workers that have ended
        self._loading: dict[LeaseId, Loading] = {}  # of all its workers, when last asked

    def started(self, lease: LeaseId) -> Worker | None:
        """The lease's worker, once it is started."""
        task = self._tasks.get(lease)
        return None if task is None or not task.done() or task.cancelled() else task.result()

    def owners(self) -> dict[int, LeaseId]:
        """The leases of the started workers, by process id."""
        found = ((lease, self.started(lease)) for lease in self._tasks)
        return {worker.pid: lease for lease, worker in found if worker is not None}

    def _of(self, entry: InstalledLease) -> asyncio.Task[Worker | None]:
        """The lease's worker, which begins now unless it has; None: this host cannot start one."""
        task = self._tasks.get(entry.lease)
        if task is None or (task.done() and task.result() is None):
            task = self._nursery.start(self._start(entry), "worker")
            self._tasks[entry.lease] = task
        return task

    async def hand_over(
        self, entry: InstalledLease, device: int, stream: socket.socket, key: bytes
    ) -> None:
        """Give an authenticated lane to the lease's worker; the first lane starts the worker.

        With a `key` the worker continues in TLS and sends the welcome there. A worker that dies
        before it took the lane is replaced: none of the lane's calls was served. Raises Refused.
        """
        kind = next(share.kind for share in entry.install.shares if share.index == device)
        session = entry.nonce
        ended = Refused(Refusal.ENDED, f"lease {entry.lease} or its session is over")

        def is_current() -> bool:
            return self._leases.table.find(entry.lease) is entry and entry.nonce == session

        self._traces.worker_asked(entry.lease)
        for _ in range(CRASHES_MAX):
            if not is_current():  # no step would end its worker
                raise ended
            worker = await asyncio.shield(self._of(entry))
            if not is_current() or entry.lease not in self._tasks:
                raise ended
            if worker is None:
                raise Refused(Refusal.NOT_READY, "no worker can be started on this host")
            if worker.lanes >= LANES_MAX:
                raise Refused(Refusal.BUSY, f"a lease has at most {LANES_MAX} lanes")
            try:
                taken = await worker.lane(stream, device, kind, key)
            except AppError as error:
                raise Refused(Refusal.NOT_READY, error.message) from None
            if taken:
                self._traces.worker_ready(entry.lease)
                return
            self._gone(entry, worker)  # its own callback may be a moment behind
        raise Refused(Refusal.NOT_READY, "workers of this lease die at startup; see gpud's log")

    def load_ahead(self, step: LeaseStep) -> None:
        """Have a new worker load for a lease ahead, or a floor, in the memory found for it."""
        (name,) = step.warm
        table = self._leases.table
        entry, warm = table.find(step.lease), table.warm.find(name)
        if warm is None or (entry is None and not step.lease.startswith(FLOOR)):
            return  # a later step of the same change evicts it
        install = table.floors.install_of(warm) if entry is None else entry.install
        start = self._first_message(install, own_shares(install))
        memory_bytes = max(sum(warm.memory_mib.values()) << 20, _MEMORY_FLOOR_BYTES)
        take = functools.partial(self._pool.take, replace(start, memory_bytes=memory_bytes))
        self._warm.load(step, install, take)

    def leave(self, lease: LeaseId) -> asyncio.Task[Worker | None] | None:
        """Take the worker, which may be starting, out of a lease that ends."""
        return self._tasks.pop(lease, None)

    def unbind(self, lease: LeaseId) -> Worker | None:
        """Take the started worker out of a lease that continues."""
        if (worker := self.started(lease)) is not None:
            del self._tasks[lease]
            self._left(lease, worker)
        return worker

    def loading(self, lease: LeaseId) -> Loading | None:
        """The loads of the lease's workers so far; None: it had none."""
        if (worker := self.started(lease)) is not None:
            worker.drain()
            self._loading[lease] = self._loading_with(lease, worker)
        return self._loading.get(lease)

    def _loading_with(self, lease: LeaseId, worker: Worker) -> Loading:
        ended = self._ended_loading.get(lease, Loading(0.0, 0))
        return Loading(ended.seconds + worker.loading_s, ended.size_bytes + worker.loaded_bytes)

    def forget(self, lease: LeaseId) -> None:
        """Forget the figures of a lease that is over."""
        for figures in (self._crashes, self._ended_loading, self._loading):
            figures.pop(lease, None)

    def set_time(self, entry: InstalledLease) -> None:
        """Set the remaining time of a lease's worker."""
        if (worker := self.started(entry.lease)) is not None:
            worker.end_in(self._cap_s(entry))

    def _gone(self, entry: InstalledLease, worker: Worker) -> None:
        """Forget a crashed worker: its lanes are cut, and the next lane starts a new one."""
        self.turns.leave(entry.lease, worker)
        if self.started(entry.lease) is not worker:
            return  # killed on purpose, or kept
        del self._tasks[entry.lease]
        self._left(entry.lease, worker)
        crashes = self._crashes[entry.lease] = self._crashes.get(entry.lease, 0) + 1
        logger.error("worker died", extra={"lease": entry.lease, "crashes": crashes})
        if crashes >= CRASHES_MAX:
            reason = f"its worker died {crashes} times"
            self._leases.end(entry.lease, EndReason.DEVICE_BAD, reason)

    def _left(self, lease: LeaseId, worker: Worker) -> None:
        self.turns.leave(lease, worker)
        self._ended_loading[lease] = self._loading[lease] = self._loading_with(lease, worker)

    async def _start(self, entry: InstalledLease) -> Worker | None:
        install = entry.install
        start = self._first_message(install, own_shares(install))
        start = replace(start, cap_s=self._cap_s(entry), joins=joins(install))
        worker = await self._warm.hand_over(entry.lease, start)
        if rest_s := self._warm.rest_s.pop(entry.lease, 0.0):  # that it waited for a load
            self._ended_loading[entry.lease] = Loading(rest_s, 0)
        if worker is None:
            try:
                worker = await self._pool.take(start)
            except AppError as error:
                about = {"lease": entry.lease, "why": error.message}
                logger.error("no worker", extra=about)
                return None
            worker.card_limits = card_limits(own_shares(entry.install))
        worker.end_in(self._cap_s(entry))  # the remaining time may have changed meanwhile
        worker.on_turn = functools.partial(self._requested, entry.install, worker)
        worker.when_gone(functools.partial(self._gone, entry, worker))
        self.turns.join(entry.lease, entry.install.shares, worker)
        return worker

    def _requested(self, install: Install, worker: Worker, meta: Mapping[str, object]) -> None:
        """Handle a worker's request for a token, for its batch process or for its devices' load, or
        its report of a fault.

        Raises ValueError and the like for a wrong one.
        """
        if (fault := meta.get("fault")) is not None:
            if self.started(install.lease) is worker:  # else the lease ends
                self._card_failed(install.lease, *read_fault(install.shares, fault))
            return
        if (number := meta.get("load")) is not None:
            if type(number) is not int:
                raise ValueError("the number of a question is not one")
            loads = self.turns.loads(install.lease)
            worker.send({"loads": [number, [[index, *load] for index, load in loads.items()]]})
        elif "join" not in meta:
            self.turns.requested(install.lease, meta)
        elif self.started(install.lease) is worker:  # else the lease ends
            self.batches.requested(install, worker, meta["join"])

    def _card_failed(self, lease: LeaseId, device: DeviceId, reason: str) -> None:
        about = {"event": "card_failed", "lease": lease, "device": device, "why": reason}
        logger.error("a worker reports a fault of its card", extra=about)
        self._cards.reported(device, reason)
        self._leases.end(lease, EndReason.DEVICE_BAD, reason)

    def _cap_s(self, entry: InstalledLease) -> float:
        """Seconds until a worker ends itself, a little after gpud should have ended it."""
        left_s = CAP_S_MAX if entry.last_s is None else entry.last_s - self._leases.now_s()
        return left_s + self._budget.worker_slack_s

    def _first_message(self, install: Install, shares: tuple[Share, ...]) -> WorkerStart:
        memory_mib, real = sum(share.memory_mib for share in shares), real_shares(shares)
        cards = [share for share in shares if is_card(share)]
        return WorkerStart(
            lease=install.lease,
            tenant=install.tenant,
            memory_bytes=max(memory_mib << 20, _MEMORY_FLOOR_BYTES),
            cap_s=CAP_S_MAX,
            devices={str(share.index): share.device for share in shares},
            variables=worker_variables(real),
            kinds=tuple(sorted({share.kind for share in real})) or (DeviceKind.CPU,),
            warm=install.workload is not None,
            context_bytes={str(one.index): self._cards.context_bytes(one.device) for one in cards},
            pinned_bytes=(self._pool.settings.options.pinned_mib << 20) * len(cards),
            data=self._data.of_worker(install),
        )
