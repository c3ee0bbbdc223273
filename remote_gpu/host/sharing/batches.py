"""The batch processes of a host: calls of several leases computed in one run.

One process per tenant, workload, device, rules and size of share; it is started for the first call
that may be joined and ends with the last of its leases. Leases with it have half of their share for
their own workers and half for the batch process, so all of them together stay within their shares,
whichever of them ends first. Its guarantee of the device is the sum of its leases' guarantees, and
its time is charged to each of them by its part.

A lease that ends takes its calls out. If a run with them does not end within `LEAVE_S`, the batch
process is killed, and the other leases repeat this run in a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from corekit.aio.supervise import Nursery
from corekit.errors import AppError
from corekit.ids import DeviceId, LeaseId
from corekit.values import replace
from gpu_scheduler.model import Batch, Share
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.devices.card_checks import read_fault
from remote_gpu.host.sharing.turns import Turns
from remote_gpu.host.workers.worker import Worker
from remote_gpu.worker.control import WorkerStart
from remote_gpu.worker.joining import CONNECTIONS_MAX

logger = logging.getLogger(__name__)

#: The longest wait for the end of a run with calls of a lease that ends.
LEAVE_S = 0.25

#: Tenant, workload, device index, memory of the share, rules.
Key = tuple[str, str, int, int, Batch]


def joins(install: Install) -> bool:
    """Whether calls of a lease join those of other leases."""
    return install.batch is not None and install.batch.joins and install.workload is not None


def own_shares(install: Install) -> tuple[Share, ...]:
    """The shares of the lease's own worker: half of the memory, if its calls are joined."""
    if not joins(install):
        return install.shares
    return tuple(replace(share, memory_mib=share.memory_mib // 2) for share in install.shares)


@dataclass(slots=True, kw_only=True, eq=False)
class _BatchProcess:
    """One batch process, and the leases whose calls it computes."""

    id: LeaseId  #: its name in the time slices
    key: Key
    task: asyncio.Task[Worker | None]
    shares: dict[LeaseId, Share] = field(default_factory=dict)
    leaving: dict[LeaseId, asyncio.Event] = field(default_factory=dict)
    reported_s: float = 0.0  #: durations of runs; a run lasts on while its process is stopped

    @property
    def share(self) -> Share:
        """The sum of its leases' shares, with half of the memory of one."""
        shares = list(self.shares.values())
        guarantee = sum(share.compute_guarantee_pct for share in shares)
        limit = sum(share.compute_limit_pct for share in shares)
        return replace(
            shares[0],
            memory_mib=shares[0].memory_mib // 2,
            compute_guarantee_pct=min(100, guarantee),
            compute_limit_pct=min(100, limit),
        )

    @property
    def worker(self) -> Worker | None:
        """The process, once it is started."""
        return self.task.result() if self.task.done() and not self.task.cancelled() else None


class Batches:
    """The batch processes of all devices of a host."""

    def __init__(
        self,
        take: Callable[[WorkerStart], Awaitable[Worker]],
        start_of: Callable[[Install, tuple[Share, ...]], WorkerStart],
        turns: Turns,
        nursery: Nursery,
        failed: Callable[[LeaseId, DeviceId, str], None],
    ) -> None:
        """`take`: a new worker; `start_of`: its first message, for these shares; `failed`: called
        for each of its leases when it reports that a card failed."""
        self._failed = failed
        self._take = take
        self._start_of = start_of
        self._turns = turns
        self._nursery = nursery
        self._numbers = itertools.count(1)
        self._processes: dict[Key, _BatchProcess] = {}

    def requested(self, install: Install, worker: Worker, index: object) -> None:
        """Connect a lease's worker with its batch process; `index`: of the device.

        Raises ValueError for a device that the lease does not have, or has for itself.
        """
        shares = [share for share in install.shares if share.index == index]
        if type(index) is not int or not shares or not joins(install):
            raise ValueError(f"a batch process of device {index} is requested")
        process = self._process_of(install, shares[0])
        self._nursery.start(self._connect(process, install, shares[0], worker), "batch")

    async def leave(self, lease: LeaseId, killed: Callable[[Worker], object]) -> None:
        """Take out all calls of a lease; `killed` is called with each process that ends.

        Continues where an error interrupted it.
        """
        for process in [one for one in self._processes.values() if lease in one.shares]:
            worker = await asyncio.shield(process.task)
            del process.shares[lease]
            if worker is None:
                continue
            left = False
            try:
                left = bool(process.shares) and await _left(process, worker, lease)
            finally:
                if not left:
                    self._kill(process, worker, lease)
                    killed(worker)
            if process.shares and not worker.gone.done():  # others may have left meanwhile
                self._weigh(process, worker)

    def _kill(self, process: _BatchProcess, worker: Worker, lease: LeaseId) -> None:
        if process.shares:
            about = {"event": "batch_killed", "lease": lease, "pid": worker.pid}
            logger.warning("a run with calls of an ended lease is repeated", extra=about)
        self._forget(process)
        worker.kill()

    async def _connect(
        self, process: _BatchProcess, install: Install, share: Share, worker: Worker
    ) -> None:
        batch = await asyncio.shield(process.task)
        if install.lease not in process.shares:  # it has ended meanwhile
            return
        lanes_max = CONNECTIONS_MAX * len(process.shares)
        if batch is None or batch.gone.done() or batch.lanes >= lanes_max:
            worker.send({"batch": share.index})
            return
        self._weigh(process, batch)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            worker.send({"batch": share.index}, theirs.fileno())
            with contextlib.suppress(AppError):  # the other end is closed, and asks again
                await batch.lane(ours, share.index, share.kind, b"", lease=install.lease)

    def _process_of(self, install: Install, share: Share) -> _BatchProcess:
        assert install.workload is not None, "`joins` was checked"
        assert install.batch is not None, "`joins` was checked"
        key = (install.tenant, install.workload, share.index, share.memory_mib, install.batch)
        process = self._processes.get(key)
        if process is None:
            lease = LeaseId(f"batch-{next(self._numbers)}")
            task = self._nursery.start(self._start(lease, install, share), "batch process")
            process = self._processes[key] = _BatchProcess(id=lease, key=key, task=task)
            task.add_done_callback(lambda _: self._started(process))
        process.shares[install.lease] = share
        return process

    async def _start(self, lease: LeaseId, install: Install, share: Share) -> Worker | None:
        assert install.batch is not None, "`joins` was checked"
        half = replace(share, memory_mib=share.memory_mib // 2)
        start = _start_of_batch(self._start_of(install, (half,)), lease, install.batch)
        try:
            return await self._take(start)
        except AppError as error:
            logger.error("no batch process", extra={"lease": install.lease, "why": error.message})
            return None

    def _started(self, process: _BatchProcess) -> None:
        worker = process.worker
        if worker is None:
            self._forget(process)
            return
        worker.on_turn = functools.partial(self._handle, process)
        worker.gone.add_done_callback(lambda _: self._gone(process, worker))
        if process.shares:
            self._weigh(process, worker)

    def _weigh(self, process: _BatchProcess, worker: Worker) -> None:
        share = process.share
        self._turns.join(process.id, [share], worker)
        self._turns.resize(process.id, share.compute_limit_pct)

    def _handle(self, process: _BatchProcess, meta: Mapping[str, Any]) -> None:
        """Handle one packet of a batch process. Raises ValueError and the like for a wrong one."""
        if "fault" in meta:
            device, reason = read_fault(process.shares.values(), meta["fault"])
            for lease in tuple(process.shares):
                self._failed(lease, device, reason)
        elif "used" in meta:
            index, lease, used_s = meta["used"]
            if type(used_s) is not float or not 0 <= used_s < math.inf:
                raise ValueError("a used time is not a number of seconds")
            if index == process.key[2] and lease in process.shares:
                self._charge(process, lease, used_s)
        elif "left" in meta:
            if (left := process.leaving.get(meta["left"])) is not None:
                left.set()
        else:
            self._turns.requested(process.id, meta)

    def _charge(self, process: _BatchProcess, lease: LeaseId, reported_s: float) -> None:
        """Charge a lease for its part of the runs, in time that the process really had."""
        index = process.key[2]
        process.reported_s += reported_s
        if process.reported_s:
            held = min(1.0, self._turns.used_s(index, process.id) / process.reported_s)
            self._turns.charge(index, lease, reported_s * held)

    def _gone(self, process: _BatchProcess, worker: Worker) -> None:
        """Forget a process that has ended; its leases' workers ask for another one."""
        self._turns.leave(process.id, worker)
        self._forget(process)
        for left in process.leaving.values():
            left.set()

    def _forget(self, process: _BatchProcess) -> None:
        if self._processes.get(process.key) is process:
            del self._processes[process.key]


def _start_of_batch(start: WorkerStart, lease: LeaseId, batch: Batch) -> WorkerStart:
    return dataclasses.replace(
        start,
        lease=lease,
        joins=False,
        batch_wait_ms=batch.wait_ms,
        batch_items_max=batch.size_max,
    )


async def _left(process: _BatchProcess, worker: Worker, lease: LeaseId) -> bool:
    left = process.leaving[lease] = asyncio.Event()
    worker.send({"leave": lease})
    try:
        async with asyncio.timeout(LEAVE_S):  # wait_for may swallow a cancellation
            await left.wait()
    except TimeoutError:
        return False
    finally:
        del process.leaving[lease]
    return True
