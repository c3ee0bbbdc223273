"""The processes that load for leases granted ahead, until they are warm workers or have ended.

Each is a worker of the tenant of its lease, with the memory that was found free for it as its quota
and the lowest priority. It computes nothing and has no lane before a lease has it. When that lease
gets its device first, the lease's first lane waits for the rest of the load, which it would need
itself, and no longer than the whole one took before.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import DeviceId, LeaseId
from corekit.values import replace
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.warm.floors import FLOOR
from remote_gpu.host.warm.table import WarmWorker
from remote_gpu.host.workers.endings import Endings
from remote_gpu.host.workers.worker import Worker

logger = logging.getLogger(__name__)

#: A load that takes this many times as long as the one before has failed.
_SLOWER_MAX = 4.0
#: Beside a load of little, for the start of its process.
_START_S = 1.0


@dataclass(slots=True, kw_only=True, eq=False)
class Load:
    """One worker that loads."""

    warm: WarmWorker
    install: Install
    began_s: float
    worker: Worker | None = None  #: once it is started
    stopped: str = ""  #: why it is to end
    failed: bool = False  #: it ends by a fault, not because its memory or lease is gone
    over: bool = False  #: it has loaded, or nothing of it is left in the lease that has it

    def stop(self, why: str) -> None:
        self.stopped = self.stopped or why
        if self.worker is not None:
            self.worker.kill()

    def fail(self, why: str) -> None:
        self.failed = self.failed or not self.stopped
        self.stop(why)


class Loads:
    """The loads of one host; lives in the event loop."""

    def __init__(
        self,
        leases: Leases,
        endings: Endings,
        nursery: Nursery,
        budget: Budget,
        loaded: Callable[[WarmWorker, Worker, LeaseId | None], None],
        memory_mib: Callable[[Install, int, int], Awaitable[dict[DeviceId, int]]],
    ) -> None:
        """`loaded`: called with a worker that has loaded, and the lease that has it already;
        `memory_mib`: of a worker, by its install, process and what it keeps."""
        self._leases = leases
        self._endings = endings
        self._nursery = nursery
        self._budget = budget
        self._loaded = loaded
        self._memory_mib = memory_mib
        self._loads: dict[str, Load] = {}
        self._taken: dict[LeaseId, Load] = {}
        self.ends: Counter[str] = Counter()  #: loads by their end

    def begin(
        self, name: str, install: Install, take: Callable[[], Awaitable[Worker]], cap_s: float
    ) -> None:
        """Begin the load of a worker of the table. `take`: its process; `cap_s`: it ends itself."""
        warm = self._leases.table.warm.find(name)
        assert warm is not None, "the table asked for it just now"
        now_s = self._leases.now_s()
        load = self._loads[name] = Load(warm=warm, install=install, began_s=now_s)
        self._leases.log.write_warm(warm, "warm_loading", now_s, lease=install.lease)
        self._nursery.start(self._run(load, take, cap_s), "load")

    def stop(self, name: str, why: str) -> bool:
        """End a load; False: this worker does not load."""
        if (load := self._loads.get(name)) is None:
            return False
        load.stop(why)
        return True

    def take(self, lease: LeaseId, name: str) -> bool:
        """A lease has got the worker; False: it does not load."""
        if (load := self._loads.get(name)) is not None:
            self._taken[lease] = load
        return load is not None

    def untake(self, lease: LeaseId) -> bool:
        """A lease has lost its shares, and waits again; False: it has no worker that loads."""
        if (load := self._taken.pop(lease, None)) is not None:
            now_s = self._leases.now_s()
            self._leases.log.write_warm(load.warm, "warm_loading", now_s, lease=lease)
        return load is not None

    async def unused(self, lease: LeaseId) -> None:
        """End the load of a lease that is over before its first lane, within its shares."""
        if (load := self._taken.get(lease)) is not None:
            load.stop(f"lease {lease} is over")
            while not load.over:
                await self._leases.until(lambda: load.over, self._budget.worker_cut_s)

    async def finished(self, lease: LeaseId) -> float:
        """Wait until the worker that a lease has got has loaded or is gone; returns the seconds."""
        if (load := self._taken.get(lease)) is None:
            return 0.0
        asked_s = self._leases.now_s()
        table, limit_s = self._leases.table, load.warm.loading_s + _START_S
        left_s = load.began_s + limit_s - asked_s
        # the client waits for its first lane for so long; a start from cold is within its call
        most_s = self._budget.gateway_answer_s - self._budget.worker_take_s
        if left_s <= most_s:
            await self._leases.until(lambda: load.over or table.find(lease) is None, left_s)
        if table.find(lease) is None:
            await self.unused(lease)
        elif not load.over:
            load.fail("it takes longer than before, or than its client waits")
            await self._leases.until(lambda: load.over, self._budget.worker_cut_s)
        return self._leases.now_s() - asked_s

    # --- one load

    async def _run(self, load: Load, take: Callable[[], Awaitable[Worker]], cap_s: float) -> None:
        try:
            found = await self._warm_worker(load, take, cap_s)
        except AppError as error:  # no process
            found = None
            load.fail(error.message)
        except Exception:
            load.fail("an error of gpud")
            self._nursery.start_end(functools.partial(self._end, load), "load")
            raise
        if found is None or load.stopped:
            load.fail("it failed")
            self._nursery.start_end(functools.partial(self._end, load), "load")
            return
        worker = load.worker
        assert worker is not None
        del self._loads[load.warm.id]
        lease = load.install.lease if self._taken.pop(load.install.lease, None) else None
        self.ends["loaded"] += 1
        about = {"event": "loaded_ahead", "lease": load.install.lease, "warm": found.id}
        logger.info("a worker has loaded ahead of a lease", extra=about)
        load.over = True
        self._loaded(found, worker, lease)
        self._leases.apply(
            self._leases.table.warm_loaded(found, load.install.lease, self._leases.now_s())
        )
        self._leases.wake()

    async def _warm_worker(
        self, load: Load, take: Callable[[], Awaitable[Worker]], cap_s: float
    ) -> WarmWorker | None:
        """The worker, loaded; None: it failed, and other leases shall not try the same."""
        warm, share = load.warm, load.install.shares[0]
        worker = load.worker = await take()
        if load.stopped:
            return None
        worker.card_limits = warm.card_limits
        worker.load(share.index, share.kind, warm.used)
        limit_s = _SLOWER_MAX * warm.loading_s + self._budget.worker_take_s
        kept_bytes = await worker.release(cap_s + limit_s, limit_s)  # its alarm counts from now on
        if kept_bytes is not None and worker.loaded_s > 0:
            memory_mib = await self._memory_mib(load.install, worker.pid, kept_bytes)
            # of a floor's load, a part that failed would fail again: it counts as loaded
            asked = warm.used if load.install.lease.startswith(FLOOR) else ()
            found = replace(
                warm,
                memory_mib=memory_mib,
                loading_s=worker.loaded_s,
                ahead_s=worker.loaded_s,
                used=tuple(dict.fromkeys((*worker.used, *asked))),
                idle_since_s=self._leases.now_s(),
                loads_for=None,
            )
            fits = all(mib <= warm.memory_mib[device] for device, mib in memory_mib.items())
            if fits and not worker.gone.done() and not worker.tainted:
                worker.end_in(cap_s)
                return found
        if not load.stopped:
            self._leases.table.loads.learned.forget(warm)
        return None

    async def _end(self, load: Load) -> None:
        """Await the end of a worker that did not load, wherever its memory is counted."""
        lease, table, warm = load.install.lease, self._leases.table, load.warm
        if load.worker is not None and self._taken.get(lease) is load:
            await self._endings.end(self._endings.of_lease(lease), load.worker)
        if self._taken.get(lease) is load:
            del self._taken[lease]
            table.warm_lost(lease)
        else:
            table.warm.evict((warm.id,))
            ended = self._endings.of_warm(warm)
            if load.worker is not None:
                await self._endings.end(ended, load.worker)
                await self._endings.clean(ended)
            self._leases.log.write_warm(warm, "warm_gone", self._leases.now_s())
        load.over = True
        if self._loads.pop(warm.id, None) is not None:
            self.ends["failed" if load.failed else "stopped"] += 1
            if load.failed:
                table.floors.failed(warm, self._leases.now_s())
            about = {"event": "load_ended", "lease": lease, "warm": warm.id, "why": load.stopped}
            logger.info("a load ahead of a lease has ended without a worker", extra=about)
        self._leases.apply(table.warm_gone(warm.id))
        self._leases.wake()
