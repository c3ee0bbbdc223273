"""A GPU host with the behaviour of its gateway: installs, one session per lease, revocation."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from corekit.aio.clock import Clock
from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import DeviceId, HostId, LeaseId
from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.model import Device, DeviceKind, EndReason, Health, LeaseState, Symptom
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol.codec import VERSION
from simulator.faults.checkers import Checker, Violation
from simulator.faults.host_floors import SimFloors, Worker
from simulator.faults.scheduler import SimScheduler

REVOKE_S = 0.05  #: SIGKILL, free, check


class Refused(Exception):
    """The gateway refused; `code` as on the wire."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def _future() -> asyncio.Future[float]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class InstalledLease:
    """A lease on this host."""

    install: host_ops.Install
    usable: asyncio.Event = field(default_factory=asyncio.Event)
    nonce: str = ""
    opened: bool = False
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    #: With the grace time, once its session has the notice that it is preempted.
    notice: asyncio.Future[float] = field(default_factory=_future)
    deadline: asyncio.TimerHandle | None = None
    workers: dict[str, Worker] = field(default_factory=dict)  #: of floors, in use by this lease


def sim_devices(host: str, count: int, memory_mib: int) -> tuple[Device, ...]:
    """The devices of a simulated host."""
    return tuple(
        Device(
            id=DeviceId(f"{host}/{i}"),
            index=i,
            kind=DeviceKind.CPU,
            model="sim",
            memory_mib=memory_mib,
        )
        for i in range(count)
    )


class SimHost:
    """gpud with its devices. After `stop` (SIGSTOP) it neither receives nor acts."""

    def __init__(
        self,
        name: str,
        devices: int,
        memory_mib: int,
        scheduler: SimScheduler,
        clock: Clock,
        budget: Budget,
        checker: Checker,
        *,
        advance: bool = False,
        keeps_warm: bool = False,
    ) -> None:
        """`advance`: sessions of leases granted ahead may wait here, as at any newer host;
        `keeps_warm`: it loads the workers of floors."""
        self.id = HostId(name)
        self._advance = advance
        self._keeps_warm = keeps_warm
        self.warm = SimFloors()
        self._devices = sim_devices(name, devices, memory_mib)
        self._memory_mib = memory_mib
        self._scheduler = scheduler
        self._clock = clock
        self._budget = budget
        self._checker = checker
        self._epoch = 0
        self._incarnation = 1
        self._leaving = False  #: it drains itself, and is away after that
        self._connected = False
        self.is_away = False
        self._inbox: asyncio.Queue[object] = asyncio.Queue()
        self.installed_leases: dict[LeaseId, InstalledLease] = {}
        self._revoking: dict[LeaseId, InstalledLease] = {}
        self.running = asyncio.Event()
        self.running.set()

    # ------------------------------------------------------------------ link

    async def report(self) -> None:
        """Connect and report, until cancelled."""
        while True:
            await self.running.wait()
            if self._leaving and not self.installed_leases:
                self._break_off()
            while self.is_away:  # noqa: ASYNC110 - a machine that is not there
                await asyncio.sleep(self._budget.host_report_s)
            try:
                await self._connect()
                changes = self.warm.keep(self.room_mib, self._installs())
                report = host_ops.Report(devices=self._devices, residents=changes)
                await self._scheduler.ask_as_host(self.id, report)
            except AppError:
                self._connected = False
            await asyncio.sleep(self._budget.host_report_s)

    async def apply_pushes(self) -> None:
        """Apply the scheduler's pushes, in their order."""
        while True:
            item = await self._inbox.get()
            await self.running.wait()
            if item is None:
                self._connected = False
            elif isinstance(item, host_ops.InstallPush):
                self._install(item.install)
            elif isinstance(item, host_ops.End):
                self._end(item.lease, item.reason)
            elif isinstance(item, host_ops.Staged):
                self._staged(item.lease, item.connect_by_s)
            elif isinstance(item, host_ops.KeepWarmPush):
                self.warm.floors = item.floors
            elif isinstance(item, host_ops.Preempt):
                self._preempt(item.lease, item.grace_s)

    async def _connect(self) -> None:
        if self._connected:
            return
        self._scheduler.hosts[self.id] = self._inbox.put_nowait
        hello = host_ops.HostHello(
            host=self.id,
            incarnation=str(self._incarnation),
            gateway=f"{self.id}:1",
            devices=self._devices,
            epoch_seen=self._epoch,
            installed=tuple(self.installed_leases),
            version=VERSION,
            ephemeral=True,
            advance=self._advance,
            loads_ahead=self._keeps_warm,
            residents=self.warm.published(),
            waiting=tuple(lease for lease, one in self.installed_leases.items() if one.nonce),
        )
        welcome = await self._scheduler.ask_as_host(self.id, hello)
        self._connected, self._epoch, self.warm.floors = True, welcome.epoch, welcome.floors
        wanted = {install.lease for install in welcome.installs}
        for lease in [lease for lease in self.installed_leases if lease not in wanted]:
            self._end(lease, EndReason.REVOKED)
        for install in welcome.installs:
            self._install(install)

    def degrade(self, number: int, health: Health) -> Device:
        """Make one device SUSPECT or BAD in the next report; returns it as it was."""
        healthy = self._devices[number % len(self._devices)]
        self._replace(replace(healthy, health=health, symptoms=(Symptom.OTHER,)))
        return healthy

    def recover(self, healthy: Device) -> None:
        """Make the device clean in the next report."""
        self._replace(replace(healthy, health=Health.OK, symptoms=()))

    def _replace(self, device: Device) -> None:
        self._devices = tuple(device if d.id == device.id else d for d in self._devices)

    def stop(self) -> None:
        self.running.clear()

    def resume(self) -> None:
        """SIGCONT: deadlines that passed meanwhile fire first."""
        self.running.set()

    def restart(self) -> None:
        """The program died and was started again: its workers died with it."""
        for lease in list(self.installed_leases):
            installed = self.installed_leases.pop(lease)
            self._clear(installed)
        self._incarnation += 1
        self.warm.restart()
        self._connected = False
        self._scheduler.hosts.pop(self.id, None)

    # ------------------------------------------------------------------ warm floors

    def _installs(self) -> list[host_ops.Install]:
        """Of all leases that are installed and not freed, or not revoked yet."""
        leases = [*self.installed_leases.values(), *self._revoking.values()]
        return [one.install for one in leases if not _freed(one)]

    def room_mib(self, device: DeviceId) -> int:
        """The memory beside workers of floors, and leases that do not wait for their shares."""
        installs = [one for one in self._installs() if not one.ahead]
        shares = [share for one in installs for share in one.shares if share.device == device]
        held_mib = sum(share.memory_mib for share in shares) + self.warm.memory_mib(device)
        return self._memory_mib - held_mib

    def _take_workers(self, installed: InstalledLease) -> None:
        """Give a lease its workers, and its memory; one that waits again gives workers back."""
        install = installed.install
        if install.ahead:
            self.warm.workers.update(installed.workers)
            installed.workers = {}
        for name in [name for name in install.residents if name in self.warm.workers]:
            installed.workers[name] = self.warm.workers.pop(name)
        self.warm.evict(self.room_mib, install.evict)

    # ------------------------------------------------------------------ departure

    async def leave(self, limit_s: float) -> None:
        """Drain by its own session, and break off after the last lease, or at the limit."""
        self._leaving = True
        drain = host_ops.Draining(draining=True, reason="spot interruption", limit_s=limit_s)
        with contextlib.suppress(AppError):
            await self._scheduler.ask_as_host(self.id, drain)
        await asyncio.sleep(limit_s)
        if self._leaving and not self.is_away:
            self.restart()
            self._break_off()

    def _break_off(self) -> None:
        self.is_away, self._connected = True, False
        self._scheduler.hosts.pop(self.id, None)
        self._scheduler.tell(on.HostLeft(host=self.id, **self._scheduler.now()))

    def vanish(self) -> None:
        """Its machine is off, whatever it did."""
        self.running.set()
        self.restart()
        if not self.is_away:
            self._break_off()

    def come_back(self) -> None:
        """A new instance under this name: nothing is left of the last one."""
        self.restart()
        self._leaving = self.is_away = False

    # ------------------------------------------------------------------ leases

    def _install(self, install: host_ops.Install) -> None:
        known = self.installed_leases.get(install.lease)
        if install.lease in self._revoking:
            return
        if known is not None:
            self._changed(known, install)
            return
        installed = InstalledLease(install=install)
        self.installed_leases[install.lease] = installed
        self._take_workers(installed)
        if install.connect_by_s is not None:
            self._staged(install.lease, install.connect_by_s)
        self._admit()

    def _changed(self, known: InstalledLease, install: host_ops.Install) -> None:
        """A lease ahead is booked, or a booked one without a session waits again."""
        if known.install.ahead is install.ahead or known.opened:
            return
        known.install = install
        self._take_workers(known)
        self._checker.note("host", self.id, "ahead" if install.ahead else "booked", install.lease)
        if install.ahead:
            known.usable.clear()
            if known.deadline is not None:
                known.deadline.cancel()
                known.deadline = None
            if known.nonce:
                self._report_session(known, host_ops.SessionState.KNOCKED)
        elif install.connect_by_s is not None:
            self._staged(install.lease, install.connect_by_s)
        self._admit()

    def _staged(self, lease: LeaseId, connect_by_s: float) -> None:
        installed = self.installed_leases.get(lease)
        if installed is None or installed.nonce or installed.deadline is not None:
            return
        loop = asyncio.get_running_loop()
        installed.deadline = loop.call_later(connect_by_s, self._not_started, lease)

    def _not_started(self, lease: LeaseId) -> None:
        installed = self.installed_leases.get(lease)
        if installed is not None and not installed.nonce:
            self._end_session(lease, EndReason.NOT_STARTED, "no session in time")

    def _preempt(self, lease: LeaseId, grace_s: float) -> None:
        """Pass the notice on to an open session."""
        installed = self.installed_leases.get(lease)
        if installed is not None and installed.nonce and not installed.notice.done():
            self._checker.note("host", self.id, "preempt", lease, grace_s)
            installed.notice.set_result(grace_s)

    def _end(self, lease: LeaseId, reason: EndReason) -> None:
        installed = self.installed_leases.pop(lease, None)
        if installed is None:
            return
        self._clear(installed)
        self._checker.note("host", self.id, "revoke", lease, reason)
        self._revoking[lease] = installed
        asyncio.get_running_loop().call_later(REVOKE_S, self._revoked, lease)

    def _clear(self, installed: InstalledLease) -> None:
        installed.lost.set()
        if installed.deadline is not None:
            installed.deadline.cancel()

    def _revoked(self, lease: LeaseId) -> None:
        self._revoking.pop(lease, None)
        self._admit()

    def _admit(self) -> None:
        """Make leases usable whose shares are free: every older lease on them is revoked."""
        for installed in self.installed_leases.values():
            waits = installed.install.ahead or installed.usable.is_set()
            if not waits and self._fits(installed):
                installed.usable.set()
        self._check_no_overlap()

    def _using(self) -> list[InstalledLease]:
        """The usable leases that are neither released nor revoked."""
        leases = [*self.installed_leases.values(), *self._revoking.values()]
        return [
            installed for installed in leases if installed.usable.is_set() and not _freed(installed)
        ]

    def _fits(self, candidate: InstalledLease) -> bool:
        for share in candidate.install.shares:
            others = [
                o for s in self._using() for o in s.install.shares if o.device == share.device
            ]
            if share.exclusive and others:
                return False
            if any(o.exclusive for o in others):
                return False
            if sum(o.memory_mib for o in others) + share.memory_mib > self._memory_mib:
                return False
        return True

    def _check_no_overlap(self) -> None:
        for device in self._devices:
            shares = [o for s in self._using() for o in s.install.shares if o.device == device.id]
            if sum(o.memory_mib for o in shares) > self._memory_mib:
                raise Violation(f"{device.id} is allocated twice: {shares}")
            if self.warm.memory_mib(device.id) and self.room_mib(device.id) < 0:
                raise Violation(f"{device.id}: workers of floors have the memory of a lease")
            if len(shares) > 1 and any(o.exclusive for o in shares):
                raise Violation(f"{device.id} is shared with an exclusive lease: {shares}")

    # ------------------------------------------------------------------ sessions

    async def open(self, lease: LeaseId, nonce: str, *, dies: bool = False) -> InstalledLease:
        """Open the runner's session. Raises Refused(NOT_INSTALLED | CLAIMED | ENDED).

        `dies`: its process is killed while it waits; Refused(KILLED).
        """
        await self.running.wait()
        deadline_s = self._clock.monotonic_s() + self._budget.install_wait_s
        while lease not in self.installed_leases:
            if self._clock.monotonic_s() >= deadline_s:
                raise Refused("NOT_INSTALLED")
            await asyncio.sleep(self._budget.install_wait_s / 20)
        installed = self.installed_leases[lease]
        if installed.nonce not in ("", nonce):
            raise Refused("CLAIMED")
        installed.nonce = nonce
        if installed.deadline is not None:
            installed.deadline.cancel()
        if installed.install.ahead:
            self._report_session(installed, host_ops.SessionState.KNOCKED)
        since_s, dies = self._clock.monotonic_s(), dies and installed.install.ahead
        if dies:
            await asyncio.sleep(self._budget.install_wait_s / 20)
        while not dies and not installed.usable.is_set() and not installed.lost.is_set():
            await self._next_change(installed)
        if installed.lost.is_set():
            raise Refused("ENDED")
        if dies:
            installed.nonce = ""
            self._report_session(installed, host_ops.SessionState.LEFT)
            raise Refused("KILLED")
        installed.opened = True
        self._checker.note("host", self.id, "open", lease)
        waited_s = self._clock.monotonic_s() - since_s
        self._report_session(installed, host_ops.SessionState.OPENED, waited_s=waited_s)
        return installed

    async def _next_change(self, installed: InstalledLease) -> None:
        """Wait until a lease may be used or is over; it may wait again by the next step."""
        waiting = asyncio.ensure_future(installed.usable.wait())
        lost = asyncio.ensure_future(installed.lost.wait())
        await asyncio.wait({waiting, lost}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        lost.cancel()

    def release(self, installed: InstalledLease) -> None:
        installed.install = _with_state(installed.install, LeaseState.ENDING)
        self._report_session(installed, host_ops.SessionState.FREED)
        self._admit()

    def close(self, installed: InstalledLease, reason: EndReason, detail: str = "") -> None:
        """The session ended; of a revoked lease nothing is reported."""
        if self.installed_leases.get(installed.install.lease) is installed:
            self._end_session(installed.install.lease, reason, detail)

    def _end_session(self, lease: LeaseId, reason: EndReason, detail: str) -> None:
        installed = self.installed_leases[lease]
        self._end(lease, reason)
        self._report_session(installed, host_ops.SessionState.CLOSED, reason, detail)

    def _report_session(
        self,
        installed: InstalledLease,
        state: host_ops.SessionState,
        reason: EndReason | None = None,
        detail: str = "",
        waited_s: float | None = None,
    ) -> None:
        """Report a change; lost while the scheduler is away: the next hello has the installs."""
        if self._connected:
            op = host_ops.SessionChange(
                lease=installed.install.lease,
                state=state,
                nonce=installed.nonce,
                reason=reason,
                detail=detail,
                waited_s=waited_s,
            )
            event = on.HostAsked(host=self.id, reply_to="", op=op, **self._scheduler.now())
            self._scheduler.tell(event)


def _freed(installed: InstalledLease) -> bool:
    return installed.install.state is LeaseState.ENDING


def _with_state(install: host_ops.Install, state: LeaseState) -> host_ops.Install:
    return replace(install, state=state)
