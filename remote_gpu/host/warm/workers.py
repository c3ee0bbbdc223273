"""The warm workers of a host as processes: kept at the end of a lease, used by the next, evicted.

The parked programs of functions (`host/runs`) are among them, by the same table and limits.

A worker is kept only if it was asked to release its lease, answered that it keeps its models and
nothing else, and has never announced code of a caller: gpud notes that announcement before the code
runs, so no worker that ran such code is kept, whatever it reports.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.floors import HostFloor
from gpu_scheduler.model import DeviceKind
from gpu_scheduler.monitor.health import HELD_MIB_MIN
from gpu_scheduler.protocol.host import Install, WarmLimits
from remote_gpu.host.devices.emulation import real_shares
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.leases.steps import LeaseStep, LeaseStepKind
from remote_gpu.host.warm.loads import Loads
from remote_gpu.host.warm.table import WarmWorker
from remote_gpu.host.workers.endings import Endings, KilledProcess
from remote_gpu.host.workers.worker import Worker, private_bytes
from remote_gpu.worker import control

logger = logging.getLogger(__name__)

#: Part of the machine's memory that must be available; below it warm workers are evicted.
AVAILABLE_PCT_MIN = 5
_MEMINFO = Path("/proc/meminfo")
_CHECK_S = 1.0  #: between two checks of the limits
_ADOPT_S = 1.0  #: longest wait for a worker whose lease is ending


class _Kind(NamedTuple):
    """The leases that one warm worker may serve, as far as their requests differ."""

    tenant: str
    workload: str | None
    devices: frozenset[DeviceId]

    @classmethod
    def of(cls, install: Install) -> _Kind:
        devices = frozenset(share.device for share in install.shares)
        return cls(install.tenant, install.workload, devices)


class WarmProcess(KilledProcess, Protocol):
    """A worker, or a parked program."""

    def kill(self) -> None: ...
    def when_gone(self, act: Callable[[], None]) -> None: ...
    def end_in(self, cap_s: float) -> None: ...


class ParkedProgram(WarmProcess, Protocol):
    """The process of a function's run, between two leases."""

    def pids(self) -> list[int]:
        """All its processes."""
        ...


class WarmWorkers:
    """The processes of the table's warm workers; lives in the event loop."""

    def __init__(
        self,
        leases: Leases,
        endings: Endings,
        changed: Callable[[], None],
        budget: Budget,
        nursery: Nursery,
        *,
        enabled: bool = True,
    ) -> None:
        """`changed`: called when idle workers have come or gone; `enabled`: False keeps none
        (`gpud --no-warm-workers`)."""
        self._leases = leases
        self._table = leases.table.warm
        self._endings = endings
        self._changed = changed
        self._budget = budget
        self._nursery = nursery
        self._enabled = enabled
        #: Of the table's, idle or ending.
        self._processes: dict[str, tuple[WarmWorker, WarmProcess]] = {}
        self._taken: dict[LeaseId, tuple[WarmWorker, Worker]] = {}  # before a lease's first lane
        self._programs: dict[LeaseId, tuple[WarmWorker, WarmProcess]] = {}  # before its run
        #: Ends of leases whose workers may become warm in a moment; the second future is done when
        #: the room of such a worker is needed.
        self._ending: dict[asyncio.Future[None], tuple[_Kind, asyncio.Future[None]]] = {}
        self._numbers = itertools.count(1)
        self.loads = Loads(leases, endings, nursery, budget, self._loaded, _memory_mib)
        #: Of leases that began in a worker that was loaded ahead: the seconds before they had it.
        self.ahead_s: dict[LeaseId, float] = {}
        self._alarm_s: dict[str, float] = {}  #: of idle workers of floors: when it was last set
        self.rest_s: dict[LeaseId, float] = {}  #: and those for which they waited for the rest

    @property
    def allowed(self) -> bool:
        """Whether processes may stay without a lease."""
        return self._enabled and self._table.allowed

    # --- the end of a lease

    def may_keep(self, worker: Worker) -> bool:
        """Whether the worker of a lease that ends may become warm."""
        # one that loaded nothing saves nothing
        return (
            self.allowed and worker.loaded_s > 0 and not worker.tainted and not worker.gone.done()
        )

    async def keep(self, install: Install, worker: Worker) -> str:
        """Keep the worker of a lease that has ended; returns its id. "": it must be killed."""
        if not self.may_keep(worker):
            return ""
        assert install.workload is not None, "leases without a workload keep no worker"
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        needed: asyncio.Future[None] = loop.create_future()
        self._ending[done] = _Kind.of(install), needed
        for entry in self._leases.table:
            if entry.waits:
                self.room_needed(entry.install)
        try:
            return await self._keep(install, install.workload, worker, needed)
        finally:
            del self._ending[done]
            done.set_result(None)
            needed.cancel()

    def room_needed(self, install: Install) -> None:
        """Kill ending workers whose calls still run, if they are in the way of a waiting lease."""
        wanted = {share.device for share in install.shares}
        for kind, needed in self._ending.values():
            if not needed.done() and wanted & kind.devices:
                needed.set_result(None)

    async def _keep(
        self, install: Install, workload: str, worker: Worker, needed: asyncio.Future[None]
    ) -> str:
        take_s = self._budget.worker_take_s
        kept_bytes = await worker.release(self._cap_s(), take_s, needed)
        if kept_bytes is None:
            about = {"event": "warm_refused", "lease": install.lease, "pid": worker.pid}
            logger.info("a worker that computes, hangs or is tainted is not kept", extra=about)
            return ""
        await worker.clear()
        warm = WarmWorker(
            id=self._new_id(worker),
            tenant=install.tenant,
            workload=workload,
            memory_mib=await _memory_mib(install, worker.pid, kept_bytes),
            card_limits=worker.card_limits,
            loading_s=worker.loaded_s,
            idle_since_s=self._leases.now_s(),
            models=tuple(share.model for share in install.shares),
            used=worker.used,
        )
        return warm.id if self._add(warm, worker) else ""

    def _add(self, warm: WarmWorker, worker: WarmProcess) -> bool:
        if worker.gone.done():
            return False
        self._processes[warm.id] = warm, worker
        worker.when_gone(functools.partial(self._gone, warm, worker))
        self._leases.log.write_warm(warm, "warm_kept", self._leases.now_s())
        logger.info("a worker stays warm", extra={"event": "warm_kept", **_about(warm)})
        self._leases.apply(self._leases.table.warm_kept(warm, self._leases.now_s()))
        self._changed()
        return True

    def _new_id(self, worker: WarmProcess) -> str:
        return f"w{worker.pid}-{next(self._numbers)}"

    def _cap_s(self) -> float:
        """Seconds until an idle worker ends itself, some time after gpud should have ended it."""
        return self._table.limits.idle_s_max + self._budget.worker_cut_s

    async def park(self, install: Install, program: ParkedProgram, loading_s: float) -> str:
        """Keep the program of a lease that has ended; returns its id. "": it has died."""
        assert install.workload is not None, "leases without a workload keep no program"
        warm = WarmWorker(
            id=self._new_id(program),
            tenant=install.tenant,
            workload=install.workload,
            memory_mib=await _program_mib(install, program.pids()),
            card_limits=(),
            loading_s=loading_s,
            idle_since_s=self._leases.now_s(),
            models=tuple(share.model for share in install.shares),
            program=True,
        )
        return warm.id if self._add(warm, program) else ""

    def program(self, lease: LeaseId) -> WarmProcess | None:
        """The program that a lease has, or gets now, for its run; None: there is none."""
        if lease not in self._programs:
            if not (name := self._leases.table.adopt(lease, program=True)):
                return None
            self.take(lease, name)
        warm, program = self._programs.pop(lease)
        self._leases.log.write_warm(warm, "warm_start", self._leases.now_s(), lease=lease)
        return program

    def id_of(self, process: WarmProcess) -> str:
        """The id of a process that no lease has, nor is given to; "": it is none, or ends."""
        found = (name for name, (_, one) in self._processes.items() if one is process)
        return next((name for name in found if self._table.find(name) is not None), "")

    def unused_program(self, lease: LeaseId) -> None:
        """Park the program of a lease that ended without a run again."""
        if (found := self._programs.pop(lease, None)) is not None:
            warm, program = found
            again = replace(warm, id=self._new_id(program), idle_since_s=self._leases.now_s())
            self._add(again, program)

    # --- the next lease

    def load(
        self, step: LeaseStep, install: Install, take: Callable[[], Awaitable[Worker]]
    ) -> None:
        """Have a new worker load for a lease ahead."""
        for name in step.warm:
            self.loads.begin(name, install, take, self._cap_s())

    def _loaded(self, warm: WarmWorker, worker: Worker, lease: LeaseId | None) -> None:
        """A worker has loaded, for a lease that has it already or waits for its shares."""
        worker.when_gone(functools.partial(self._gone, warm, worker))
        if lease is not None:
            self._taken[lease] = warm, worker
            return
        self._processes[warm.id] = warm, worker
        self._leases.log.write_warm(warm, "warm_kept", self._leases.now_s())
        self._changed()

    def placed(self, step: LeaseStep) -> None:
        for name in step.warm:
            self.take(step.lease, name)

    def unplaced(self, step: LeaseStep) -> None:
        """Take back the worker of a lease that lost its shares before its session opened."""
        for name in step.warm:
            if self.loads.untake(step.lease):
                continue
            found = self._programs.pop(step.lease, None) or self._taken.pop(step.lease)
            warm, worker = self._processes[name] = found
            self._leases.log.write_warm(warm, "warm_kept", self._leases.now_s())
            if worker.gone.done():
                self._gone(warm, worker)
            self._changed()

    def take(self, lease: LeaseId, name: str) -> None:
        """Reserve a worker that the table gave to a lease, for its first lane."""
        if self.loads.take(lease, name):
            return
        warm, process = self._processes.pop(name)
        if isinstance(process, Worker):
            self._taken[lease] = warm, process
        else:
            self._programs[lease] = warm, process
        self._changed()

    async def hand_over(self, lease: LeaseId, start: control.WorkerStart) -> Worker | None:
        """The worker that was taken for a lease, bound to it. None: there is none, or it died."""
        rest_s = await self.loads.finished(lease)
        if lease not in self._taken:
            await self._adopt(lease)
            rest_s += await self.loads.finished(lease)  # it may still load
        if (found := self._taken.pop(lease, None)) is None:
            return None
        warm, worker = found
        try:
            is_bound = await worker.restart(start)
        except Exception:  # its lease must not end before it does
            worker.kill()
            await worker.gone
            raise
        if not is_bound:
            logger.info("a warm worker died", extra={"event": "warm_lost", **_about(warm)})
            return None
        now_s = self._leases.now_s()
        self._leases.log.write_warm(warm, "warm_start", now_s, lease=lease)
        idle_s = round(now_s - warm.idle_since_s, 3)
        about = {"event": "warm_start", "lease": lease, "idle_s": idle_s, **_about(warm)}
        if warm.ahead_s:
            self.rest_s[lease] = rest_s
            self.ahead_s[lease] = about["ahead_s"] = round(max(0.0, warm.ahead_s - rest_s), 3)
        logger.info("a lease starts in a warm worker", extra=about)
        return worker

    async def _adopt(self, lease: LeaseId) -> None:
        """Take a worker that became warm after the lease was placed, or is about to.

        Several leases may wait for several workers: each that becomes warm serves one of them.
        """
        entry = self._leases.table.find(lease)
        if entry is None or entry.install.workload is None:
            return
        kind, now_s = _Kind.of(entry.install), asyncio.get_running_loop().time
        until_s = now_s() + _ADOPT_S
        while not (name := self._leases.table.adopt(lease)):
            ending = [done for done, (of, _) in self._ending.items() if of == kind]
            left_s = until_s - now_s()
            if not ending or left_s <= 0:
                return
            await asyncio.wait(ending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        self.take(lease, name)

    async def unused(self, lease: LeaseId) -> None:
        """Keep the worker of a lease that ended before its first lane."""
        await self.loads.unused(lease)
        if (found := self._taken.pop(lease, None)) is not None:
            warm, worker = found
            again = replace(warm, id=self._new_id(worker), idle_since_s=self._leases.now_s())
            self._add(again, worker)

    # --- eviction

    def evict(self, step: LeaseStep) -> None:
        """Kill workers that the table has marked as ending."""
        for name in step.warm:
            if self.loads.stop(name, step.detail):
                continue
            if name not in self._processes:  # its load had not begun
                self._leases.apply(self._leases.table.warm_gone(name))
                continue
            warm, worker = self._processes[name]
            about = {"event": "evicted", "why": step.detail, **_about(warm)}
            logger.info("a warm worker is evicted", extra=about)
            worker.kill()
            self._nursery.start_end(functools.partial(self._end, warm, worker), "evict")
        self._changed()

    async def _end(self, warm: WarmWorker, worker: WarmProcess) -> None:
        """Await the end of a killed worker and of its memory on cards; then its room is free."""
        ended = self._endings.of_warm(warm)
        await self._endings.end(ended, worker)
        await self._endings.clean(ended)
        del self._processes[warm.id]
        self._leases.log.write_warm(warm, "warm_gone", self._leases.now_s())
        self._leases.apply(self._leases.table.warm_gone(warm.id))

    def _gone(self, warm: WarmWorker, worker: WarmProcess) -> None:
        """Withdraw a worker that died while it was idle; `evict` awaits those that it kills."""
        if self._table.find(warm.id) is not None:
            logger.warning("a warm worker died", extra={"event": "warm_lost", **_about(warm)})
            self._table.evict((warm.id,))
            self._leases.table.floors.failed(warm, self._leases.now_s())
            self._nursery.start_end(functools.partial(self._end, warm, worker), "warm worker")
            self._changed()

    def limit(self, limits: WarmLimits) -> None:
        """Apply other limits."""
        if limits == self._table.limits:
            return
        self._table.limits = limits
        for _, worker in self._processes.values():
            worker.end_in(self._cap_s())
        self.check()

    async def watch(self) -> None:
        """Check the limits again and again; never ends."""
        while True:
            await asyncio.sleep(_CHECK_S)
            self.check()

    def check(self) -> None:
        """Evict those beyond the limits, and more while the machine lacks memory."""
        if not len(self._table) and not self._table.floors:
            return
        now_s, missing_mib = self._leases.now_s(), _missing_mib()
        if self.allowed:
            if missing_mib <= 0:
                self._load_floors(now_s)
            self._keep_floors(now_s)
        self._leases.apply(self._leases.table.limit_warm(now_s))
        if missing_mib > 0:
            names = self._table.to_free(missing_mib)
            self._leases.table.floors.displaced(names, now_s)
            self._leases.apply(self._leases.table.evict_warm(names, "the machine lacks memory"))

    def keep_warm(self, floors: Iterable[HostFloor]) -> None:
        """Keep the workers of these floors, and load those that are missing."""
        for name in self._leases.table.floors.set(floors, self._leases.now_s()):
            self._processes[name][1].end_in(self._cap_s())
        self.check()

    def _load_floors(self, now_s: float) -> None:
        """Begin loads of floors."""
        table = self._leases.table
        queued = [entry.install for entry in table if entry.waits]
        holders = [entry.install for entry in table if entry.occupying]
        found = table.floors.changes(queued, holders, table.memory_mib, now_s)
        steps = table.evict_warm(found.evict, "a warm floor needs its memory")
        for worker in found.load:
            assert worker.loads_for is not None
            self._table.keep(worker)
            steps.append(
                LeaseStep(
                    kind=LeaseStepKind.LOAD,
                    lease=worker.loads_for,
                    fence=0,
                    shares=(),
                    warm=(worker.id,),
                )
            )
        self._leases.apply(steps)

    def _keep_floors(self, now_s: float) -> None:
        """Let the idle workers of floors stay."""
        kept = self._table.kept()
        for name in kept:
            if now_s - self._alarm_s.get(name, 0.0) >= self._table.limits.idle_s_max / 2:
                self._alarm_s[name] = now_s
                self._processes[name][1].end_in(self._cap_s())
        self._alarm_s = {name: at_s for name, at_s in self._alarm_s.items() if name in kept}

    def evict_all(self) -> None:
        """Evict all, because the program stops."""
        self._leases.apply(self._leases.table.evict_warm(self._table.ids(), "gpud stops"))


async def _memory_mib(install: Install, pid: int, kept_bytes: int) -> dict[DeviceId, int]:
    """The memory of each device that the end of a worker frees, within its lease's shares.

    On a CPU that of the process; on a card what its quota counts, and the driver's own for it; on
    an emulated device what the quota counts.
    """
    private = await asyncio.to_thread(private_bytes, pid)
    on_card = kept_bytes + (HELD_MIB_MIN << 20)
    found: dict[DeviceId, int] = {}
    for share in install.shares:
        used_bytes = private if share.kind is DeviceKind.CPU else on_card
        if not real_shares((share,)):
            used_bytes = kept_bytes
        found[share.device] = min(share.memory_mib, max(1, used_bytes >> 20))
    return found


async def _program_mib(install: Install, pids: list[int]) -> dict[DeviceId, int]:
    """The memory of each device that the end of a program frees, within its lease's shares: none on
    an emulated device; a card never has a program."""
    sizes = await asyncio.to_thread(lambda: [private_bytes(pid) for pid in pids])
    used_mib = {DeviceKind.CPU: sum(sizes) >> 20}
    return {
        share.device: min(share.memory_mib, max(1, used_mib.get(share.kind, 0)))
        for share in install.shares
    }


def _missing_mib() -> int:
    """The memory that the machine lacks to have `AVAILABLE_PCT_MIN` available; 0 or less = none."""
    lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    kib = {line.partition(":")[0]: int(line.split()[1]) for line in lines}
    return (kib["MemTotal"] * AVAILABLE_PCT_MIN // 100 - kib["MemAvailable"]) >> 10


def _about(warm: WarmWorker) -> dict[str, object]:
    return {
        "warm": warm.id,
        "tenant": warm.tenant,
        "workload": warm.workload,
        "memory_mib": dict(warm.memory_mib),
        "loading_s": round(warm.loading_s, 3),
    }
