"""The drain of a host before its program ends, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

import pytest

from corekit.aio.supervise import Nursery
from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.protocol.host import Draining
from remote_gpu.host.departure.departure import Departure
from remote_gpu.host.departure.notices import Notice, Source, strictest

T = TypeVar("T")
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


def virtual(test: Callable[[], Coroutine[object, object, T]]) -> T:
    return run_virtual(test())


def test_a_host_without_leases_ends_once_the_scheduler_knows() -> None:
    async def world() -> tuple[float, list[Draining]]:
        host = Host(120.0)
        host.link.answer_s = 0.5
        return await host.run((1.0, host.signal)), host.link.reports

    over_s, reports = virtual(world)
    assert over_s == pytest.approx(1.5)
    assert reports == [Draining(draining=True, reason="SIGTERM", limit_s=120.0)]


def test_it_waits_for_its_leases_and_for_the_reports_of_their_ends() -> None:
    async def world() -> float:
        host = Host(120.0, "a", "b")
        host.link.settle_s = 0.25
        return await host.run(
            (0.0, host.signal),
            (10, lambda: host.table.ends("a")),
            (70, lambda: host.table.ends("b")),
        )

    assert virtual(world) == pytest.approx(70.25)


def test_it_waits_no_longer_than_the_limit() -> None:
    async def world() -> float:
        host = Host(120.0, "a")
        return await host.run((0.0, host.signal))

    assert virtual(world) == pytest.approx(120.0 + BUDGET.program_stop_s)


def test_a_second_signal_ends_it_at_once() -> None:
    async def world() -> float:
        host = Host(120.0, "a")
        return await host.run((0.0, host.signal), (3.0, host.signal))

    assert virtual(world) == pytest.approx(3.0)


def test_without_a_drain_it_ends_at_once() -> None:
    async def world() -> tuple[float, list[Draining]]:
        host = Host(0.0, "a")
        return await host.run((2.0, host.signal)), host.link.reports

    over_s, reports = virtual(world)
    assert (over_s, reports) == (2.0, [])


def test_a_scheduler_that_does_not_answer_delays_an_idle_host_a_little() -> None:
    async def world() -> float:
        host = Host(120.0)
        host.link.error = AppError(ErrorCode.UNAVAILABLE, "no connection")
        return await host.run((0.0, host.signal))

    assert virtual(world) == pytest.approx(BUDGET.host_stale_s)


def test_a_host_that_was_never_registered_does_not_wait_for_the_scheduler() -> None:
    async def world() -> float:
        host = Host(120.0)
        host.link.epoch_seen, host.link.answer_s = 0, 60.0
        return await host.run((0.0, host.signal))

    assert virtual(world) == 0.0


def test_a_scheduler_without_drains_delays_nothing() -> None:
    async def world() -> tuple[float, int]:
        host = Host(120.0, "a")
        host.link.error = AppError(ErrorCode.INVALID, "op 'draining' of a host is unknown")
        over_s = await host.run((0.0, host.signal), (30.0, lambda: host.table.ends("a")))
        return over_s, len(host.link.reports)

    assert virtual(world) == (30.0, 1)


def test_a_failed_report_is_repeated_with_the_same_limit() -> None:
    async def world() -> list[Draining]:
        host = Host(120.0, "a")
        host.link.error = AppError(ErrorCode.UNAVAILABLE, "no connection")

        def returns() -> None:
            host.link.error = None

        await host.run((0.0, host.signal), (7.0, returns), (60.0, lambda: host.table.ends("a")))
        return host.link.reports

    reports = virtual(world)
    assert len(reports) == 3, "at 0, 5 and 10 s"
    assert {report.limit_s for report in reports} == {120.0}


def test_a_scheduler_that_registers_the_host_again_gets_the_report_again() -> None:
    async def world() -> list[Draining]:
        host = Host(120.0, "a")
        steps = ((0.0, host.departure.registered), (1.0, host.signal))
        await host.run(*steps, (5.0, host.departure.registered), end_s=10)
        return host.link.reports

    assert [report.draining for report in virtual(world)] == [True, True]


def test_a_notice_without_an_end_drains_until_it_is_withdrawn() -> None:
    async def world() -> tuple[float, list[Draining]]:
        host = Host(120.0)
        departure = host.departure
        warm = departure.within("warm pool", None, ends=False)
        steps = (
            (1.0, lambda: departure.notice(Source.AUTO_SCALING, warm)),
            (2000.0, lambda: departure.notice(Source.AUTO_SCALING, None)),
        )
        return await host.run(*steps, end_s=5000), host.link.reports

    over_s, reports = virtual(world)
    assert over_s == -1
    assert reports == [Draining(draining=True, reason="warm pool"), Draining(draining=False)]


def test_a_stricter_notice_takes_over() -> None:
    async def world() -> tuple[float, list[Draining]]:
        host = Host(120.0, "a")
        departure = host.departure
        soft = departure.within("rebalance recommendation", None, ends=False)

        def interrupt() -> None:
            spot = departure.within("spot interruption", 100.0, ends=True)
            departure.notice(Source.SPOT, spot)

        steps = ((0.0, lambda: departure.notice(Source.REBALANCE, soft)), (50.0, interrupt))
        return await host.run(*steps), host.link.reports

    over_s, reports = virtual(world)
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
    assert strictest({Source.AUTO_SCALING: warm}) == warm
    both = strictest({Source.AUTO_SCALING: warm, Source.SIGNAL: stop, Source.SPOT: spot})
    assert both == Notice(reason="spot", until_s=50.0, ends=True)
