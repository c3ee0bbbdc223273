"""`SchedulerClient`: the ops of a requester over one self-repairing connection.

`ask` sends any op of `protocol.ops` and returns its answer. Beside it: the ops of one lease, and
lists that are read in several pages.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import TypeVar

from corekit.aio.newer import known
from corekit.budget import Budget
from corekit.decode import decode_known
from corekit.errors import AppError, ErrorCode
from corekit.ids import AttemptId, JobId, LeaseId
from corekit.values import Value, replace
from gpu_scheduler.client.access import Access, find_access
from gpu_scheduler.client.channel import Channel, ChannelEvents
from gpu_scheduler.client.pushes import Connected, Disconnected, OnPush, PushWord
from gpu_scheduler.model import Door, EndReason, Lease, LeaseLifetime, Record, Request
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol.codec import HELLO_OLDEST_VERSION, VERSION, Body

logger = logging.getLogger(__name__)

#: Devices, shares or waiting requests of one answer: some 500 bytes each, so half the longest line.
ITEMS_PER_PAGE = 1000

AnswerT = TypeVar("AnswerT", bound=Value)


def new_session() -> str:
    """A fresh session id; a program that returns after a crash is a new session."""
    return f"session-{secrets.token_hex(8)}"


class SchedulerClient:
    """`async with SchedulerClient("127.0.0.1:4700", on_push=...) as scheduler: ...`

    With a standby the address is a list, "10.0.1.10:4700,10.0.2.10:4700": the client uses the
    scheduler that leads.

    Every method waits through disconnects until `deadline_s` and raises only AppError: the
    scheduler's own, or UNAVAILABLE / TIMEOUT. CONFLICT carries the current record, as a `Record`,
    in `details["record"]`. All methods are idempotent.
    """

    def __init__(
        self,
        address: str,
        *,
        session: str | None = None,
        budget: Budget | None = None,
        on_push: OnPush | None = None,
        deadline_s: float | None = None,
        access: Access | None = None,
    ) -> None:
        access = access or find_access()
        self.session = access.session(session or new_session())
        self.epoch = 0  #: epoch of the last welcome; 0 before the first one
        self.welcome: answers.SessionWelcome | None = None  #: the last one
        self._budget = budget or Budget()
        #: A call outlives a restart of the scheduler: gone + the longest reconnect pause.
        self._deadline_s = deadline_s or self._budget.client_gone_s + self._budget.reconnect_s_max
        self._on_push = on_push
        self.beat = ops.Beat()  #: sent all the time; replace it to report an account
        self._welcomed = asyncio.Event()
        hello = ops.Hello(
            session=self.session, version=VERSION, oldest_version=HELLO_OLDEST_VERSION
        )
        events = ChannelEvents(
            role="requester",
            hello=lambda: hello,
            welcomed=self._on_welcome,
            pushed=self._pushed,
            lost=self._lost,
        )
        self._channel = Channel(address, events, self._budget, name=self.session, access=access)

    async def __aenter__(self) -> SchedulerClient:
        await self._channel.open()
        self._channel.nursery.start_loop(self._beats, "beats")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    @property
    def connected(self) -> bool:
        return self._channel.connected

    async def wait_connected(self, deadline_s: float) -> None:
        """Return when the scheduler welcomed us; raises UNAVAILABLE after `deadline_s`."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._welcomed.wait()
        except TimeoutError:
            raise self._channel.unreachable(deadline_s) from None

    # --- leases

    async def renew(self, lease: str, lease_s: float | None = None) -> None:
        """Keep a RESERVED lease for another `reserved_ttl_s`. Raises NOT_FOUND when it is over.

        With `lease_s`, a deadline lease ends that long from now; raises CONFLICT while its device
        is kept for another request, INVALID when it would last too long in total.
        """
        await self.ask(ops.Renew(lease=LeaseId(lease), lease_s=lease_s))

    async def release(
        self, lease: str, reason: EndReason = EndReason.RELEASED, detail: str = ""
    ) -> None:
        """End a lease; an unknown one is not an error."""
        op = ops.Release(lease=LeaseId(lease), reason=reason, detail=detail)
        await self.ask(op)

    async def reserve(
        self,
        attempt: str,
        request: Request,
        *,
        wait: bool = False,
        hold: LeaseLifetime = LeaseLifetime.SESSION,
        lease_s: float | None = None,
        door: Door = Door.GATEWAY,
        sources: tuple[str, ...] = (),
    ) -> answers.AttemptAnswer:
        """A lease without a job record; `lease_s` is the length of a DEADLINE hold.

        With Door.PORT its hosts open a port of its own to `sources` (none: to this machine); their
        addresses come in `lease.doors`, by a push and when the call is repeated.
        """
        op = ops.Reserve(
            attempt=AttemptId(attempt),
            request=request,
            wait=wait,
            hold=hold,
            lease_s=lease_s,
            door=door,
            sources=sources,
        )
        return await self.ask(op)

    # --- for people and tools

    async def explain(
        self,
        *,
        attempt: str | None = None,
        holder: str | None = None,
        request: Request | None = None,
        hold: LeaseLifetime = LeaseLifetime.SESSION,
        lease_s: float | None = None,
    ) -> answers.ExplainAnswer:
        """The reason why a request waits, or the present answer to a `request`; give exactly one.

        `hold` and `lease_s` are those of the lease that the request would get.
        """
        job = None if holder is None else JobId(holder)
        name = None if attempt is None else AttemptId(attempt)
        op = ops.Explain(attempt=name, holder=job, request=request, hold=hold, lease_s=lease_s)
        return await self.ask(op)

    async def inventory(self) -> answers.InventoryAnswer:
        """Hosts by name, with their devices, promised shares, usage and states."""
        found = first = await self.ask(ops.Inventory(limit=ITEMS_PER_PAGE))
        hosts = [*first.hosts]
        while found.more:
            op = ops.Inventory(after=hosts[-1].host, limit=ITEMS_PER_PAGE)
            found = await self.ask(op)
            hosts += found.hosts
        return replace(first, hosts=tuple(hosts), more=False)

    async def leases(self) -> tuple[Lease, ...]:
        """All leases that are not ENDED, oldest first."""
        return (await self.live_leases()).leases

    async def live_leases(self) -> answers.LeasesAnswer:
        """All leases that are not ENDED, oldest first, with their latest ends."""
        leases: list[Lease] = []
        ends_in_s: dict[LeaseId, float] = {}
        more = True
        while more:
            op = ops.Leases(after=leases[-1].fence if leases else 0, limit=ITEMS_PER_PAGE)
            found = await self.ask(op)
            leases += found.leases
            ends_in_s |= found.ends_in_s
            more = found.more
        return answers.LeasesAnswer(leases=tuple(leases), ends_in_s=ends_in_s)

    async def workloads(self) -> answers.WorkloadsAnswer:
        """Learned times of all workloads, by tenant, workload and device model."""
        found: list[answers.WorkloadView] = []
        more = True
        while more:
            page = await self.ask(ops.Workloads(after=found[-1].id if found else ""))
            found += page.workloads
            more = page.more
        found.sort(key=lambda view: (view.tenant, view.workload, view.expected.model))
        return answers.WorkloadsAnswer(workloads=tuple(found))

    # --- the connection

    async def ask(self, op: ops.Op[AnswerT]) -> AnswerT:
        """Send any op; returns its answer."""
        name = ops.OP_NAMES[type(op)]
        try:
            body = await self._channel.call(name, op, deadline_s=self._deadline_s)
        except AppError as error:
            raise _with_record(error) from None
        return known(logger, body.read_known(ops.answer_of(type(op))))

    async def _beats(self) -> None:
        several = self._channel.addresses.several
        every_s = self._budget.failover_beat_s if several else self._budget.client_beat_s
        while True:
            await asyncio.sleep(every_s)
            if self._channel.connected:
                try:
                    await self._channel.call(
                        "beat", self.beat, deadline_s=self._budget.client_gone_s
                    )
                except AppError as error:
                    logger.debug("beat: %s", error.message)

    def _on_welcome(self, body: Body) -> None:
        welcome = known(logger, body.read_known(answers.SessionWelcome))
        epoch = welcome.epoch
        if self._channel.addresses.several and epoch < self.epoch:
            text = f"epoch {epoch} is lower than {self.epoch}, seen before: another one leads now"
            raise AppError(ErrorCode.CONFLICT, text)
        self.epoch, self.welcome = epoch, welcome
        self._welcomed.set()
        self._tell(Connected(epoch=self.epoch))

    def _lost(self, detail: str) -> None:
        self._welcomed.clear()
        self._tell(Disconnected(detail=detail))

    def _pushed(self, name: str, body: Body) -> None:
        cls = answers.PUSHES.get(name)
        if cls is None:
            logger.info("push %r is newer than this client", name)
            return
        try:
            push = known(logger, body.read_known(cls))
        except AppError as error:
            logger.warning("push %r left out: %s", name, error.message)
            return
        if not isinstance(push, answers.PromisePush):  # its readers use the event stream
            self._tell(push)

    def _tell(self, word: PushWord) -> None:
        if self._on_push is not None:
            self._on_push(word)


def _with_record(error: AppError) -> AppError:
    record = error.details.get("record")
    if not isinstance(record, Mapping):
        return error
    details = {**error.details, "record": decode_known(Record, record)[0]}
    return AppError(error.code, error.message, **details)
