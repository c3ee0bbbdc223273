"""Virtual time, supervision and the driver."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from corekit.aio.clock import LoopClock
from corekit.aio.driver import Driver
from corekit.aio.supervise import Nursery, until_first
from corekit.aio.vloop import Deadlock, run_virtual
from corekit.errors import AppError, ErrorCode
from corekit.machine import Decision


def test_an_hour_passes_at_once_and_exactly() -> None:
    async def main() -> tuple[float, float]:
        clock = LoopClock(wall_at_zero_s=100.0)
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(1800))
        return clock.monotonic_s(), clock.wall_s()

    assert run_virtual(main()) == (3600.0, 3700.0)


def test_waiting_for_nothing_is_a_deadlock_not_a_hang() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        run_virtual(main())


def test_an_eternal_task_that_ends_fails_the_nursery(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Nursery("test") as nursery:
            nursery.start_eternal(asyncio.sleep(1), "short")
            await nursery.failed()

    with caplog.at_level(logging.CRITICAL), pytest.raises(RuntimeError, match="test/short ended"):
        run_virtual(main())


def test_work_that_never_began_leaves_no_warning() -> None:
    """Warnings are errors here: a coroutine that nobody awaited would be one."""

    async def main() -> None:
        async with Nursery("n") as nursery:
            nursery.start_eternal(asyncio.sleep(3600), "too late")

    asyncio.run(main())
    gc.collect()


def test_closing_ends_every_task() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(True)

    async def main() -> None:
        async with Nursery("test") as nursery:
            nursery.start(work(), "a")
            nursery.start_eternal(work(), "b")
            await asyncio.sleep(1)

    run_virtual(main())
    assert len(ended) == 2


@dataclass
class Doubler:
    """A core: every number becomes a change; its double, while small, an action."""

    applied: list[int] = field(default_factory=list)

    def handle(self, event: int) -> Decision[int, int]:
        self.apply(event)
        return Decision(changes=(event,), actions=(event * 2,) if event < 50 else ())

    def apply(self, change: int) -> None:
        self.applied.append(change)


@dataclass
class GroupJournal:
    groups: list[list[int]] = field(default_factory=list)

    async def append(self, changes: Sequence[int]) -> None:
        await asyncio.sleep(0.001)
        self.groups.append(list(changes))


def test_changes_are_durable_before_actions_run_and_synced_in_groups() -> None:
    journal = GroupJournal()
    seen: list[tuple[int, bool]] = []

    async def perform(action: int) -> int | None:
        durable = any(action // 2 in group for group in journal.groups)
        seen.append((action, durable))
        return action

    async def main() -> list[int]:
        machine = Doubler()
        async with Nursery("test") as nursery:
            driver = Driver(machine, journal, perform, nursery)
            nursery.start_eternal(driver.run(), "driver")
            for number in (1, 2, 3):
                driver.submit(number)
            await driver.drained()
        return machine.applied

    applied = run_virtual(main())
    assert all(durable for _, durable in seen)
    assert journal.groups[0] == [1, 2, 3]
    assert sorted(applied) == sorted(n for group in journal.groups for n in group)
    assert max(applied) == 96


def test_the_next_group_is_decided_while_one_is_synced_and_acts_only_after_its_own_sync() -> None:
    journal, machine, acted = GroupJournal(), Doubler(), []

    def perform(action: int) -> None:
        acted.append((action, list(journal.groups)))

    async def main() -> None:
        async with Nursery("test") as nursery:
            driver = Driver(machine, journal, perform, nursery)
            nursery.start_eternal(driver.run(), "driver")
            driver.submit(1)
            await asyncio.sleep(0.0001)  # 1 is being synced
            driver.submit(2)
            driver.submit(3)
            await asyncio.sleep(0.0001)
            assert (machine.applied, acted) == ([1, 2, 3], [])
            await driver.drained()

    run_virtual(main())
    assert acted == [(2, [[1]]), (4, [[1], [2, 3]]), (6, [[1], [2, 3]])]


def test_after_a_failed_sync_nothing_is_answered_or_written_any_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    acted: list[int] = []
    tried: list[list[int]] = []

    class FullJournal:
        async def append(self, changes: Sequence[int]) -> None:
            tried.append(list(changes))
            await asyncio.sleep(0.001)
            raise AppError(ErrorCode.EXHAUSTED, "no room")

    async def main() -> None:
        async with Nursery("test") as nursery:
            driver = Driver(Doubler(), FullJournal(), acted.append, nursery)
            nursery.start_eternal(driver.run(), "driver")
            driver.submit(1)
            await asyncio.sleep(0.0001)  # it is being synced
            driver.submit(2)
            with pytest.raises(AppError, match="no room"):
                await nursery.failed()
            driver.submit(3)
            await asyncio.sleep(1)

    with caplog.at_level(logging.CRITICAL):
        run_virtual(main())
    assert (acted, tried) == ([], [[1]])


def test_the_first_to_end_ends_the_wait_and_the_others() -> None:
    ended: list[str] = []

    async def work(name: str, pause_s: float) -> None:
        try:
            await asyncio.sleep(pause_s)
        finally:
            ended.append(name)

    async def main() -> float:
        await until_first(work("long", 3600), work("short", 1))
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 1
    assert sorted(ended) == ["long", "short"]


def test_a_failure_that_ends_the_wait_is_raised() -> None:
    async def fail() -> None:
        raise AppError(ErrorCode.UNAVAILABLE, "gone")

    async def main() -> None:
        with pytest.raises(AppError, match="gone"):
            await until_first(asyncio.sleep(3600), fail())

    run_virtual(main())


async def fail() -> str:
    await asyncio.sleep(0)
    raise ValueError("no")


def test_an_error_of_one_thing_ends_it_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Nursery("test") as nursery:
            other = nursery.start(asyncio.sleep(1, "served"), "other")
            assert await nursery.start(fail(), "thing") is None
            assert await other == "served"

    run_virtual(main())
    [record] = caplog.records
    assert record.message == "test/thing failed; nothing else ends"


def test_a_future_that_is_cancelled_elsewhere_ends_one_thing_alone() -> None:
    async def main() -> None:
        async with Nursery("test") as nursery:
            future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.cancel)

            async def wait() -> str:
                return await future

            assert await nursery.start(wait(), "thing") is None

    run_virtual(main())


def test_an_end_is_repeated_until_it_succeeds() -> None:
    tries = []

    async def end() -> None:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) < 100:
            await fail()

    async def main() -> None:
        async with Nursery("test") as nursery:
            await nursery.start_end(end, "end")

    run_virtual(main())
    assert len(tries) == 100


@pytest.mark.parametrize("pause_s", [1.0, 10.0])
def test_a_loop_begins_again_unless_it_fails_again_and_again(pause_s: float) -> None:
    begun = []

    async def loop() -> None:
        begun.append(True)
        await asyncio.sleep(pause_s)
        await fail()

    async def main() -> None:
        async with Nursery("test") as nursery:
            nursery.start_loop(loop, "loop")
            async with asyncio.timeout(500):
                await nursery.failed()

    with pytest.raises(ValueError if pause_s == 1.0 else TimeoutError):
        run_virtual(main())
    assert len(begun) == (11 if pause_s == 1.0 else 50)


def test_every_error_fails_a_strict_nursery() -> None:
    async def main() -> None:
        async with Nursery("test", strict=True) as nursery:
            nursery.start(fail(), "thing")
            await nursery.failed()

    with pytest.raises(ValueError, match="no"):
        run_virtual(main())
