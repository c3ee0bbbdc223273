"""The one driver: runs a core between a journal and the world.

    events (bounded queue) → handle → journal.append(changes), one sync per group → actions

Every action is run by `perform`. What can be done at once it does and returns None; for the rest
it returns an awaitable of the event it led to, run as a supervised task, so a slow call never
blocks a decision. Changes of all events taken in one turn are synced once, before the first action
of that turn runs; actions are performed (or started) in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from corekit.aio.supervise import Nursery
from corekit.machine import Decision, Machine

EventT = TypeVar("EventT")
ChangeT = TypeVar("ChangeT")
ActionT = TypeVar("ActionT")
_ChangeIn = TypeVar("_ChangeIn", contravariant=True)


class Journal(Protocol[_ChangeIn]):
    """Where changes become durable."""

    async def append(self, changes: Sequence[_ChangeIn]) -> None:
        """Durable when it returns. Raises AppError(EXHAUSTED) when the store is full."""
        ...


class NoJournal(Generic[ChangeT]):
    """For cores whose durable state lives elsewhere (the orchestrator's is in job records)."""

    async def append(self, changes: Sequence[ChangeT]) -> None:
        assert not changes, "a core without a journal must not return changes"


class Driver(Generic[EventT, ChangeT, ActionT]):
    """One core, one queue, one journal."""

    def __init__(
        self,
        machine: Machine[EventT, ChangeT, ActionT],
        journal: Journal[ChangeT],
        perform: Callable[[ActionT], Awaitable[EventT | None] | None],
        nursery: Nursery,
        *,
        queue_max: int = 100_000,
        group_max: int = 256,
    ) -> None:
        self._machine = machine
        self._journal = journal
        self._perform = perform
        self._nursery = nursery
        self._group_max = group_max  # bounds how long the first action of a group waits
        self._queue: asyncio.Queue[EventT] = asyncio.Queue(queue_max)
        self._idle = asyncio.Event()
        self._idle.set()
        self._running = 0

    def submit(self, event: EventT) -> None:
        """Hand an event in; raises asyncio.QueueFull when the daemon is hopelessly behind."""
        self._idle.clear()
        self._queue.put_nowait(event)

    async def run(self) -> None:
        """Take events for ever."""
        while True:
            await self._turn(await self._queue.get())

    async def drained(self) -> None:
        """Wait until no event is queued and no action runs."""
        await self._idle.wait()

    async def _turn(self, first: EventT) -> None:
        decisions = [self._machine.handle(first)]
        while len(decisions) < self._group_max and not self._queue.empty():
            decisions.append(self._machine.handle(self._queue.get_nowait()))
        changes = [change for decision in decisions for change in decision.changes]
        if changes:
            await self._journal.append(changes)
        self._start_actions(decisions)
        self._settle()

    def _start_actions(self, decisions: Sequence[Decision[ChangeT, ActionT]]) -> None:
        for decision in decisions:
            for action in decision.actions:
                work = self._perform(action)
                if work is not None:
                    self._running += 1
                    self._nursery.start(self._one(work), type(action).__name__)

    async def _one(self, work: Awaitable[EventT | None]) -> None:
        try:
            event = await work
            if event is not None:
                self.submit(event)
        finally:
            self._running -= 1
            self._settle()

    def _settle(self) -> None:
        if self._running == 0 and self._queue.empty():
            self._idle.set()
