"""Drives asynchronous invocations: starts those that are due, reports results, delivers records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from corekit.aio.supervise import Nursery
from local_cloud.model.functions.function import (
    DestinationRecord,
    Invocation,
    InvocationQueue,
    Outcome,
)

logger = logging.getLogger(__name__)


class Target(Protocol):
    """A function with events to run."""

    @property
    def name(self) -> str: ...

    @property
    def invocations(self) -> InvocationQueue: ...


Run = Callable[[Target, Invocation], Awaitable[Outcome]]
Deliver = Callable[[DestinationRecord], Awaitable[None]]


class Dispatcher:
    """One for all functions. An error of `run` is the function's; of `deliver`, a lost record."""

    def __init__(
        self, nursery: Nursery, now_s: Callable[[], float], run: Run, deliver: Deliver
    ) -> None:
        self._nursery = nursery
        self._now_s = now_s
        self._run = run
        self._deliver = deliver
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._throttled: dict[str, Target] = {}  #: functions with events that found no slot

    def pump(self, target: Target) -> None:
        """Start the due invocations, and again when the next one is due."""
        timer = self._timers.pop(target.name, None)
        if timer is not None:
            timer.cancel()
        starting, records = target.invocations.start_due(self._now_s())
        for invocation in starting:
            self._nursery.start(self._run_one(target, invocation), f"invoke/{target.name}")
        self._give(records)
        due_at_s = target.invocations.next_due_at_s()
        if due_at_s is not None:
            delay_s = max(due_at_s - self._now_s(), 0.0) + 0.001
            loop = asyncio.get_running_loop()
            self._timers[target.name] = loop.call_later(delay_s, self.pump, target)

    def slot_free(self) -> None:
        """An environment is free: the oldest throttled event of each function is tried."""
        for name, target in list(self._throttled.items()):
            if target.invocations.slot_free(self._now_s()):
                self.pump(target)
            else:
                del self._throttled[name]

    def limit_changed(self, target: Target) -> None:
        """The function's concurrency is another one: each of its throttled events is tried."""
        while target.invocations.slot_free(self._now_s()):
            pass
        self.pump(target)

    def close(self) -> None:
        """Start nothing more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def _run_one(self, target: Target, invocation: Invocation) -> None:
        try:
            outcome = await self._run(target, invocation)
        except Exception:  # one invocation fails, and its place is free again
            logger.exception("an invocation failed", extra={"event": "sandbox_failed"})
            outcome = Outcome(payload="", error="Unhandled")
        if outcome.throttled:
            self._throttled[target.name] = target
        self._give(target.invocations.ended(self._now_s(), invocation.request_id, outcome))
        self.pump(target)

    def _give(self, records: list[DestinationRecord]) -> None:
        for record in records:
            self._nursery.start(self._hand_over(record), "deliver")

    async def _hand_over(self, record: DestinationRecord) -> None:
        try:
            await self._deliver(record)
        except Exception:
            logger.exception("a destination record was lost", extra={"event": "record_lost"})
