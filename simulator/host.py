"""A GPU host as its gateway behaves: obeys installs, one session per lease, cuts, then admits."""

from __future__ import annotations

import asyncio
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
from simulator.checkers import Checker, Violation
from simulator.scheduler import SimScheduler

CUT_S = 0.05  #: SIGKILL, free, check


class Refused(Exception):
    """The gateway said no; `code` as on the wire."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class InstalledLease:
    """One installed lease."""

    install: host_ops.Install
    usable: asyncio.Event = field(default_factory=asyncio.Event)
    nonce: str = ""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    deadline: asyncio.TimerHandle | None = None


class SimHost:
    """gpud, its devices and its log. `stopped` is SIGSTOP: it neither hears nor acts."""

    def __init__(
        self,
        name: str,
        devices: int,
        memory_mib: int,
        scheduler: SimScheduler,
        clock: Clock,
        budget: Budget,
        checker: Checker,
    ) -> None:
        self.id = HostId(name)
        self._devices = tuple(
            Device(
                id=DeviceId(f"{name}/{i}"),
                index=i,
                kind=DeviceKind.CPU,
                model="sim",
                memory_mib=memory_mib,
            )
            for i in range(devices)
        )
        self._memory_mib = memory_mib
        self._scheduler = scheduler
        self._clock = clock
        self._budget = budget
        self._checker = checker
        self._epoch = 0
        self._incarnation = 1
        self._connected = False
        self._mail: asyncio.Queue[object] = asyncio.Queue()
        self.installed_leases: dict[LeaseId, InstalledLease] = {}
        self._cutting: dict[LeaseId, InstalledLease] = {}
        self.running = asyncio.Event()
        self.running.set()

    # ------------------------------------------------------------------ link

    async def report(self) -> None:
        """Connect and report, for ever."""
        while True:
            await self.running.wait()
            try:
                await self._connect()
                await self._scheduler.ask_as_host(self.id, host_ops.Report(devices=self._devices))
            except AppError:
                self._connected = False
            await asyncio.sleep(self._budget.host_report_s)

    async def apply_pushes(self) -> None:
        """Take what the scheduler says, in its order."""
        while True:
            item = await self._mail.get()
            await self.running.wait()
            if item is None:
                self._connected = False
            elif isinstance(item, host_ops.InstallPush):
                self._install(item.install)
            elif isinstance(item, host_ops.End):
                self._end(item.lease, item.reason)
            elif isinstance(item, host_ops.Staged):
                self._staged(item.lease, item.connect_by_s)

    async def _connect(self) -> None:
        if self._connected:
            return
        self._scheduler.hosts[self.id] = self._mail.put_nowait
        hello = host_ops.HostHello(
            host=self.id,
            incarnation=str(self._incarnation),
            gateway=f"{self.id}:1",
            devices=self._devices,
            epoch_seen=self._epoch,
            installed=tuple(self.installed_leases),
            version=VERSION,
        )
        welcome = await self._scheduler.ask_as_host(self.id, hello)
        self._connected, self._epoch = True, welcome.epoch
        wanted = {install.lease for install in welcome.installs}
        for lease in [lease for lease in self.installed_leases if lease not in wanted]:
            self._end(lease, EndReason.REVOKED)
        for install in welcome.installs:
            self._install(install)

    def degrade(self, number: int, health: Health) -> Device:
        """The next report finds one device SUSPECT or BAD; returns it as it was."""
        well = self._devices[number % len(self._devices)]
        self._replace(replace(well, health=health, symptoms=(Symptom.OTHER,)))
        return well

    def recover(self, well: Device) -> None:
        """The next report finds the device clean."""
        self._replace(replace(well, health=Health.OK, symptoms=()))

    def _replace(self, device: Device) -> None:
        self._devices = tuple(device if d.id == device.id else d for d in self._devices)

    def stop(self) -> None:
        self.running.clear()

    def go_on(self) -> None:
        """SIGCONT: own deadlines that passed meanwhile act first."""
        self.running.set()

    def restart(self) -> None:
        """The program died and came back: every worker died with it."""
        for lease in list(self.installed_leases):
            seat = self.installed_leases.pop(lease)
            self._clear(seat)
        self._incarnation += 1
        self._connected = False
        self._scheduler.hosts.pop(self.id, None)

    # ------------------------------------------------------------------ leases

    def _install(self, install: host_ops.Install) -> None:
        known = self.installed_leases.get(install.lease)
        if known is not None or install.lease in self._cutting:
            return
        seat = InstalledLease(install=install)
        self.installed_leases[install.lease] = seat
        if install.connect_by_s is not None:
            self._staged(install.lease, install.connect_by_s)
        self._admit()

    def _staged(self, lease: LeaseId, connect_by_s: float) -> None:
        seat = self.installed_leases.get(lease)
        if seat is None or seat.nonce or seat.deadline is not None:
            return
        loop = asyncio.get_running_loop()
        seat.deadline = loop.call_later(connect_by_s, self._not_started, lease)

    def _not_started(self, lease: LeaseId) -> None:
        seat = self.installed_leases.get(lease)
        if seat is not None and not seat.nonce:
            self._leave(lease, EndReason.NOT_STARTED, "no session in time")

    def _end(self, lease: LeaseId, reason: EndReason) -> None:
        seat = self.installed_leases.pop(lease, None)
        if seat is None:
            return
        self._clear(seat)
        self._checker.note("host", self.id, "cut", lease, reason)
        self._cutting[lease] = seat
        asyncio.get_running_loop().call_later(CUT_S, self._cut, lease)

    def _clear(self, seat: InstalledLease) -> None:
        seat.lost.set()
        if seat.deadline is not None:
            seat.deadline.cancel()

    def _cut(self, lease: LeaseId) -> None:
        self._cutting.pop(lease, None)
        self._admit()

    def _admit(self) -> None:
        """A lease's shares are usable once everything older on them is cut."""
        for seat in self.installed_leases.values():
            if not seat.usable.is_set() and self._fits(seat):
                seat.usable.set()
        self._check_no_overlap()

    def _using(self) -> list[InstalledLease]:
        """Whoever was admitted and has neither given back nor been cut."""
        everybody = [*self.installed_leases.values(), *self._cutting.values()]
        return [seat for seat in everybody if seat.usable.is_set() and not _freed(seat)]

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
                raise Violation(f"{device.id} is lent twice: {shares}")
            if len(shares) > 1 and any(o.exclusive for o in shares):
                raise Violation(f"{device.id} is lent beside an exclusive lease: {shares}")

    # ------------------------------------------------------------------ sessions

    async def open(self, lease: LeaseId, nonce: str) -> InstalledLease:
        """The runner's claim. Raises Refused(NOT_INSTALLED | CLAIMED)."""
        await self.running.wait()
        deadline_s = self._clock.monotonic_s() + self._budget.install_wait_s
        while lease not in self.installed_leases:
            if self._clock.monotonic_s() >= deadline_s:
                raise Refused("NOT_INSTALLED")
            await asyncio.sleep(self._budget.install_wait_s / 20)
        seat = self.installed_leases[lease]
        if seat.nonce not in ("", nonce):
            raise Refused("CLAIMED")
        seat.nonce = nonce
        if seat.deadline is not None:
            seat.deadline.cancel()
        waiting = asyncio.ensure_future(seat.usable.wait())
        lost = asyncio.ensure_future(seat.lost.wait())
        await asyncio.wait({waiting, lost}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        lost.cancel()
        if seat.lost.is_set():
            raise Refused("ENDED")
        self._checker.note("host", self.id, "open", lease)
        self._tell(seat, host_ops.SessionState.OPENED)
        return seat

    def give_back(self, seat: InstalledLease) -> None:
        seat.install = _with_state(seat.install, LeaseState.ENDING)
        self._tell(seat, host_ops.SessionState.FREED)
        self._admit()

    def close(self, seat: InstalledLease, reason: EndReason, detail: str = "") -> None:
        """The session ended; a lease that is already cut has nobody to tell."""
        if self.installed_leases.get(seat.install.lease) is seat:
            self._leave(seat.install.lease, reason, detail)

    def _leave(self, lease: LeaseId, reason: EndReason, detail: str) -> None:
        seat = self.installed_leases[lease]
        self._end(lease, reason)
        self._tell(seat, host_ops.SessionState.CLOSED, reason, detail)

    def _tell(
        self,
        seat: InstalledLease,
        state: host_ops.SessionState,
        reason: EndReason | None = None,
        detail: str = "",
    ) -> None:
        """Lost while the scheduler is away: the next hello says what is installed."""
        if self._connected:
            op = host_ops.SessionChange(
                lease=seat.install.lease,
                state=state,
                nonce=seat.nonce,
                reason=reason,
                detail=detail,
            )
            event = on.HostAsked(host=self.id, reply_to="", op=op, **self._scheduler.now())
            self._scheduler.tell(event)


def _freed(seat: InstalledLease) -> bool:
    return seat.install.state is LeaseState.ENDING


def _with_state(install: host_ops.Install, state: LeaseState) -> host_ops.Install:
    return replace(install, state=state)
