"""One GPU host: the table of leases, carried out. Implements the monitor's HostControl port."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.model import Device, Door, EndReason, Health, Symptom
from gpu_scheduler.monitor.health import Fault
from gpu_scheduler.protocol.host import Install, SessionState
from remote_gpu.host.gateway.frames import Peer
from remote_gpu.host.gateway.gateway import Gateway
from remote_gpu.host.gateway.lease_ports import LeasePorts
from remote_gpu.host.gateway.relays import Relays
from remote_gpu.host.lease_log import LeaseLog
from remote_gpu.host.leases import CAP_S_MAX, Entry, LeaseTable, Step, StepKind
from remote_gpu.host.servers.variables import worker_variables
from remote_gpu.host.sharing.turns import Turns
from remote_gpu.host.workers.pool import Worker, WorkerPool
from remote_gpu.host.workers.residual_memory import LOOK_S, MemoryProbe, held_memory
from remote_gpu.wire.errors import Refusal, Refused
from remote_gpu.wire.proof import Hello
from remote_gpu.worker.control import Start

logger = logging.getLogger(__name__)

LANES_MAX = 16  #: open at once on one lease; each is a thread in its worker
#: A worker that crashed is replaced this often within one lease; then the device is not to blame.
CRASHES_MAX = 5
#: Every call may carry this much whatever the lease's memory is; a request may ask for none.
_MEMORY_FLOOR_BYTES = 64 << 20
_TICK_S_MAX = 1.0  #: deadlines are looked at this often at least


class Link(Protocol):
    """What the daemon tells the scheduler; repeated by the link until acknowledged."""

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


class KilledProcess(Protocol):
    """A process that was killed, and whose end must be certain."""

    pid: int
    gone: asyncio.Future[None]


class HostDaemon:
    """Everything between the link, the gateway and the workers; lives in the event loop."""

    def __init__(
        self,
        table: LeaseTable,
        pool: WorkerPool,
        turns: Turns,
        log: LeaseLog,
        budget: Budget,
        nursery: Nursery,
    ) -> None:
        self.table = table
        self._pool = pool
        self._turns = turns
        self._log = log
        self._budget = budget
        self._nursery = nursery
        self._workers: dict[LeaseId, asyncio.Task[Worker | None]] = {}
        self._unbinding: dict[LeaseId, asyncio.Task[None]] = {}  # ends of sessions' workers
        self._crashes: dict[LeaseId, int] = {}
        self._faults: dict[LeaseId, dict[DeviceId, Fault]] = {}  # of leases that cannot be cut
        self._waiting: list[asyncio.Future[None]] = []
        self.gateway: Gateway | None = None
        self.doors: Relays | None = None
        self.ports: LeasePorts | None = None
        self.link: Link | None = None
        self.memory: MemoryProbe | None = None  #: what tells whether a card is clean

    def now_s(self) -> float:
        """The machine's monotonic clock, shared with the lease log."""
        return time.monotonic()

    # --- HostControl: what the scheduler says

    def installed(self) -> tuple[LeaseId, ...]:
        """Leases whose doors are open here."""
        return tuple(entry.lease for entry in self.table)

    def seen(self, devices: tuple[Device, ...]) -> None:
        """Lend what is there."""
        self.table.lend({device.id: device.memory_mib for device in devices})

    def leased(self) -> Collection[DeviceId]:
        """Devices that a lease uses, or used until its worker is gone."""
        held = (entry.install.shares for entry in self.table if entry.occupying)
        return {share.device for shares in held for share in shares}

    def faults(self) -> Mapping[DeviceId, Fault]:
        """Devices whose last user cannot be killed."""
        return {device: fault for found in self._faults.values() for device, fault in found.items()}

    def full_state(self, installs: tuple[Install, ...], epoch: int) -> None:
        """The scheduler's truth after a (re)connect."""
        logger.debug("full state", extra={"installs": len(installs), "epoch": epoch})
        now_s = self.now_s()
        self.apply([*self.table.expire(now_s), *self.table.full_state(installs, now_s)])
        for install in installs:
            self._time_worker(install.lease)

    def install(self, install: Install) -> None:
        """Open a door; of a lease that is here, its length may be another one now."""
        now_s = self.now_s()
        self.apply([*self.table.expire(now_s), *self.table.install(install, now_s)])
        self._time_worker(install.lease)

    def end(self, lease: LeaseId, fence: int, reason: EndReason) -> None:
        """Close a door, kill, free; then `cut`. One that is not here is cut already."""
        del fence  # ids of leases are never used twice
        steps = self.table.end(lease, reason, "ended by the scheduler", reported=False)
        if steps:
            self.apply(steps)
        elif self.link is not None and lease not in self.installed():
            self.link.cut(lease)

    def staged(self, lease: LeaseId, connect_by_s: float) -> None:
        """The first session must open in time."""
        self.table.staged(lease, connect_by_s, self.now_s())
        self._wake()

    def resize(self, lease: LeaseId, compute_limit_pct: int) -> None:
        """Another elastic limit for its shares."""
        self.table.resize(lease, compute_limit_pct)
        self._turns.resize(lease, compute_limit_pct)

    def link_changed(self, connected: bool) -> None:
        """Leases live on without the scheduler, by their own deadlines."""
        logger.info("scheduler reachable" if connected else "scheduler not reachable")

    # --- the table's steps

    def apply(self, steps: list[Step]) -> None:
        """Carry steps out, in order; slow ones in tasks of their own."""
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
            self._tell(step, SessionState.OPENED)
        elif step.kind is StepKind.RETURNED:
            self._tell(step, SessionState.FREED)
        elif step.kind is StepKind.UNBOUND:
            if self.gateway is not None:
                self.gateway.session_ended(step)
            self._unbind(step.lease)
        elif step.kind is StepKind.CUT and self.link is not None:
            self.link.cut(step.lease)
        elif step.kind is StepKind.CLOSED:
            self._crashes.pop(step.lease, None)
            if self.ports is not None:
                self.ports.close(step.lease)
            if self.gateway is not None:
                self.gateway.session_ended(step)
            if step.reported:
                self._tell(step, SessionState.CLOSED)

    def _open_port(self, lease: LeaseId) -> None:
        """Of a lease that is reached so: listen, and tell the scheduler where."""
        entry = self.table.find(lease)
        if entry is None or entry.install.door is not Door.PORT or self.ports is None:
            return
        try:
            address = self.ports.open(entry.install)
        except OSError as error:
            detail = f"no port can be opened for it: {error.strerror or error}"
            logger.error("no port", extra={"event": "no_port", "lease": lease, "why": detail})
            self.apply(self.table.end(lease, EndReason.REVOKED, detail))
            return
        if self.link is not None:
            self.link.door(lease, address)

    async def serve_port(self, install: Install, stream: socket.socket, source: str) -> None:
        """Serve a connection to a lease's own port, by the middleware that was asked for."""
        assert self.gateway is not None
        assert self.doors is not None
        name = install.middleware or "builtin"
        if name == "builtin":
            await self.gateway.serve_port(install.lease, stream, source)
            return
        try:
            await self.doors.serve_port(install, name, stream)
        except Refused as refused:
            about = {"event": "refused", "lease": install.lease, "why": refused.message}
            logger.warning("a connection to a lease's port is refused", extra=about)

    def _tell(self, step: Step, state: SessionState) -> None:
        if self.link is not None:
            self.link.session(step.lease, state, step.nonce, step.reason, step.detail)

    def _unbind(self, lease: LeaseId) -> None:
        """What its session opened ends with the session: lanes, doors, memory. The lease goes on,
        and so does a worker that serves nobody yet."""
        if self.doors is not None:
            self.doors.unbind(lease)
        task = self._workers.get(lease)
        if task is None or not task.done() or task.cancelled() or task.result() is None:
            return
        worker = self._workers.pop(lease).result()
        assert worker is not None, "looked at above"
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
        """End the lease's worker and server for certain; only then are its shares free."""
        server = self.doors.leave(lease) if self.doors is not None else None
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
        """It sleeps inside a driver or a file system and holds its shares until that lets it go.

        The devices get nothing new until then; who waits for these shares is told at once.
        """
        detail = f"process {process.pid} of lease {lease} cannot be killed"
        logger.error("stuck", extra={"event": "stuck", "lease": lease, "pid": process.pid})
        self._suspect(lease, dict.fromkeys(self.table.devices_of(lease), detail), Symptom.HUNG)
        await process.gone
        logger.info("unstuck", extra={"event": "unstuck", "lease": lease, "pid": process.pid})
        del self._faults[lease]

    async def _clean(self, lease: LeaseId) -> None:
        """Wait until the lease's cards are free of its memory; SUSPECT when that takes long."""
        if self.memory is None:
            return
        deadline_s = self.now_s() + self._budget.worker_cut_s
        while held := await held_memory(self.memory, self.table, lease):
            if self.now_s() >= deadline_s and lease not in self._faults:
                logger.error("memory held", extra={"event": "memory_held", "lease": lease})
                self._suspect(lease, held, Symptom.MEMORY_HELD)
            await asyncio.sleep(LOOK_S)
        self._faults.pop(lease, None)

    def _suspect(self, lease: LeaseId, why: Mapping[DeviceId, str], symptom: Symptom) -> None:
        """These devices get nothing new; who waits for the lease's shares is told."""
        self._faults[lease] = {
            device: Fault(health=Health.SUSPECT, symptom=symptom, detail=detail)
            for device, detail in why.items()
        }
        self.apply(self.table.stuck(lease, next(iter(why.values()), "")))

    # --- the gateway's needs

    async def until(self, ready: Callable[[], bool], wait_s: float) -> bool:
        """Wait until a change of the table makes `ready` true, or `wait_s` is over."""
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
        """Give a proven lane to the lease's worker, starting it for the first one.

        With a `key` the worker takes it into TLS and welcomes it there.

        A worker that dies before it took the lane is replaced: nothing of the lane was served.
        """
        kind = next(one.kind for one in entry.install.shares if one.index == device)
        session = entry.nonce
        ended = Refused(Refusal.ENDED, f"lease {entry.lease} is over, or its session")

        def lives() -> bool:
            return self.table.find(entry.lease) is entry and entry.nonce == session

        for _ in range(CRASHES_MAX):
            if not lives():  # nobody would end a worker of it
                raise ended
            worker = await asyncio.shield(self._worker_of(entry))
            if not lives() or entry.lease not in self._workers:
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
                told: dict[str, Any] = {"tls": {}} if key else {"welcome": {}}
                Peer(stream).send_now(told)
                return
            self._worker_gone(entry, worker)  # its own callback may be a moment behind
        raise Refused(Refusal.NOT_READY, "workers of this lease die as soon as they are started")

    async def serve_door(
        self, entry: Entry, hello: Hello, peer: Peer, welcome: dict[str, Any]
    ) -> None:
        """Relay a proven door to the lease's server, starting it for the first one."""
        if self.doors is None:
            raise Refused(Refusal.DENIED, "this host offers no other middleware")
        await self.doors.serve(entry.install, hello, peer, welcome)

    def _worker_of(self, entry: Entry) -> asyncio.Task[Worker | None]:
        task = self._workers.get(entry.lease)
        if task is None or (task.done() and task.result() is None):
            task = self._nursery.start(self._start_worker(entry), "worker")
            self._workers[entry.lease] = task
        return task

    async def _start_worker(self, entry: Entry) -> Worker | None:
        memory_mib = sum(share.memory_mib for share in entry.install.shares)
        start = Start(
            lease=entry.lease,
            tenant=entry.install.tenant,
            memory_bytes=max(memory_mib << 20, _MEMORY_FLOOR_BYTES),
            cap_s=self._cap_s(entry),
            devices={str(share.index): share.device for share in entry.install.shares},
            variables=worker_variables(entry.install.shares),
            kinds=tuple(sorted({share.kind for share in entry.install.shares})),
        )
        try:
            worker = await self._pool.take(start)
        except AppError as error:
            logger.error("no worker", extra={"lease": entry.lease, "why": error.message})
            return None
        worker.end_in(self._cap_s(entry))  # the lease's length may have changed meanwhile
        worker.on_turn = functools.partial(self._turns.heard, entry.lease)
        worker.gone.add_done_callback(lambda _: self._worker_gone(entry, worker))
        self._turns.join(entry.lease, entry.install.shares, worker)
        return worker

    def _cap_s(self, entry: Entry) -> float:
        """When a worker ends itself: a little after gpud should have ended it."""
        left_s = CAP_S_MAX if entry.last_s is None else entry.last_s - self.now_s()
        return left_s + self._budget.worker_slack_s

    def _time_worker(self, lease: LeaseId) -> None:
        """Let the worker of a deadline lease live as long as the lease does now."""
        entry, task = self.table.find(lease), self._workers.get(lease)
        if entry is None or entry.held_by_session or task is None:
            return
        if task.done() and not task.cancelled() and (worker := task.result()) is not None:
            worker.end_in(self._cap_s(entry))

    def _worker_gone(self, entry: Entry, worker: Worker) -> None:
        """If it crashed, its lanes are cut and the next lane gets a new one; the lease lives on."""
        self._turns.leave(entry.lease, worker)
        task = self._workers.get(entry.lease)
        if task is None or not task.done() or task.cancelled() or task.result() is not worker:
            return  # killed on purpose
        del self._workers[entry.lease]
        crashes = self._crashes[entry.lease] = self._crashes.get(entry.lease, 0) + 1
        logger.error("worker died", extra={"lease": entry.lease, "crashes": crashes})
        if crashes >= CRASHES_MAX:
            detail = f"its worker died {crashes} times"
            self.apply(self.table.end(entry.lease, EndReason.DEVICE_BAD, detail))

    # --- eternal

    async def keep_deadlines(self) -> None:
        """End leases when their own deadlines pass, with or without a scheduler."""
        while True:
            now_s = self.now_s()
            self.apply(self.table.expire(now_s))
            next_s = self.table.next_deadline_s()
            wait_s = _TICK_S_MAX if next_s is None else min(_TICK_S_MAX, max(0.0, next_s - now_s))
            await self._next_change(wait_s)

    async def close(self) -> None:
        """End every lease: this host's program stops, and its workers with it."""
        for lease in self.installed():
            self.apply(self.table.end(lease, EndReason.HOST_LOST, "the host's program stops"))
        cut_s = self._budget.worker_cut_s  # whatever lives on dies with the spawner
        if not await self.until(lambda: not any(e.occupying for e in self.table), cut_s):
            logger.error("workers do not end", extra={"leases": self.installed()})
