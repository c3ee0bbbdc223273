"""Drives asynchronous invocations: starts those that are due, reports results, delivers records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from corekit.aio.supervise import Nursery
from local_cloud.model.functions.function import DestinationRecord, Invocation, Outcome
from local_cloud.model.functions.functions import LambdaFunction

logger = logging.getLogger(__name__)


Run = Callable[[LambdaFunction, Invocation], Awaitable[Outcome]]
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
        self._throttled: dict[str, LambdaFunction] = {}  #: functions with events that found no slot

    def pump(self, function: LambdaFunction) -> None:
        """Start the due invocations, and again when the next one is due."""
        timer = self._timers.pop(function.name, None)
        if timer is not None:
            timer.cancel()
        starting, records = function.invocations.start_due(self._now_s())
        for invocation in starting:
            self._nursery.start(self._run_one(function, invocation), f"invoke/{function.name}")
        self._give(records)
        due_at_s = function.invocations.next_due_at_s()
        if due_at_s is not None:
            delay_s = max(due_at_s - self._now_s(), 0.0) + 0.001
            loop = asyncio.get_running_loop()
            self._timers[function.name] = loop.call_later(delay_s, self.pump, function)

    def slot_free(self) -> None:
        """An environment is free: the oldest throttled event of each function is tried."""
        for name, function in list(self._throttled.items()):
            if function.invocations.slot_free(self._now_s()):
                self.pump(function)
            else:
                del self._throttled[name]

    def limit_changed(self, function: LambdaFunction) -> None:
        """The function's concurrency is another one: each of its throttled events is tried."""
        while function.invocations.slot_free(self._now_s()):
            pass
        self.pump(function)

    def close(self) -> None:
        """Start nothing more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def _run_one(self, function: LambdaFunction, invocation: Invocation) -> None:
        try:
            outcome = await self._run(function, invocation)
        except Exception:  # one invocation fails, and its place is free again
            logger.exception("an invocation failed", extra={"event": "sandbox_failed"})
            outcome = Outcome(payload="", error="Unhandled")
        if outcome.throttled:
            self._throttled[function.name] = function
        self._give(function.invocations.ended(self._now_s(), invocation.request_id, outcome))
        self.pump(function)

    def _give(self, records: list[DestinationRecord]) -> None:
        for record in records:
            self._nursery.start(self._hand_over(record), "deliver")

    async def _hand_over(self, record: DestinationRecord) -> None:
        try:
            await self._deliver(record)
        except Exception:
            logger.exception("a destination record was lost", extra={"event": "record_lost"})
