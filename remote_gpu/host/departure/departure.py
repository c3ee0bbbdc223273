"""The drain of this host by its own session, and the end of the program.

The host reports the drain to the scheduler, which grants nothing here from then on, and waits until
the last lease has ended: by itself, or by the scheduler at the limit, after a notice. A scheduler
that cannot be reached, or is too old for drains, changes nothing about the limit. A second signal
ends the program at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
from collections.abc import Callable
from typing import Protocol

from corekit.aio.supervise import Nursery, until_first
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.protocol.host import REASON_CHARACTERS_MAX, Draining
from remote_gpu.host.departure.notices import Notice, NoticeSource, strictest

logger = logging.getLogger(__name__)


class DrainLink(Protocol):
    """The part of `HostLink` that a drain needs."""

    @property
    def epoch_seen(self) -> int: ...  # 0 = this host was never registered
    async def draining(self, message: Draining, deadline_s: float) -> None: ...
    async def settled(self) -> None: ...


class DrainTable(Protocol):
    """The part of `Leases` that a drain needs."""

    def installed(self) -> tuple[object, ...]: ...
    async def until(self, ready: Callable[[], bool], wait_s: float) -> bool: ...
    def wake(self) -> None: ...


class Departure:
    """The notices of this host, and their effect. Lives in the event loop, by its clock."""

    def __init__(self, budget: Budget, drain_s: float) -> None:
        """`drain_s`: limit of a drain whose notice names none; 0: the program ends at once."""
        self.drain_s = drain_s
        self._budget = budget
        self._notices: dict[NoticeSource, Notice] = {}
        self._ends_since_s: float | None = None  #: time of the first notice that ends the program
        self._now = asyncio.Event()  #: the program ends without waiting any longer
        self._changed = asyncio.Event()  #: a report may be due
        self._again = False  #: the scheduler may have forgotten the report
        self._reported: Draining | None = None
        self._acknowledged = False
        self._table: DrainTable | None = None

    # --- notices

    def signalled(self, name: str) -> None:
        """Handle a stop signal: the first one drains, a second one ends the program."""
        if NoticeSource.SIGNAL in self._notices or self.drain_s <= 0:
            self._now.set()
        else:
            self.notice(NoticeSource.SIGNAL, self.within(name, self.drain_s, ends=True))

    def within(self, reason: str, limit_s: float | None, *, ends: bool) -> Notice:
        until_s = None if limit_s is None else _now_s() + limit_s
        return Notice(reason=reason[:REASON_CHARACTERS_MAX], until_s=until_s, ends=ends)

    def notice(self, source: NoticeSource, notice: Notice | None) -> None:
        """Set or withdraw the notice of a source."""
        if notice is None:
            self._notices.pop(source, None)
        else:
            self._notices[source] = notice
        current = self.current
        ends = current is not None and current.ends
        if not ends:
            self._ends_since_s = None
        elif self._ends_since_s is None:
            self._ends_since_s = _now_s()
        self._changed.set()
        self._wake()

    @property
    def current(self) -> Notice | None:
        return strictest(self._notices)

    def registered(self) -> None:
        """Report the drain again: the scheduler may have forgotten this host meanwhile."""
        self._again = True
        self._changed.set()

    # --- the drain

    async def over(self, link: DrainLink, table: DrainTable, nursery: Nursery) -> None:
        """Report drains as they begin and end; returns when the program has to end."""
        self._table = table
        nursery.start_loop(functools.partial(self._report, link), "drain")
        await until_first(self._now.wait(), self._drained(link, table))

    def _wake(self) -> None:
        if self._table is not None:
            self._table.wake()

    async def _report(self, link: DrainLink) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            message, again, self._again = self._message(), self._again, False
            if message is None or (message == self._reported and not again):
                continue
            if message != self._reported:
                _log(message)
            self._reported, self._acknowledged = message, False
            self._acknowledged = await self._send(link, message)
            self._wake()

    def _message(self) -> Draining | None:
        """The report of the deciding notice; None when the host neither drains nor did."""
        now, known = self.current, self._reported
        if now is None:
            return None if known is None else Draining(draining=False)
        limit_s = None if now.until_s is None else max(0.0, now.until_s - _now_s())
        if known is not None and known.draining and known.reason == now.reason:
            limit_s = known.limit_s  # it counts from the first report
        return Draining(draining=True, reason=now.reason, limit_s=limit_s)

    async def _send(self, link: DrainLink, message: Draining) -> bool:
        try:
            await link.draining(message, self._budget.host_stale_s)
        except AppError as error:
            logger.warning("the drain is not reported: %s", error.message)
            if error.code is not ErrorCode.INVALID:
                loop = asyncio.get_running_loop()
                loop.call_later(self._budget.reconnect_s_max, self.registered)
            return error.code is ErrorCode.INVALID
        return True

    async def _drained(self, link: DrainLink, table: DrainTable) -> None:
        while (wait_s := self._wait_s(link, table)) is not None:
            before = self.current

            def is_due(before: Notice | None = before) -> bool:
                return self.current != before or self._wait_s(link, table) is None

            await table.until(is_due, wait_s)
        left = len(table.installed())
        if left:
            logger.warning("leases are left", extra={"event": "drain_limit", "leases": left})
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._budget.program_stop_s):
                await link.settled()
        logger.info("drained", extra={"event": "drained"})

    def _wait_s(self, link: DrainLink, table: DrainTable) -> float | None:
        """Seconds until the next look at a drain; None when it is over."""
        now, since_s, here_s = self.current, self._ends_since_s, _now_s()
        if now is None or since_s is None:
            return self._budget.host_lost_s
        limits_s = [] if now.until_s is None else [now.until_s + self._budget.program_stop_s]
        if not table.installed():
            if self._acknowledged or link.epoch_seen == 0:
                return None
            limits_s.append(since_s + self._budget.host_stale_s)
        left_s = min(limits_s, default=math.inf) - here_s
        return None if left_s <= 0 else min(left_s, self._budget.host_lost_s)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _log(message: Draining) -> None:
    if message.draining:
        fields = {"event": "draining", "why": message.reason, "limit_s": message.limit_s}
        logger.info("draining: no new leases", extra=fields)
    else:
        logger.info("taking leases again", extra={"event": "undrained"})
