"""The text of /metrics, made without blocking other requests.

The state is read in pages, and written some lines at a time: in between others have the loop. A
text of many lines serves all scrapes within a time that grows with it, so that scrapes take a small
part of the daemon's time however large the system is and however often they come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from corekit.values import Value
from gpu_scheduler.daemon.access.authorizer import TRUSTED
from gpu_scheduler.daemon.endpoints.calls import Calls
from gpu_scheduler.daemon.journal.journal import Journal
from gpu_scheduler.daemon.metrics import CoreCounts, Metrics, Standing, prometheus_lines
from gpu_scheduler.model import Lease
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import HostView

#: Its session in the core, as the other parts of the daemon have one.
SESSION = "ssgmd/metrics"
#: Devices or shares of one page: about a millisecond.
PAGE = 250
#: Lines written without a pause: about a millisecond.
LINES_AT_ONCE = 250
#: Below it every scrape has its own text; a system of some dozen devices has so many lines.
SMALL_LINES = 2_000
#: Rest after a larger text: four times what a line takes to make (5 µs).
REST_S_PER_LINE = 20e-6

AnswerT = TypeVar("AnswerT", bound=Value)


class Scrapes:
    """Makes the text of a scrape; the endpoint has authorized its caller."""

    def __init__(
        self,
        calls: Calls,
        metrics: Metrics,
        journal: Journal,
        counts: CoreCounts,
        names_workloads: Callable[[], bool],
    ) -> None:
        """`names_workloads`: whether every caller may read the names of workloads."""
        self._calls = calls
        self._counts = counts
        self._metrics = metrics
        self._journal = journal
        self._names_workloads = names_workloads
        self._one_at_a_time = asyncio.Lock()
        self._text = b""
        self._serves_until_s = 0.0

    async def text(self) -> bytes:
        """Prometheus' exposition format. Raises EXHAUSTED when the scheduler is behind."""
        loop = asyncio.get_running_loop()
        async with self._one_at_a_time:
            if loop.time() >= self._serves_until_s:
                lines = await self._lines()
                self._text = "\n".join(lines).encode() + b"\n"
                rest_s = REST_S_PER_LINE * len(lines) if len(lines) > SMALL_LINES else 0.0
                self._serves_until_s = loop.time() + rest_s
            return self._text

    async def leases(self) -> AsyncIterator[Lease]:
        """All that live, page by page; none that lives throughout is left out."""
        more, after = True, 0
        while more:
            found = await self._ask(ops.Leases(limit=PAGE, after=after))
            for lease in found.leases:
                yield lease
                after = lease.fence
            more = found.more

    async def _lines(self) -> list[str]:
        hosts: list[HostView] = []
        more = True
        while more:
            after = hosts[-1].host if hosts else None
            page = await self._ask(ops.Inventory(limit=PAGE, after=after))
            hosts += page.hosts
            more = page.more
        queue = await self._ask(ops.Queue(limit=1))
        standing = Standing(
            hosts=tuple(hosts),
            leases=tuple([lease async for lease in self.leases()]),
            waiting=len(queue.queue) + queue.left_out,
            counts=self._counts,
            names_workloads=self._names_workloads(),
        )
        lines: list[str] = []
        for line in prometheus_lines(self._metrics, self._journal, standing):
            lines.append(line)
            if len(lines) % LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
        return lines

    async def _ask(self, op: ops.Op[AnswerT]) -> AnswerT:
        return await self._calls.ask(TRUSTED, SESSION, op)
