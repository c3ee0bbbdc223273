"""The host session: hello with the full state, reports, and the ordered channel of installs.

The link survives any number of disconnects. Leases live on without it, by their own deadlines
inside `HostControl`; a scheduler with a lower epoch than the highest one seen is refused, because
a revived old one could give the same share twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Iterator
from types import TracebackType

from corekit.aio.newer import known
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import HostId, LeaseId
from gpu_scheduler.client.access import Access
from gpu_scheduler.client.channel import Channel, ChannelEvents
from gpu_scheduler.core.placement.fits import device_class_of, permanent_mismatch
from gpu_scheduler.model import Device, EndReason, Health, NoFit, Request, Share, Sharing
from gpu_scheduler.monitor.full_state import FullState, pages_of
from gpu_scheduler.monitor.ports import HostControl, Probe
from gpu_scheduler.monitor.watch import LastSeen, Watch
from gpu_scheduler.protocol.codec import VERSION, Body
from gpu_scheduler.protocol.host import (
    Cut,
    DoorOpened,
    End,
    HostHello,
    HostWelcome,
    Install,
    InstallPush,
    InstallsPage,
    MoreInstalled,
    Report,
    Resize,
    SessionChange,
    SessionState,
    Staged,
)

logger = logging.getLogger(__name__)

#: What happened here must be told, however long the scheduler is away; a day bounds the memory.
EVENT_DEADLINE_S = 86_400.0
#: Of the names of leases in one message; more of them follow in others. 7,000 leases have room.
INSTALLED_BYTES_MAX = 256 * 2**10
#: The shortest pause between reports, in parts of the longest.
SPREAD_MIN = 0.75


class HostLink:
    """`async with HostLink(address, host=…, control=…, probe=…, gateway="h:p"|None, budget=…)`.

    Entering reads the probe once (raises its AppError) and starts connecting; it does not wait for
    the scheduler. `session` and `cut` may be called at any time from the event loop and are told
    in their order.
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
        incarnation: str | None = None,
        access: Access | None = None,
    ) -> None:
        self.host = HostId(host)
        self.incarnation = incarnation or secrets.token_hex(8)
        self.epoch_seen = 0
        self.run_seen = ""  #: of that epoch
        self._control = control
        self._watch = Watch(LastSeen(probe, budget.host_lost_s), control)
        self._gateway = gateway
        self._middlewares = middlewares
        self._budget = budget
        self._last_fence = 0
        self._spread = random.Random()  # nothing depends on its values
        self._registered = asyncio.Event()
        self._arriving: FullState | None = None  #: a full state of which pages are missing
        self._hello_pages: list[list[str]] = []  #: leases that had no room in the hello
        self._closing: dict[LeaseId, None] = {}  #: sessions that closed; not told yet
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
        await self._watch.look()
        await self._channel.__aenter__()
        self._channel.nursery.start_eternal(self._looks(), "looks")
        self._channel.nursery.start_eternal(self._reports(), "reports")
        self._channel.nursery.start_eternal(self._reconcile(), "reconcile")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._channel.__aexit__(kind, error, trace)

    @property
    def connected(self) -> bool:
        return self._channel.connected

    async def failed(self) -> None:
        """Wait until a task of the link fails; raises what it raised. A bug, permanent_mismatch the network."""
        await self._channel.nursery.failed()

    async def registered(self) -> None:
        """Wait until the scheduler knows this host. Raises what a task of the link raised."""
        known = asyncio.ensure_future(self._registered.wait())
        failed = asyncio.ensure_future(self.failed())
        try:
            done, _ = await asyncio.wait({known, failed}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (known, failed):
                task.cancel()
            await asyncio.gather(known, failed, return_exceptions=True)

    # --- what the host tells

    def session(
        self,
        lease: LeaseId,
        state: SessionState,
        nonce: str,
        reason: EndReason | None = None,
        detail: str = "",
    ) -> None:
        """A session of a lease opened, gave its device back, or closed (`reason`; None = DONE)."""
        change = SessionChange(
            lease=lease, state=state, nonce=nonce, reason=reason, detail=detail[:1000]
        )
        if state is SessionState.CLOSED:
            self._closing[lease] = None
        self._channel.nursery.start(self._tell("session", change), "tell")

    def door(self, lease: LeaseId, address: str) -> None:
        """Tell the "address:port" at which the lease's own port listens."""
        told = DoorOpened(lease=lease, address=address)
        self._channel.nursery.start(self._tell("door", told), "tell")

    def cut(self, lease: LeaseId) -> None:
        """The ended lease's processes are gone and its memory is back."""
        self._channel.nursery.start(self._tell("cut", Cut(lease=lease)), "tell")

    async def _tell(self, op: str, message: SessionChange | DoorOpened | Cut) -> None:
        try:
            await self._channel.call(op, message, deadline_s=EVENT_DEADLINE_S)
        except AppError as error:
            logger.warning("%s %s not told: %s", op, message.lease, error.message)
        if isinstance(message, SessionChange) and message.state is SessionState.CLOSED:
            self._closing.pop(message.lease, None)

    async def _looks(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s())
            await self._watch.look()

    async def _reports(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s())
            if self._channel.connected:
                await self._report(self._watch.news())

    def _pause_s(self) -> float:
        """No two alike: hosts that a restarted scheduler woke together do not stay together."""
        return self._budget.host_report_s * self._spread.uniform(SPREAD_MIN, 1.0)

    async def _report(self, news: Report) -> None:
        deadline_s = self._budget.host_stale_s
        try:
            await self._channel.call("report", news, deadline_s=deadline_s)
            self._watch.told(news)
        except AppError as error:
            logger.warning("report: %s", error.message)
            self._watch.forget_reported()
            if error.code is ErrorCode.NOT_FOUND:  # forgotten by an operator, yet here
                self._channel.say_hello_again()

    async def _reconcile(self) -> None:
        while True:
            await asyncio.sleep(self._budget.host_reconcile_s)
            self._channel.say_hello_again()

    # --- what the scheduler says

    def _hello(self) -> HostHello:
        # a session that closed here, but is not told yet, must not look lost: its reason comes
        installed = dict.fromkeys((*self._control.installed(), *self._closing))
        devices = self._watch.devices
        self._watch.forget_reported()
        self._watch.told(Report(devices=devices))  # a hello that is lost is said again
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
        )

    def _more_of_hello(self) -> Iterator[tuple[str, MoreInstalled]]:
        """The leases that had no room in it."""
        last = len(self._hello_pages) - 1
        for number, page in enumerate(self._hello_pages):
            leases = tuple(map(LeaseId, page))
            yield "installed", MoreInstalled(leases=leases, more=number < last)

    def _welcomed(self, body: Body) -> None:
        welcome = known(logger, body.read_known(HostWelcome))
        if welcome.epoch < self.epoch_seen:
            text = f"scheduler epoch {welcome.epoch} is older than {self.epoch_seen}, seen before"
            raise AppError(ErrorCode.CONFLICT, text)
        if welcome.epoch == self.epoch_seen and welcome.run != self.run_seen:
            text = f"another scheduler has epoch {welcome.epoch} too: one of them runs on a copy of"
            text += " the other's state folder; stop it"
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
        """The other pages of a full state, unless a newer one begins meanwhile."""
        deadline_s = self._budget.host_stale_s
        while not state.is_whole:
            try:
                body = await self._channel.call(
                    "installs", state.next_page(), deadline_s=deadline_s
                )
                page = known(logger, body.read_known(InstallsPage))
            except AppError as error:
                logger.warning("the full state did not come: %s", error.message)
                if self._arriving is state:
                    self._channel.say_hello_again()
                return
            if self._arriving is not state:
                return
            state.add(page)
        self._arriving = None
        self._take(state)

    def _take(self, state: FullState) -> None:
        """A full state is there as a whole, and then what was pushed since it began."""
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
        self._control.full_state(accepted, state.welcome.epoch)
        for name, push in state.waiting:
            self._pushed(name, push)

    def _lost(self, detail: str) -> None:
        logger.info("scheduler lost: %s", detail)
        self._arriving = None  # the next welcome begins anew
        self._registered.clear()
        self._control.link_changed(False)

    def _pushed(self, name: str, body: Body) -> None:
        if self._arriving is not None:
            if not self._arriving.hold(name, body):
                self._arriving = None
                self._channel.say_hello_again()
            return
        try:
            if name == "install":
                self._install(known(logger, body.read_known(InstallPush)).install)
            elif name == "end":
                end = known(logger, body.read_known(End))
                self._control.end(end.lease, end.fence, end.reason)
            elif name == "staged":
                staged = known(logger, body.read_known(Staged))
                self._control.staged(staged.lease, staged.connect_by_s)
            elif name == "resize":
                resize = known(logger, body.read_known(Resize))
                self._control.resize(resize.lease, resize.compute_limit_pct)
            else:
                logger.info("push %r is newer than this host", name)
        except AppError as error:
            logger.error("push %r is wrong: %s; asking for the full state", name, error.message)
            self._channel.say_hello_again()

    def _install(self, install: Install) -> None:
        if install.lease in self._control.installed():
            self._control.install(install)  # a deadline lease has another length
            return
        if install.fence <= self._last_fence:
            text = f"install {install.lease} has fence {install.fence} <= {self._last_fence}"
            raise AppError(ErrorCode.CONFLICT, text)
        self._last_fence = install.fence
        if self._fits_here(install):
            self._control.install(install)

    def _fits_here(self, install: Install) -> bool:
        """By the scheduler's own `fits`: what this host could permanent_mismatch give is refused, and told.

        What only does not fit yet is the control's to keep waiting.
        """
        devices = {device.id: device for device in self._watch.devices}
        for share in install.shares:
            why = _no_fit(share, self.host, devices.get(share.device))
            if why is not None:
                detail = f"{self.host} refuses {share.memory_mib} MiB of {share.device}: {why}"
                logger.error("install %s refused: %s", install.lease, detail)
                self.session(install.lease, SessionState.CLOSED, "", EndReason.DEVICE_BAD, detail)
                return False
        return True


def _no_fit(share: Share, host: HostId, device: Device | None) -> str | None:
    """Why this host cannot give the share even when nothing else is lent; None when it can."""
    if share.host != host:
        return f"the share is of host {share.host}"
    if device is None:
        return "there is no such device here"
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
    # of a SUSPECT device the leases it has go on, also those that are still on their way
    return permanent_mismatch(request, device_class_of(device, gateway=True))
