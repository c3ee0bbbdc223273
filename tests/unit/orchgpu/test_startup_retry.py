"""A start waits for what is away, says so, and ends at once when it is told to stop."""

from __future__ import annotations

import asyncio
import logging

import pytest

from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from orchgpu.replica.startup import StartupRetry, Stopped


class Away:
    """Fails so many times before it answers; remembers when it was asked."""

    def __init__(self, *errors: AppError) -> None:
        self._errors = list(errors)
        self.asked_s: list[float] = []

    async def ask(self) -> str:
        self.asked_s.append(asyncio.get_running_loop().time())
        if self._errors:
            raise self._errors.pop(0)
        return "here"


def away(code: ErrorCode = ErrorCode.UNAVAILABLE) -> AppError:
    return AppError(code, "connection refused")


def test_what_is_away_is_asked_again_with_growing_pauses(caplog: pytest.LogCaptureFixture) -> None:
    cloud = Away(*(away() for _ in range(8)))

    async def start() -> str:
        return await StartupRetry(asyncio.Event(), Budget()).until_done("the cloud", cloud.ask)

    with caplog.at_level(logging.WARNING):
        assert run_virtual(start()) == "here"
    pauses = [b - a for a, b in zip(cloud.asked_s, cloud.asked_s[1:], strict=False)]
    for pause_s, ceiling_s in zip(pauses, [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0], strict=True):
        assert ceiling_s / 2 <= pause_s <= ceiling_s + 1e-6
    assert len(caplog.records) == 8
    assert "the cloud cannot be reached" in caplog.messages[0]
    assert "connection refused" in caplog.messages[0]


def test_what_time_cannot_heal_ends_the_start() -> None:
    cloud = Away(away(ErrorCode.DENIED))

    async def start() -> str:
        return await StartupRetry(asyncio.Event(), Budget()).until_done("the cloud", cloud.ask)

    with pytest.raises(AppError, match="refused"):
        run_virtual(start())
    assert len(cloud.asked_s) == 1


@pytest.mark.parametrize("hangs", [False, True])
def test_a_signal_ends_the_waiting(*, hangs: bool) -> None:
    async def never() -> str:
        if hangs:
            await asyncio.Event().wait()
        raise away()

    async def start() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(60.0, stop.set)
        with pytest.raises(Stopped):
            await StartupRetry(stop, Budget()).until_done("the cloud", never)

    run_virtual(start())
