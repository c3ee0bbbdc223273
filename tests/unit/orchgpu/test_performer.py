"""What a port raises is the one job's trouble, never the replica's end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from corekit.aio.clock import SystemClock
from corekit.budget import Budget
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.performer import Performer


class Choking:
    """A store whose library cannot take what it is given."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def get(self, *names: Any, **options: Any) -> Any:
        raise self._error


def performer(error: BaseException) -> Performer:
    nothing: Any = None
    store: Any = Choking(error)
    return Performer(
        queue=nothing, store=store, scheduler=nothing, render=nothing, clock=SystemClock(),
        budget=Budget(),
    )  # fmt: skip


READ = do.ReadResult(job="j1", bucket="mid")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        TypeError("no"),
        KeyError("no"),
        OverflowError("no"),
        UnicodeEncodeError("utf-8", "x", 0, 1, "surrogates not allowed"),
    ],
)
def test_a_value_that_a_library_cannot_take_fails_its_call(error: Exception) -> None:
    event = asyncio.run(performer(error).perform(READ))
    assert isinstance(event, on.CallFailed)
    assert not event.retryable
    assert event.action is READ
    assert type(error).__name__ in event.message


def test_what_nobody_foresaw_is_not_hidden() -> None:
    with pytest.raises(AssertionError):
        asyncio.run(performer(AssertionError("a broken invariant")).perform(READ))
