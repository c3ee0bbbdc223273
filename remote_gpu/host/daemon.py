"""The daemon of a GPU host: carries out the table of leases. Implements `HostControl`."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import DeviceId, HostId, LeaseId
from gpu_scheduler.model import Device, DeviceKind, Door, EndReason, Health, Symptom
from gpu_scheduler.monitor.health import Fault
from gpu_scheduler.monitor.ports import HostControl
from gpu_scheduler.protocol.host import Install, SessionState
from remote_gpu.host.emulation import real_shares
from remote_gpu.host.environment import worker_variables
from remote_gpu.host.gateway.frames import Peer
from remote_gpu.host.gateway.gateway import Gateway, GatewayLimits
from remote_gpu.host.gateway.lease_ports import LeasePorts, PortSettings
from remote_gpu.host.gateway.listeners import Listeners
from remote_gpu.host.gateway.relays import Relays
from remote_gpu.host.lease_log import LeaseLog
from remote_gpu.host.leases import CAP_S_MAX, Entry, LeaseTable, Step, StepKind
from remote_gpu.host.sharing.turns import Turns
from remote_gpu.host.tls import HostTls
from remote_gpu.host.workers.pool import WorkerPool
from remote_gpu.host.workers.residual_memory import LOOK_S, MemoryProbe, held_memory
from remote_gpu.host.workers.worker import Worker
from remote_gpu.wire.errors import Refusal, Refused
from remote_gpu.wire.proof import Hello
from remote_gpu.worker.control import Start

logger = logging.getLogger(__name__)

LANES_MAX = 16  #: open at once on one lease; each is a thread in its worker
#: A crashed worker is replaced this many times within a lease; then it ends as DEVICE_BAD.
CRASHES_MAX = 5
#: Least quota of a worker, for the data of calls; a request may include no memory.
_MEMORY_FLOOR_BYTES = 64 << 20
_TICK_S_MAX = 1.0  #: longest time between two checks of deadlines


class Link(Protocol):
    """Reports to the scheduler; the link repeats each until it is acknowledged."""

    def session(
        self,
        lease: LeaseId,
        state: SessionState,
        nonce: str,
        reason: EndReason | None = None,
        detail: str = "",
    ) -> None: ...

    def door(self, lease: LeaseId, address: str) -> None: ...

    def cut(self, lease: LeaseId) -> None: ...


class _NoLink:
    """The link of a stopping program: reports are dropped."""

    def session(self, *_: object, **__: object) -> None:
        """Drop the report."""

    door = cut = session


class KilledProcess(Protocol):
    """A process that was killed; the daemon waits until its end is certain."""

    pid: int
    gone: asyncio.Future[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The addresses at which clients reach this host."""

    host: HostId
    listeners: Listeners  #: of the gateway
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    ports: PortSettings  #: of leases with a port of their own
    tls: HostTls | None = None


L = TypeVar("L", bound=Link)


class HostDaemon(Generic[L]):
    """Everything between the link, the gateway and the workers; lives in the event loop."""

    def __init__(
        self,
        table: LeaseTable,
        pool: WorkerPool,
        turns: Turns,
        log: LeaseLog,
        relays: Relays,
        memory: MemoryProbe,
        endpoints: Endpoints,
        budget: Budget,
        nursery: Nursery,
        link_of: Callable[[HostControl], L],
    ) -> None:
        """`memory`: shows whether a card is clean; `link_of`: makes the link to this daemon."""
        self.table = table
        self._pool = pool
        self._turns = turns
        self._log = log
        self._relays = relays
        self._memory = memory
        self._budget = budget
        self._nursery = nursery
        self._workers: dict[LeaseId, asyncio.Task[Worker | None]] = {}
        self._unbinding: dict[LeaseId, asyncio.Task[None]] = {}  # ends of sessions' workers
        self._crashes: dict[LeaseId, int] = {}
        #: Faults of leases that cannot be freed, by lease and stuck process (0: for memory).
        self._faults: dict[tuple[LeaseId, int], dict[DeviceId, Fault]] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self.gateway = Gateway(
            endpoints.host,
            self,
            endpoints.listeners,
            budget,
            nursery,
            endpoints.tls,
            endpoints.limits,
        )
        self._ports = LeasePorts(endpoints.ports, self._serve_port, nursery)
        self.link = link_of(self)
        self._reports: Link = self.link

    def now_s(self) -> float:
        """The machine's monotonic clock, shared with the lease log."""
        return time.monotonic()

    def expire(self) -> float:
        """End everything whose deadline has passed; returns the monotonic time."""
        now_s = self.now_s()
        self.apply(self.table.expire(now_s))
        return now_s

    # --- HostControl: calls of the scheduler

    def installed(self) -> tuple[LeaseId, ...]:
        """Leases installed here, those that are ending included."""
        return tuple(entry.lease for entry in self.table)

    def seen(self, devices: tuple[Device, ...]) -> None:
        """Set the devices that may be lent."""
        self.table.lend({device.id: device.memory_mib for device in devices})

    def leased(self) -> Collection[DeviceId]:
        """Devices that leases occupy, until their workers are gone."""
        held = (entry.install.shares for entry in self.table if entry.occupying)
        return {share.device for shares in held for share in shares}

    def faults(self) -> Mapping[DeviceId, Fault]:
        """Devices with a process that cannot be killed, or with memory that is not freed."""
        return {device: fault for found in self._faults.values() for device, fault in found.items()}

    def full_state(self, installs: tuple[Install, ...], epoch: int) -> None:
        """Replace the installed leases by the scheduler's list, after a (re)connect."""
        logger.debug("full state", extra={"installs": len(installs), "epoch": epoch})
        now_s = self.expire()
        self.apply(self.table.full_state(installs, now_s))
        for install in installs:
            self._time_worker(install.lease)

    def install(self, install: Install) -> None:
        """Install a lease, or change the remaining time of an installed one."""
        now_s = self.expire()
        self.apply(self.table.install(install, now_s))
        self._time_worker(install.lease)

    def end(self, lease: LeaseId, fence: int, reason: EndReason) -> None:
        """End a lease, kill its processes, then report `cut`; an unknown lease is cut already."""
        del fence  # ids of leases are unique
        steps = self.table.end(lease, reason, "ended by the scheduler", reported=False)
        if steps:
            self.apply(steps)
        elif lease not in self.installed():
            self._reports.cut(lease)

    def staged(self, lease: LeaseId, connect_by_s: float) -> None:
        """Set the time by which the first session must open."""
        self.table.staged(lease, connect_by_s, self.now_s())
        self._wake()

    def resize(self, lease: LeaseId, compute_limit_pct: int) -> None:
        """Set another elastic limit for its shares."""
        self.table.resize(lease, compute_limit_pct)
        self._turns.resize(lease, compute_limit_pct)

    def link_changed(self, connected: bool) -> None:
        """Log the change: leases continue without the scheduler, until their own deadlines."""
        logger.info("scheduler reachable" if connected else "scheduler not reachable")

    # --- the table's steps

    def apply(self, steps: list[Step]) -> None:
        """Carry out steps in order; slow ones in tasks of their own."""
        for step in steps:
            self._apply_one(step)
        if steps:
            self._wake()

    def _apply_one(self, step: Step) -> None:
        self._log.write(step, step.kind.value, self.now_s())
        if step.kind is StepKind.PLACED:
            self._open_port(step.lease)
        elif step.kind is StepKind.KILL:
            self._nursery.start(self._kill(step.lease), "kill")
        elif step.kind is StepKind.OPENED:
            self._report(step, SessionState.OPENED)
        elif step.kind is StepKind.RETURNED:
            self._report(step, SessionState.FREED)
        elif step.kind is StepKind.UNBOUND:
            self.gateway.session_ended(step)
            self._unbind(step.lease)
        elif step.kind is StepKind.CUT:
            self._reports.cut(step.lease)
        elif step.kind is StepKind.CLOSED:
            self._crashes.pop(step.lease, None)
            self._ports.close(step.lease)
            self.gateway.session_ended(step)
            if step.reported:
                self._report(step, SessionState.CLOSED)

    def _open_port(self, lease: LeaseId) -> None:
        """Listen for a lease with a port of its own, and report the address."""
        entry = self.table.find(lease)
        if entry is None or entry.install.door is not Door.PORT:
            return
        try:
            address = self._ports.open(entry.install)
        except OSError as error:
            detail = f"no port can be opened for the lease: {error.strerror or error}"
            logger.error("no port", extra={"event": "no_port", "lease": lease, "why": detail})
            self.apply(self.table.end(lease, EndReason.REVOKED, detail))
            return
        self._reports.door(lease, address)

    async def _serve_port(self, install: Install, stream: socket.socket, source: str) -> None:
        """Serve a connection at a lease's own port, by the middleware of its request."""
        name = install.middleware or "builtin"
        if name == "builtin":
            await self.gateway.serve_port(install.lease, stream, source)
            return
        try:
            await self._relays.serve_port(install, name, stream)
        except Refused as refused:
            about = {"event": "refused", "lease": install.lease, "why": refused.message}
            logger.warning("a connection to a lease's port is refused", extra=about)

    def _report(self, step: Step, state: SessionState) -> None:
        self._reports.session(step.lease, state, step.nonce, step.reason, step.detail)

    def _unbind(self, lease: LeaseId) -> None:
        """End the lanes, relays and memory of a session that is over. The lease continues,
        as does a worker that has no lane yet."""
        self._relays.unbind(lease)
        if (worker := self._started(lease)) is None:
            return
        del self._workers[lease]
        self._turns.leave(lease, worker)
        worker.kill()
        before = self._unbinding.get(lease)
        self._unbinding[lease] = self._nursery.start(self._unbound(lease, worker, before), "unbind")

    async def _unbound(
        self, lease: LeaseId, worker: Worker, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await before
        await self._end(lease, worker)

    async def _kill(self, lease: LeaseId) -> None:
        """Kill the lease's worker and server, await their end, and free its shares."""
        server = self._relays.leave(lease)
        task = self._workers.pop(lease, None)
        worker = await task if task is not None else None
        if worker is not None:
            worker.kill()
            await self._end(lease, worker)
        if (unbinding := self._unbinding.pop(lease, None)) is not None:
            await unbinding
        if server is not None:
            await self._end(lease, server)
        await self._clean(lease)
        self.apply(self.table.gone(lease))

    async def _end(self, lease: LeaseId, process: KilledProcess) -> None:
        done, _ = await asyncio.wait({process.gone}, timeout=self._budget.worker_cut_s)
        if not done:
            await self._stuck(lease, process)

    async def _stuck(self, lease: LeaseId, process: KilledProcess) -> None:
        """Await the end of a process that is blocked in a driver or a file system, with its shares.

        The devices get no new leases until then; leases that wait for the shares end at once.
        """
        detail = f"process {process.pid} of lease {lease} cannot be killed"
        logger.error("stuck", extra={"event": "stuck", "lease": lease, "pid": process.pid})
        held = dict.fromkeys(self.table.devices_of(lease), detail)
        self._suspect(lease, process.pid, held, Symptom.HUNG)
        await process.gone
        logger.info("unstuck", extra={"event": "unstuck", "lease": lease, "pid": process.pid})
        del self._faults[lease, process.pid]

    async def _clean(self, lease: LeaseId) -> None:
        """Wait until the lease's cards are free of its memory; SUSPECT when that takes too long."""
        deadline_s = self.now_s() + self._budget.worker_cut_s
        while held := await held_memory(self._memory, self.table, lease):
            if self.now_s() >= deadline_s and (lease, 0) not in self._faults:
                logger.error("memory held", extra={"event": "memory_held", "lease": lease})
                self._suspect(lease, 0, held, Symptom.MEMORY_HELD)
            await asyncio.sleep(LOOK_S)
        self._faults.pop((lease, 0), None)

    def _suspect(
        self, lease: LeaseId, pid: int, why: Mapping[DeviceId, str], symptom: Symptom
    ) -> None:
        """Mark devices: no new leases; those that wait for this lease's shares end."""
        self._faults[lease, pid] = {
            device: Fault(health=Health.SUSPECT, symptom=symptom, detail=detail)
            for device, detail in why.items()
        }
        self.apply(self.table.stuck(lease, next(iter(why.values()), "")))

    # --- the gateway's needs

    async def until(self, ready: Callable[[], bool], wait_s: float) -> bool:
        """Wait until a change of the table makes `ready` true, or `wait_s` has elapsed."""
        deadline_s = self.now_s() + wait_s
        while not ready():
            left_s = deadline_s - self.now_s()
            if left_s <= 0:
                return False
            await self._next_change(left_s)
        return True

    async def _next_change(self, wait_s: float) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(change)
        await asyncio.wait({change}, timeout=wait_s)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done():
                change.set_result(None)

    async def hand_over(self, entry: Entry, device: int, stream: socket.socket, key: bytes) -> None:
        """Give an authenticated lane to the lease's worker; the first lane starts the worker.

        With a `key` the worker continues in TLS and sends the welcome there. A worker that dies
        before it took the lane is replaced: none of the lane's calls was served.
        """
        kind = next(share.kind for share in entry.install.shares if share.index == device)
        session = entry.nonce
        ended = Refused(Refusal.ENDED, f"lease {entry.lease} or its session is over")

        def is_current() -> bool:
            return self.table.find(entry.lease) is entry and entry.nonce == session

        for _ in range(CRASHES_MAX):
            if not is_current():  # no step would end its worker
                raise ended
            worker = await asyncio.shield(self._worker_of(entry))
            if not is_current() or entry.lease not in self._workers:
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
                Peer(stream).send_now({"tls": {}} if key else {"welcome": {}})
                return
            self._worker_gone(entry, worker)  # its own callback may be a moment behind
        raise Refused(Refusal.NOT_READY, "workers of this lease die at startup; see gpud's log")

    async def relay(
        self, entry: Entry, hello: Hello, peer: Peer, welcome: dict[str, object]
    ) -> None:
        """Relay an authenticated connection to the lease's server; the first relay starts it."""
        await self._relays.serve(entry.install, hello, peer, welcome)

    def _started(self, lease: LeaseId) -> Worker | None:
        """The lease's worker, once it is started."""
        task = self._workers.get(lease)
        return None if task is None or not task.done() or task.cancelled() else task.result()

    def _worker_of(self, entry: Entry) -> asyncio.Task[Worker | None]:
        task = self._workers.get(entry.lease)
        if task is None or (task.done() and task.result() is None):
            task = self._nursery.start(self._start_worker(entry), "worker")
            self._workers[entry.lease] = task
        return task

    async def _start_worker(self, entry: Entry) -> Worker | None:
        memory_mib = sum(share.memory_mib for share in entry.install.shares)
        real = real_shares(entry.install.shares)
        start = Start(
            lease=entry.lease,
            tenant=entry.install.tenant,
            memory_bytes=max(memory_mib << 20, _MEMORY_FLOOR_BYTES),
            cap_s=self._cap_s(entry),
            devices={str(share.index): share.device for share in entry.install.shares},
            variables=worker_variables(real),
            kinds=tuple(sorted({share.kind for share in real})) or (DeviceKind.CPU,),
        )
        try:
            worker = await self._pool.take(start)
        except AppError as error:
            logger.error("no worker", extra={"lease": entry.lease, "why": error.message})
            return None
        worker.end_in(self._cap_s(entry))  # the remaining time may have changed meanwhile
        worker.on_turn = functools.partial(self._turns.requested, entry.lease)
        worker.gone.add_done_callback(lambda _: self._worker_gone(entry, worker))
        self._turns.join(entry.lease, entry.install.shares, worker)
        return worker

    def _cap_s(self, entry: Entry) -> float:
        """Seconds until a worker ends itself, a little after gpud should have ended it."""
        left_s = CAP_S_MAX if entry.last_s is None else entry.last_s - self.now_s()
        return left_s + self._budget.worker_slack_s

    def _time_worker(self, lease: LeaseId) -> None:
        """Set the remaining time of a deadline lease's worker."""
        entry, worker = self.table.find(lease), self._started(lease)
        if entry is not None and worker is not None and not entry.held_by_session:
            worker.end_in(self._cap_s(entry))

    def _worker_gone(self, entry: Entry, worker: Worker) -> None:
        """Forget a crashed worker: its lanes are cut, and the next lane starts a new one."""
        self._turns.leave(entry.lease, worker)
        if self._started(entry.lease) is not worker:
            return  # killed on purpose
        del self._workers[entry.lease]
        crashes = self._crashes[entry.lease] = self._crashes.get(entry.lease, 0) + 1
        logger.error("worker died", extra={"lease": entry.lease, "crashes": crashes})
        if crashes >= CRASHES_MAX:
            detail = f"its worker died {crashes} times"
            self.apply(self.table.end(entry.lease, EndReason.DEVICE_BAD, detail))

    # --- tasks for the life of the program

    async def keep_deadlines(self) -> None:
        """End leases when their own deadlines pass, with or without a scheduler."""
        while True:
            now_s = self.expire()
            next_s = self.table.next_deadline_s()
            wait_s = _TICK_S_MAX if next_s is None else min(_TICK_S_MAX, max(0.0, next_s - now_s))
            await self._next_change(wait_s)

    async def close(self) -> None:
        """End every lease, because this host's program is stopping."""
        for lease in self.installed():
            self.apply(self.table.end(lease, EndReason.HOST_LOST, "the host's program is stopping"))
        cut_s = self._budget.worker_cut_s  # processes that are left die with the spawner
        if not await self.until(lambda: not any(e.occupying for e in self.table), cut_s):
            logger.error("workers do not end", extra={"leases": self.installed()})
        self._ports.close_all()
        self._reports = _NoLink()
