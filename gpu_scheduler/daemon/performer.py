"""The performer: carries out the actions of the core, its timer, and the state of the disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from corekit.aio.clock import Clock
from corekit.aio.driver import Driver
from corekit.aio.driver import Journal as DriverJournal
from corekit.aio.supervise import Nursery, log_contained
from corekit.budget import Budget
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.endpoints.connections import ConnectionRegistry
from gpu_scheduler.daemon.journal.journal import Journal
from gpu_scheduler.daemon.waker import Waker
from gpu_scheduler.protocol.changes import Entry

#: A tick for which the queue had no room is submitted again after this time.
TICK_AGAIN_S = 0.01


def _unwoken(_: do.Wake) -> None:
    """Jobs were left to an earlier run, which had a waker: the scan for jobs finds them."""


class Performer:
    """Performs the core's actions; none of them waits."""

    def __init__(
        self, registry: ConnectionRegistry, clock: Clock, waker: Waker | None = None
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.driver: Driver[on.Event, Entry, do.Action] | None = None
        self._verbs: Mapping[type[do.Action], Callable[[Any], None]] = {
            do.Reply: registry.reply,
            do.ReplyError: registry.reply_error,
            do.PushToSession: registry.push,
            do.PushToHost: registry.push_to_host,
            do.Wake: _unwoken if waker is None else waker.wake,
        }

    def driven(
        self, machine: SchedulerMachine, journal: DriverJournal[Entry], nursery: Nursery
    ) -> Driver[on.Event, Entry, do.Action]:
        """The driver of the core, whose actions this performs: it gets the events from now on."""
        self.driver = Driver(machine, journal, self.perform, nursery, acted=self._registry.flush)
        return self.driver

    def perform(self, action: do.Action) -> None:
        """Perform an action; an answer or push that cannot be sent ends its request or connection.

        The timer is the daemon's: its error is raised.
        """
        if isinstance(action, do.WakeAt):
            self._wake_at(action)
            return
        try:
            self._verbs[type(action)](action)
        except Exception as error:
            log_contained(type(action).__name__, error)
            if not isinstance(action, do.Wake):
                self._registry.failed(action)

    def _wake_at(self, action: do.WakeAt) -> None:
        self.close()
        self._timer = self._loop.call_later(action.at_s - self._clock.monotonic_s(), self._tick)

    def _tick(self) -> None:
        """Submit the tick. The core asks for one at a time, so a full queue must not lose it."""
        try:
            self.submit(on.Ticked(at_s=self._clock.monotonic_s(), wall_s=self._clock.wall_s()))
        except asyncio.QueueFull:
            self._timer = self._loop.call_later(TICK_AGAIN_S, self._tick)

    def submit(self, event: on.Event) -> None:
        """Hand an event to the core. Raises asyncio.QueueFull when its queue is full."""
        assert self.driver is not None, "the endpoints open after it"
        self.driver.submit(event)

    async def watch_room(self, journal: Journal, budget: Budget) -> None:
        """Submit an event whenever the journal's disk becomes full or has room again. Endless."""
        had_room = True
        while True:
            journal.upkeep()
            if journal.has_room is not had_room:
                now = {"at_s": self._clock.monotonic_s(), "wall_s": self._clock.wall_s()}
                with contextlib.suppress(asyncio.QueueFull):  # again at the next poll
                    self.submit(on.RoomChanged(has_room=not had_room, **now))
                    had_room = not had_room
            await asyncio.sleep(budget.room_poll_s)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
