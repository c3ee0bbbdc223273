"""The moments at which a reader of the scheduler reads again, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from corekit.aio.vloop import run_virtual
from gpu_scheduler.client.pushes import Connected
from orchgpu.jobs.live.feed import Feed


def pushed(feed: Feed) -> None:
    feed._pushed(Connected(epoch=1))


def waited_s(does: Callable[[Feed], None] | None, at_s: float) -> float:
    """The time that `changed(2.0, 1.0)` takes when that happens at `at_s`."""

    async def main() -> float:
        feed, loop = Feed("127.0.0.1:1"), asyncio.get_running_loop()
        if does is not None:
            loop.call_later(at_s, does, feed)
        began_s = loop.time()
        await feed.changed(2.0, 1.0)
        return loop.time() - began_s

    return run_virtual(main())


@pytest.mark.parametrize(
    ("does", "at_s", "waited"),
    [
        (None, 0.0, 3.0),
        (pushed, 0.5, 1.0),  # a burst of pushes is one read
        (pushed, 1.5, 1.5),
        (Feed.wake, 0.5, 0.5),
        (Feed.wake, 1.5, 1.5),
    ],
)
def test_a_push_waits_for_the_pause_and_a_key_does_not(
    does: Callable[[Feed], None] | None, at_s: float, waited: float
) -> None:
    assert waited_s(does, at_s) == pytest.approx(waited)


def test_a_change_during_a_read_is_not_forgotten() -> None:
    async def main() -> float:
        feed, loop = Feed("127.0.0.1:1"), asyncio.get_running_loop()
        pushed(feed)
        await feed.changed(100.0, 1.0)
        feed.wake()
        await feed.changed(100.0, 50.0)
        return loop.time()

    assert run_virtual(main()) < 10.0
