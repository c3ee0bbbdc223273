"""The daemon of a GPU host: carries out the table of leases. Implements `HostControl`."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from corekit.aio.supervise import Nursery, contained
from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import DeviceId, HostId, LeaseId
from corekit.tracing.span import NoTracer, Tracer
from gpu_scheduler.model import Device, Door, EndReason, Resident
from gpu_scheduler.monitor.health import Fault
from gpu_scheduler.monitor.ports import HostControl
from gpu_scheduler.protocol.host import Install, SessionState, WarmLimits
from remote_gpu.host.credentials.tls import HostTls
from remote_gpu.host.gateway.frames import Peer
from remote_gpu.host.gateway.gateway import Gateway, GatewayLimits
from remote_gpu.host.gateway.lease_ports import LeasePorts, PortSettings
from remote_gpu.host.gateway.listeners import Listeners
from remote_gpu.host.gateway.relays import Relays
from remote_gpu.host.leases.lease_log import LeaseLog
from remote_gpu.host.leases.steps import Step, StepKind
from remote_gpu.host.leases.table import Entry, LeaseTable, Phase
from remote_gpu.host.processes.card_checks import CardChecks
from remote_gpu.host.processes.endings import Endings
from remote_gpu.host.processes.excess import MemoryExcess
from remote_gpu.host.processes.excess_table import OnExcess
from remote_gpu.host.processes.lease_ends import LeaseEnds
from remote_gpu.host.processes.lease_workers import CRASHES_MAX, LeaseWorkers
from remote_gpu.host.processes.residual_memory import MemoryProbe
from remote_gpu.host.processes.warm_workers import WarmWorkers
from remote_gpu.host.reports.link import Link, NoLink
from remote_gpu.host.reports.traces import HostTraces
from remote_gpu.host.sharing.turns import Turns
from remote_gpu.host.workers.pool import WorkerPool
from remote_gpu.wire.errors import Refusal, Refused
from remote_gpu.wire.proof import Hello

logger = logging.getLogger(__name__)

LANES_MAX = 16  #: open at once on one lease; each is a thread in its worker
_TICK_S_MAX = 1.0  #: longest time between two checks of deadlines
#: Longest delay of the report that shares are free, for the warm worker that the lease leaves.
HELD_S_MAX = 1.0


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
        cards: CardChecks,
        *,
        warm_workers: bool = True,
        on_excess: OnExcess = OnExcess.END,
        registered: Callable[[], None] = lambda: None,
        tracer: Tracer | None = None,
    ) -> None:
        """`memory`: shows whether a card is clean; `link_of`: makes the link to this daemon;
        `cards`: checks a card of which a worker reports a fault;
        `warm_workers`: workers may outlive their leases; `on_excess`: of a card's memory;
        `registered`: called each time that the
        scheduler has registered this host."""
        self._registered = registered
        self.table = table
        self.traces = HostTraces(tracer or NoTracer(), endpoints.host)
        self._turns = turns
        self._log = log
        self._relays = relays
        self._budget = budget
        self._nursery = nursery
        self.endings = Endings(table, memory, budget, self.apply)
        self._warm = WarmWorkers(
            table, self.endings, log, self, budget, nursery, enabled=warm_workers
        )
        self._workers = LeaseWorkers(
            pool,
            self._warm,
            turns,
            budget,
            nursery,
            self.now_s,
            self._crashed,
            self._card_failed,
            cards.context_bytes,
        )
        self._ends = LeaseEnds(
            table, self.endings, self._workers, self._warm, nursery, self.apply, self._report_held
        )
        #: Reports of ends that wait until the lease's worker is warm or known not to be.
        self._held: dict[LeaseId, list[Callable[[], None]]] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self.lease_ends: Counter[str] = Counter()  #: ended leases by reason
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
        self._excess = MemoryExcess(table, memory, cards.context_bytes, on_excess)
        self._cards = cards
        cards.changed = self.warm_changed
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
        """Set the devices that may be lent, and end leases that use too much of a card's memory."""
        self.table.lend({device.id: device.memory_mib for device in devices})
        self.apply(self._excess.steps(self._workers.owners() | self._relays.owners()))

    def leased(self) -> Collection[DeviceId]:
        """Devices that leases or warm workers occupy, until their processes are gone."""
        held = (entry.install.shares for entry in self.table if entry.occupying)
        return {share.device for shares in held for share in shares} | {*self.table.warm.devices()}

    def faults(self) -> Mapping[DeviceId, Fault]:
        """Devices with a process that cannot be killed, with memory that is not freed, or with a
        check that failed."""
        return {**self.endings.faults(), **self._cards.faults()}

    def residents(self) -> Mapping[DeviceId, tuple[Resident, ...]]:
        """The idle warm workers of each device."""
        return self.table.warm.residents()

    def warm_limits(self, limits: WarmLimits) -> None:
        """Set the limits of warm workers; those beyond them are evicted."""
        self._warm.limit(limits)

    def warm_changed(self) -> None:
        """Report soon: warm workers or the health of a card have changed."""
        self._reports.report_soon()

    def full_state(self, installs: tuple[Install, ...], epoch: int) -> None:
        """Replace the installed leases by the scheduler's list, after a (re)connect."""
        logger.debug("full state", extra={"installs": len(installs), "epoch": epoch})
        now_s = self.expire()
        self.apply(self.table.full_state(installs, now_s))
        for install in installs:
            self._installed(install)

    def install(self, install: Install) -> None:
        """Install a lease, or change the remaining time of an installed one."""
        now_s = self.expire()
        self.apply(self.table.install(install, now_s))
        self._installed(install)

    def _installed(self, install: Install) -> None:
        self._time_worker(install.lease)
        entry = self.table.find(install.lease)
        if entry is not None and entry.phase is Phase.QUEUED:
            self._warm.room_needed(install)

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
        self.wake()

    def preempt(self, lease: LeaseId, grace_s: float) -> None:
        """Send the notice to the lease's session; the scheduler ends the lease after `grace_s`."""
        logger.info("preempted", extra={"event": "preempted", "lease": lease, "grace_s": grace_s})
        self.gateway.session_preempted(lease, grace_s)

    def resize(self, lease: LeaseId, compute_limit_pct: float) -> None:
        """Set another elastic limit for its shares."""
        self.table.resize(lease, compute_limit_pct)
        self._turns.resize(lease, compute_limit_pct)

    def link_changed(self, connected: bool) -> None:
        """Log the change: leases continue without the scheduler, until their own deadlines."""
        logger.info("scheduler reachable" if connected else "scheduler not reachable")
        if connected:
            self._registered()

    # --- the table's steps

    def apply(self, steps: list[Step]) -> None:
        """Carry out steps in order; slow ones in tasks of their own."""
        for step in steps:
            with contained(f"{step.kind.value} of {step.lease}", partial(self._failed, step.lease)):
                self._apply_one(step)
        if steps:
            self.wake()

    def _failed(self, lease: LeaseId, error: Exception) -> None:
        self.apply(self.table.end(lease, EndReason.REVOKED, f"an error of gpud: {error!r}"))

    def _apply_one(self, step: Step) -> None:
        self._log.write(step, step.kind.value, self.now_s())
        if step.kind is StepKind.PLACED:
            for name in step.warm:
                self._warm.take(step.lease, name)
            self._open_port(step.lease)
        elif step.kind is StepKind.KILL:
            self._ends.begin(step, self._relays.leave(step.lease))
        elif step.kind is StepKind.EVICT:
            self._warm.evict(step.warm, step.detail)
        elif step.kind is StepKind.OPENED:
            self.traces.opened(step.lease)
            self._report(step, SessionState.OPENED)
        elif step.kind is StepKind.RETURNED:
            self._report(step, SessionState.FREED)
        elif step.kind is StepKind.UNBOUND:
            self.gateway.session_ended(step)
            self._relays.unbind(step.lease)
            self._ends.unbind(step.lease)
        elif step.kind is StepKind.CUT:
            self._reports.cut(step.lease)
        elif step.kind is StepKind.CONFLICT:
            fields = {"event": "double_grant", "lease": step.lease, "why": step.detail}
            logger.error("the scheduler granted shares twice", extra=fields)
        elif step.kind is StepKind.CLOSED:
            self._ports.close(step.lease)
            self.gateway.session_ended(step)
            reason = step.reason or EndReason.DONE
            self.lease_ends[reason.value] += 1
            if step.reported:
                self._report(step, SessionState.CLOSED)
            self.traces.closed(step.lease, reason)
            self._workers.forget(step.lease)

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
        """Report a session. The end of one follows the warm worker that it leaves, so that the
        next grant is placed by that worker."""
        if state is SessionState.OPENED:
            self._reports.session(step.lease, state, step.nonce, step.reason, step.detail)
            return
        loading = self._workers.loading(step.lease)
        figures = (None, None) if loading is None else (loading.seconds, loading.size_bytes >> 20)
        self.traces.worker_over(step.lease, figures[0])
        if step.lease not in self._held and self._may_stay(step):
            self._held[step.lease] = []
            loop = asyncio.get_running_loop()
            loop.call_later(HELD_S_MAX, self._report_held, step.lease)

        def report() -> None:
            about = (step.nonce, step.reason, step.detail, *figures, step.succeeded)
            self._reports.session(step.lease, state, *about)

        if step.lease in self._held:
            self._held[step.lease].append(report)
        else:
            report()

    def _may_stay(self, step: Step) -> bool:
        """Whether a lease that ends in this step may leave a warm worker."""
        worker = self._workers.started(step.lease)
        return step.leaves_worker and worker is not None and self._warm.may_keep(worker)

    def _report_held(self, lease: LeaseId) -> None:
        """Send the reports that waited for the warm worker of a lease."""
        for report in self._held.pop(lease, ()):
            report()

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

    def wake(self) -> None:
        """Let those that wait for a change evaluate their conditions again."""
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

        self.traces.worker_asked(entry.lease)
        for _ in range(CRASHES_MAX):
            if not is_current():  # no step would end its worker
                raise ended
            worker = await asyncio.shield(self._workers.of(entry))
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
                self.traces.worker_ready(entry.lease)
                Peer(stream).send_now({"tls": {}} if key else {"welcome": {}})
                return
            self._workers.gone(entry, worker)  # its own callback may be a moment behind
        raise Refused(Refusal.NOT_READY, "workers of this lease die at startup; see gpud's log")

    async def relay(
        self, entry: Entry, hello: Hello, peer: Peer, welcome: dict[str, object]
    ) -> None:
        """Relay an authenticated connection to the lease's server; the first relay starts it."""
        await self._relays.serve(entry.install, hello, peer, welcome)

    def _crashed(self, lease: LeaseId, detail: str) -> None:
        self.apply(self.table.end(lease, EndReason.DEVICE_BAD, detail))

    def _card_failed(self, lease: LeaseId, device: DeviceId, reason: str) -> None:
        """End a lease whose worker reports a fault of its card, and check the card."""
        about = {"event": "card_failed", "lease": lease, "device": device, "why": reason}
        logger.error("a worker reports a fault of its card", extra=about)
        self._cards.reported(device, reason)
        self.apply(self.table.end(lease, EndReason.DEVICE_BAD, reason))

    def _time_worker(self, lease: LeaseId) -> None:
        """Set the remaining time of a deadline lease's worker."""
        entry = self.table.find(lease)
        if entry is not None and not entry.held_by_session:
            self._workers.set_time(entry)

    # --- tasks for the life of the program

    async def keep_deadlines(self) -> None:
        """End leases when their own deadlines pass, with or without a scheduler."""
        while True:
            now_s = self.expire()
            next_s = self.table.next_deadline_s()
            wait_s = _TICK_S_MAX if next_s is None else min(_TICK_S_MAX, max(0.0, next_s - now_s))
            await self._next_change(wait_s)

    async def limit_warm_workers(self) -> None:
        """Keep warm workers within their limits."""
        await self._warm.watch()

    async def close(self) -> None:
        """End every lease, because this host's program is stopping."""
        for lease in self.installed():
            self.apply(self.table.end(lease, EndReason.HOST_LOST, "the host's program is stopping"))
        self._warm.evict_all()
        cut_s = self._budget.worker_cut_s  # processes that are left die with the spawner
        if not await self.until(lambda: not any(e.occupying for e in self.table), cut_s):
            logger.error("workers do not end", extra={"leases": self.installed()})
        self._ports.close_all()
        self._reports = NoLink()
