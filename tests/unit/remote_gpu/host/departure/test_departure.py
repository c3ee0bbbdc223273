"""The drain of a host before its program ends, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from corekit.aio.supervise import Nursery
from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.protocol.host import Draining
from remote_gpu.host.departure.departure import Departure
from remote_gpu.host.departure.notices import Notice, NoticeSource, strictest

BUDGET = Budget()


class Link:
    """The scheduler's end of a drain."""

    def __init__(self) -> None:
        self.epoch_seen = 1
        self.reports: list[Draining] = []
        self.error: AppError | None = None
        self.answer_s = 0.0
        self.settle_s = 0.0

    async def draining(self, message: Draining, deadline_s: float) -> None:
        self.reports.append(message)
        async with asyncio.timeout(deadline_s):
            await asyncio.sleep(self.answer_s)
        if self.error is not None:
            raise self.error

    async def settled(self) -> None:
        await asyncio.sleep(self.settle_s)


class Table:
    """The leases of the host."""

    def __init__(self, *leases: str) -> None:
        self.leases = dict.fromkeys(leases)
        self._change = asyncio.Event()

    def installed(self) -> tuple[str, ...]:
        return tuple(self.leases)

    async def until(self, ready: Callable[[], bool], wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                while not ready():
                    self._change.clear()
                    await self._change.wait()
        except TimeoutError:
            return False
        return True

    def wake(self) -> None:
        self._change.set()

    def ends(self, lease: str) -> None:
        del self.leases[lease]
        self.wake()


class Host:
    """A host that may leave; `over_s` is the time of its end."""

    def __init__(self, drain_s: float, *leases: str) -> None:
        self.departure = Departure(BUDGET, drain_s)
        self.link, self.table = Link(), Table(*leases)
        self.over_s: float | None = None

    async def run(self, *steps: tuple[float, Callable[[], object]], end_s: float = 10_000) -> float:
        """Do the steps at their times; returns the time of the end, or -1 if it did not end."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for at_s, step in steps:
            loop.call_at(began_s + at_s, step)
        async with Nursery("host") as nursery:
            try:
                async with asyncio.timeout(end_s):
                    await self.departure.over(self.link, self.table, nursery)
            except TimeoutError:
                return -1
            return loop.time() - began_s

    def signal(self) -> None:
        self.departure.signalled("SIGTERM")

    def ends(self, lease: str) -> Callable[[], None]:
        return lambda: self.table.ends(lease)


NO_ANSWER = AppError(ErrorCode.UNAVAILABLE, "no connection")
NO_DRAINS = AppError(ErrorCode.INVALID, "op 'draining' of a host is unknown")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A host with leases, of which some end at a time, and signals at some times."""

    leases: tuple[str, ...] = ("a",)
    drain_s: float = 120.0
    link: Mapping[str, Any] = field(default_factory=dict)  #: what its scheduler does
    signals_s: tuple[float, ...] = (0.0,)
    ends_s: Mapping[str, float] = field(default_factory=dict)
    registers_s: tuple[float, ...] = ()
    answers_s: float | None = None  #: the scheduler answers from then on
    over_s: float
    reports: int = 1


CASES = {
    "an idle host ends once the scheduler knows": Case(
        leases=(), link={"answer_s": 0.5}, signals_s=(1.0,), over_s=1.5
    ),
    "it waits for its leases and the reports of their ends": Case(
        leases=("a", "b"), link={"settle_s": 0.25}, ends_s={"a": 10, "b": 70}, over_s=70.25
    ),
    "no longer than the limit": Case(over_s=120.0 + BUDGET.program_stop_s),
    "a second signal ends it at once": Case(signals_s=(0.0, 3.0), over_s=3.0),
    "without a drain at once": Case(drain_s=0.0, signals_s=(2.0,), over_s=2.0, reports=0),
    "a scheduler without an answer delays an idle host a little": Case(
        leases=(), link={"error": NO_ANSWER}, over_s=BUDGET.host_stale_s, reports=2
    ),
    "a host that was never registered does not wait": Case(
        leases=(), link={"epoch_seen": 0, "answer_s": 60.0}, over_s=0.0
    ),
    "a scheduler without drains delays nothing": Case(
        link={"error": NO_DRAINS}, ends_s={"a": 30}, over_s=30.0
    ),
    "a failed report is repeated, at 0, 5 and 10 s": Case(
        link={"error": NO_ANSWER}, answers_s=7.0, ends_s={"a": 60}, over_s=60.0, reports=3
    ),
    "a scheduler that registers the host again gets the report again": Case(
        signals_s=(1.0,), registers_s=(0.0, 5.0), ends_s={"a": 10}, over_s=10.0, reports=2
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_host_ends_after_its_drain(case: Case) -> None:
    async def world() -> tuple[float, list[Draining]]:
        host = Host(case.drain_s, *case.leases)
        vars(host.link).update(case.link)
        steps: list[tuple[float, Callable[[], object]]] = [(s, host.signal) for s in case.signals_s]
        steps += [(at_s, host.ends(lease)) for lease, at_s in case.ends_s.items()]
        steps += [(at_s, host.departure.registered) for at_s in case.registers_s]
        if case.answers_s is not None:
            steps.append((case.answers_s, lambda: vars(host.link).update(error=None)))
        return await host.run(*steps), host.link.reports

    over_s, reports = run_virtual(world())
    assert over_s == pytest.approx(case.over_s)
    assert len(reports) == case.reports
    assert all(one == Draining(draining=True, reason="SIGTERM", limit_s=120.0) for one in reports)


def test_a_notice_without_an_end_drains_until_it_is_withdrawn() -> None:
    async def world() -> tuple[float, list[Draining]]:
        host = Host(120.0)
        departure = host.departure
        warm = departure.within("warm pool", None, ends=False)
        steps = (
            (1.0, lambda: departure.notice(NoticeSource.AUTO_SCALING, warm)),
            (2000.0, lambda: departure.notice(NoticeSource.AUTO_SCALING, None)),
        )
        return await host.run(*steps, end_s=5000), host.link.reports

    over_s, reports = run_virtual(world())
    assert over_s == -1
    assert reports == [Draining(draining=True, reason="warm pool"), Draining(draining=False)]


def test_a_stricter_notice_takes_over() -> None:
    async def world() -> tuple[float, list[Draining]]:
        host = Host(120.0, "a")
        departure = host.departure
        soft = departure.within("rebalance recommendation", None, ends=False)

        def interrupt() -> None:
            spot = departure.within("spot interruption", 100.0, ends=True)
            departure.notice(NoticeSource.SPOT, spot)

        steps = ((0.0, lambda: departure.notice(NoticeSource.REBALANCE, soft)), (50.0, interrupt))
        return await host.run(*steps), host.link.reports

    over_s, reports = run_virtual(world())
    assert over_s == pytest.approx(150.0 + BUDGET.program_stop_s)
    assert [report.reason for report in reports] == [
        "rebalance recommendation",
        "spot interruption",
    ]


def test_the_strictest_notice() -> None:
    warm = Notice(reason="warm", until_s=None, ends=False)
    spot = Notice(reason="spot", until_s=50.0, ends=False)
    stop = Notice(reason="SIGTERM", until_s=100.0, ends=True)
    assert strictest({}) is None
    assert strictest({NoticeSource.AUTO_SCALING: warm}) == warm
    both = strictest(
        {NoticeSource.AUTO_SCALING: warm, NoticeSource.SIGNAL: stop, NoticeSource.SPOT: spot}
    )
    assert both == Notice(reason="spot", until_s=50.0, ends=True)
