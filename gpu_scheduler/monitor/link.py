"""The session of a host: hello with the full state, reports, and the ordered channel of installs.

The link survives any number of disconnects. Leases continue without it, up to their own deadlines
in `HostControl`. A scheduler with a lower epoch than the highest one seen is refused: an old one
that came back could allocate a share twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping

from corekit.aio.backoff import Backoff
from corekit.aio.newer import known
from corekit.aio.supervise import until_first
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import HostId, LeaseId
from gpu_scheduler.client.access import Access
from gpu_scheduler.client.channel import Channel, ChannelEvents
from gpu_scheduler.core.inventory.devices import device_class_of, permanent_mismatch
from gpu_scheduler.model import Device, EndReason, Health, Request, Share, Sharing
from gpu_scheduler.monitor.full_state import FullState, pages_of
from gpu_scheduler.monitor.metrics import ReportCounts, monitor_lines
from gpu_scheduler.monitor.ports import DataSource, HostControl, Probe
from gpu_scheduler.monitor.watch import DeviceWatch, LastSeen
from gpu_scheduler.protocol.codec import HELLO_OLDEST_VERSION, VERSION, Body
from gpu_scheduler.protocol.host import (
    HOST_PUSHES,
    Cut,
    DoorOpened,
    Draining,
    End,
    HostHello,
    HostPush,
    HostWelcome,
    Install,
    InstallPush,
    InstallsPage,
    KeepWarmPush,
    MoreInstalled,
    Preempt,
    Report,
    Resize,
    SessionChange,
    SessionState,
    Staged,
    WarmLimitsPush,
)
from gpu_scheduler.protocol.ops import DETAIL_CHARACTERS_MAX
from gpu_scheduler.verdicts import NoFit

logger = logging.getLogger(__name__)

#: Deadline of this host's events while the scheduler is unreachable; a day bounds the memory.
EVENT_DEADLINE_S = 86_400.0
#: Bytes of lease names in one message; further names follow in further pages.
INSTALLED_BYTES_MAX = 256 * 2**10
#: The shortest pause between reports without news, as a part of the longest.
SPREAD_MIN = 0.75
#: The shortest pause before an urgent report, as a part of the longest.
URGENT = 0.05


class HostLink:
    """`async with HostLink(address, host=…, control=…, probe=…, gateway="h:p"|None, budget=…)`.

    Entering polls the probe once (raises its AppError) and starts connecting; it does not wait for
    the scheduler. `session` and `cut` may be called at any time from the event loop and are sent in
    order.
    """

    def __init__(
        self,
        address: str,
        *,
        host: str,
        control: HostControl,
        probe: Probe,
        gateway: str | None,
        budget: Budget,
        middlewares: tuple[str, ...] = (),
        ephemeral: bool = False,
        waiting: Callable[[], Iterable[LeaseId]] | None = None,
        loads_ahead: bool = False,
        data: DataSource | None = None,
        data_space_mib: int = 0,
        digests: Mapping[str, Mapping[str, str]] | None = None,
        incarnation: str | None = None,
        access: Access | None = None,
    ) -> None:
        """`waiting`: the leases whose sessions are open or wait here; None = none can wait."""
        self.host = HostId(host)
        self.incarnation = incarnation or secrets.token_hex(8)
        self.epoch_seen = 0
        self.run_seen = ""  #: the run of that epoch
        self._control = control
        self._watch = DeviceWatch(LastSeen(probe, budget.host_lost_s), control, data)
        self._gateway = gateway
        self._middlewares = middlewares
        self._ephemeral = ephemeral
        self._waiting = waiting
        self._loads_ahead = loads_ahead  #: workers of leases ahead load before they have shares
        self._data_space_mib = data_space_mib  #: for declared data sets
        self._digests = digests or {}  #: of "data" and "programs", by name
        self._budget = budget
        self._last_fence = 0
        self._spread = random.Random()
        self._backoff = Backoff(budget.reconnect_base_s, budget.reconnect_s_max)
        self._registered = asyncio.Event()
        self._arriving: FullState | None = None  #: an incomplete full state
        self._hello_pages: list[list[str]] = []  #: leases that did not fit into the hello
        self._closing: dict[LeaseId, None] = {}  #: sessions that closed; not acknowledged yet
        self._sending: dict[asyncio.Task[None], None] = {}  #: events that are not acknowledged
        self._urgent = asyncio.Event()  #: a report is due before its time
        self._report_counts = ReportCounts()
        events = ChannelEvents(
            role="host",
            hello=self._hello,
            welcomed=self._welcomed,
            pushed=self._pushed,
            lost=self._lost,
            more=self._more_of_hello,
        )
        self._channel = Channel(address, events, budget, name=f"host {host}", access=access)

    async def __aenter__(self) -> HostLink:
        await self._watch.poll()
        await self._channel.open()
        self._channel.nursery.start_loop(self._polls, "polls")
        self._channel.nursery.start_loop(self._reports, "reports")
        self._channel.nursery.start_loop(self._reconcile, "reconcile")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    @property
    def connected(self) -> bool:
        return self._channel.connected

    async def failed(self) -> None:
        """Wait until a task of the link fails, and raise its error: a bug, never the network."""
        await self._channel.nursery.failed()

    async def registered(self) -> None:
        """Wait until the scheduler knows this host. Raises the error of a task of the link."""
        await until_first(self._registered.wait(), self.failed())

    def metrics_lines(self) -> Iterator[str]:
        """The metrics of this link, in Prometheus' format."""
        return monitor_lines(
            self.host,
            registered=self._registered.is_set(),
            reports=self._report_counts,
            devices=self._watch.devices,
        )

    # --- events and reports of the host

    def session(self, change: SessionChange) -> None:
        """Report that a session of a lease waits, left, opened, freed its device, or closed.

        Before an end, the warm workers that are not reported yet: a grant may follow at once.
        """
        if change.state is SessionState.CLOSED:
            self._closing[change.lease] = None
        over = change.state in (SessionState.FREED, SessionState.CLOSED)
        if over and self._channel.connected:
            residents = self._watch.changed_residents()
            if residents:
                self._channel.nursery.start(self._report(Report(residents=residents)), "report")
        self._start_sending("session", change)

    def door(self, lease: LeaseId, address: str) -> None:
        """Report the "address:port" at which the lease's own port listens."""
        opened = DoorOpened(lease=lease, address=address)
        self._start_sending("door", opened)

    def cut(self, lease: LeaseId) -> None:
        """Report that an ended lease has no processes any more and its memory is free."""
        self._start_sending("cut", Cut(lease=lease))

    def report_soon(self) -> None:
        """Send the next report now: warm workers have changed, by which requests are placed."""
        self._urgent.set()

    async def draining(self, message: Draining, deadline_s: float) -> None:
        """Report that this host drains itself, or takes leases again. Raises AppError."""
        await self._channel.call("draining", message, deadline_s=deadline_s)

    async def settled(self) -> None:
        """Wait until the scheduler has acknowledged the ends of all sessions."""
        while self._sending:
            await asyncio.wait(self._sending)

    def _start_sending(self, op: str, message: SessionChange | DoorOpened | Cut) -> None:
        task = self._channel.nursery.start(self._send(op, message), "send")
        self._sending[task] = None
        task.add_done_callback(self._sending.pop)

    async def _send(self, op: str, message: SessionChange | DoorOpened | Cut) -> None:
        try:
            await self._channel.call(op, message, deadline_s=EVENT_DEADLINE_S)
        except AppError as error:
            logger.warning("%s of %s was not sent: %s", op, message.lease, error.message)
        if isinstance(message, SessionChange) and message.state is SessionState.CLOSED:
            self._closing.pop(message.lease, None)

    async def _polls(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s())
            await self._watch.poll()

    async def _reports(self) -> None:
        while True:
            await asyncio.sleep(self._budget.host_report_s * URGENT)
            with contextlib.suppress(TimeoutError):
                pause_s = max(0.0, self._pause_s() - self._budget.host_report_s * URGENT)
                async with asyncio.timeout(pause_s):  # wait_for may swallow a cancellation
                    await self._urgent.wait()
            self._urgent.clear()
            if self._channel.connected:
                await self._report(self._watch.news())

    def _pause_s(self) -> float:
        """With jitter: hosts that reconnect together do not report together for long."""
        return self._budget.host_report_s * self._spread.uniform(SPREAD_MIN, 1.0)

    async def _report(self, news: Report) -> None:
        deadline_s = self._budget.host_stale_s
        try:
            await self._channel.call("report", news, deadline_s=deadline_s)
            self._watch.reported(news)
            self._report_counts.acknowledged()
        except AppError as error:
            self._report_counts.failed()
            logger.warning("report: %s", error.message)
            self._watch.forget_reported()
            if error.code is ErrorCode.NOT_FOUND:  # forgotten by an operator
                self._channel.say_hello_again()

    async def _reconcile(self) -> None:
        while True:
            await asyncio.sleep(self._budget.host_reconcile_s)
            try:
                await self._channel.renew_key()
            except (AppError, OSError) as error:
                logger.warning("the key is not renewed: %s", error)
            self._channel.say_hello_again()

    # --- hello, full state and pushes

    def _hello(self) -> HostHello:
        # a closed session whose close is not sent yet must not look lost: its reason follows
        installed = dict.fromkeys((*self._control.installed(), *self._closing))
        devices = self._watch.devices
        self._watch.forget_reported()
        residents = self._watch.all_residents()
        # a lost hello is sent again
        held = self._watch.all_data()
        self._watch.reported(Report(devices=devices, residents=residents, held=held))
        first, *self._hello_pages = pages_of([*installed], INSTALLED_BYTES_MAX)
        return HostHello(
            host=self.host,
            incarnation=self.incarnation,
            gateway=self._gateway,
            devices=devices,
            epoch_seen=self.epoch_seen,
            installed=tuple(map(LeaseId, first)),
            version=VERSION,
            middlewares=self._middlewares,
            run_seen=self.run_seen,
            more=bool(self._hello_pages),
            residents=residents,
            ephemeral=self._ephemeral,
            oldest_version=HELLO_OLDEST_VERSION,
            data=self._digests.get("data", {}),
            programs=self._digests.get("programs", {}),
            advance=self._waiting is not None,
            waiting=() if self._waiting is None else tuple(self._waiting()),
            loads_ahead=self._loads_ahead,
            data_space_mib=self._data_space_mib,
            held=held,
        )

    def _more_of_hello(self) -> Iterator[tuple[str, MoreInstalled]]:
        last = len(self._hello_pages) - 1
        for number, page in enumerate(self._hello_pages):
            leases = tuple(map(LeaseId, page))
            yield "installed", MoreInstalled(leases=leases, more=number < last)

    def _welcomed(self, body: Body) -> None:
        welcome = known(logger, body.read_known(HostWelcome))
        if welcome.epoch < self.epoch_seen:
            text = f"scheduler epoch {welcome.epoch} is lower than {self.epoch_seen}, seen before"
            raise AppError(ErrorCode.CONFLICT, text)
        if welcome.epoch == self.epoch_seen and welcome.run != self.run_seen:
            text = f"two schedulers have epoch {welcome.epoch}: one of them runs on a copy of the"
            text += " other's state folder; stop it"
            raise AppError(ErrorCode.CONFLICT, text)
        self.epoch_seen, self.run_seen = welcome.epoch, welcome.run
        state = FullState(welcome)
        if state.is_whole:
            self._arriving = None
            self._take(state)
        else:
            self._arriving = state
            self._channel.nursery.start(self._fetch(state), "full state")

    async def _fetch(self, state: FullState) -> None:
        deadline_s = self._budget.host_stale_s
        while not state.is_whole:
            try:
                body = await self._channel.call(
                    "installs", state.next_page(), deadline_s=deadline_s
                )
                page = known(logger, body.read_known(InstallsPage))
                if self._arriving is not state:
                    return
                state.add(page)
            except AppError as error:
                logger.warning("the full state cannot be read: %s", error.message)
                await asyncio.sleep(self._backoff.next_s())
                if self._arriving is state:
                    self._channel.say_hello_again()
                return
        self._backoff.reset()
        self._arriving = None
        self._take(state)

    def _take(self, state: FullState) -> None:
        self._last_fence = state.fence
        if not self._registered.is_set():
            self._registered.set()
            self._control.link_changed(True)
        here = dict.fromkeys(self._control.installed())
        accepted = tuple(
            install
            for install in state.installs
            if install.lease not in self._closing
            and (install.lease in here or self._fits_here(install))
        )
        self._control.warm_limits(state.welcome.warm)
        self._control.full_state(accepted, state.welcome.epoch)
        self._control.keep_warm(state.welcome.floors)
        for name, push in state.waiting:
            self._pushed(name, push)

    def _lost(self, detail: str) -> None:
        logger.info("scheduler connection lost: %s", detail)
        self._arriving = None  # the next welcome begins another one
        self._registered.clear()
        self._control.link_changed(False)

    def _pushed(self, name: str, body: Body) -> None:
        if self._arriving is not None:
            if not self._arriving.hold(name, body):
                self._arriving = None
                self._channel.say_hello_again()
            return
        if (cls := HOST_PUSHES.get(name)) is None:
            logger.info("push %r is unknown to this version", name)
            return
        try:
            self._carry_out(known(logger, body.read_known(cls)))
        except AppError as error:
            logger.error("push %r is invalid: %s; requesting the full state", name, error.message)
            self._channel.say_hello_again()

    def _carry_out(self, push: HostPush) -> None:
        match push:
            case InstallPush():
                self._install(push.install)
            case End():
                self._control.end(push.lease, push.fence, push.reason)
            case Preempt():
                self._control.preempt(push.lease, push.grace_s)
            case Staged():
                self._control.staged(push.lease, push.connect_by_s)
            case Resize():
                self._control.resize(push.lease, push.compute_limit_pct)
            case WarmLimitsPush():
                self._control.warm_limits(push.limits)
            case KeepWarmPush():
                self._control.keep_warm(push.floors)

    def _install(self, install: Install) -> None:
        if install.lease in self._control.installed():
            self._control.install(install)  # a booking, or another length of a deadline lease
            return
        if install.fence <= self._last_fence:
            text = f"install {install.lease} has fence {install.fence} <= {self._last_fence}"
            raise AppError(ErrorCode.CONFLICT, text)
        self._last_fence = install.fence
        if self._fits_here(install):
            self._control.install(install)

    def _fits_here(self, install: Install) -> bool:
        """Evaluate the shares as the scheduler does; an infeasible install is refused and reported.

        An install that does not fit yet waits in the control.
        """
        devices = {device.id: device for device in self._watch.devices}
        for share in install.shares:
            why = _no_fit(share, self.host, devices.get(share.device))
            if why is not None:
                detail = f"{self.host} refuses {share.memory_mib} MiB of {share.device}: {why}"
                logger.error("install %s refused: %s", install.lease, detail)
                change = SessionChange(
                    lease=install.lease,
                    state=SessionState.CLOSED,
                    nonce="",
                    reason=EndReason.DEVICE_BAD,
                    detail=detail[:DETAIL_CHARACTERS_MAX],
                )
                self.session(change)
                return False
        return True


def _no_fit(share: Share, host: HostId, device: Device | None) -> str | None:
    if share.host != host:
        return f"the share is of host {share.host}"
    if device is None:
        return "this host has no such device"
    request = Request(
        kinds=(share.kind,),
        models=(share.model,),
        memory_mib=share.memory_mib,
        compute_guarantee_pct=share.compute_guarantee_pct,
        compute_limit_pct=share.compute_limit_pct,
        sharing=Sharing.EXCLUSIVE if share.exclusive else Sharing.SHARED,
    )
    if device.health is Health.BAD:
        return NoFit.BAD
    # a SUSPECT device keeps its leases, also those that are still to be installed
    return permanent_mismatch(request, device_class_of(device, gateway=True))
