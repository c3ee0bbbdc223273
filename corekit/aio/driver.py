"""The one driver: runs a core between a journal and the world.

    events (bounded queue) → handle → journal.append(changes), one sync per group → actions

Every action is run by `perform`. An action that is done at once returns None; any other returns an
awaitable of its event, run as a supervised task, so a slow call never blocks a decision. While one
group of decisions is synced, the next one is decided: its changes are one more sync, for which its
actions wait. So no action runs before its change and all earlier ones are durable, and all are
performed (or started) in their order. A failed sync ends the driver before any action of its group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from corekit.aio.supervise import Nursery
from corekit.machine import Decision, Machine

EventT = TypeVar("EventT")
ChangeT = TypeVar("ChangeT")
ActionT = TypeVar("ActionT")
_ChangeIn = TypeVar("_ChangeIn", contravariant=True)


class _Durable:
    """An awaitable that completes at once."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


#: Result of `Journal.append` when the changes are durable already.
DURABLE: Final = _Durable()


class Journal(Protocol[_ChangeIn]):
    """The store of durable changes."""

    def append(self, changes: Sequence[_ChangeIn]) -> Awaitable[None]:
        """Durable once awaited, and at once when it is `DURABLE`; called for one group at a time.

        Raises AppError(EXHAUSTED), at once or when awaited, when the store is full.
        """
        ...


class NoJournal(Generic[ChangeT]):
    """For cores whose durable state lives elsewhere (the orchestrator's is in job records)."""

    def append(self, changes: Sequence[ChangeT]) -> Awaitable[None]:
        assert not changes, "a core without a journal must not return changes"
        return DURABLE


class Driver(Generic[EventT, ChangeT, ActionT]):
    """One core, one queue, one journal."""

    def __init__(
        self,
        machine: Machine[EventT, ChangeT, ActionT],
        journal: Journal[ChangeT],
        perform: Callable[[ActionT], Awaitable[EventT | None] | None],
        nursery: Nursery,
        *,
        acted: Callable[[], None] = lambda: None,
        queue_max: int = 100_000,
        group_max: int = 256,
    ) -> None:
        self._machine = machine
        self._journal = journal
        self._perform = perform
        self._nursery = nursery
        self._acted = acted  # called when the actions of a group were performed or started
        self._queue_max = queue_max
        self._group_max = group_max  # bounds how long the first action of a group waits
        self._queue: deque[EventT] = deque()
        self._decided: list[Decision[ChangeT, ActionT]] = []  # not given to the journal yet
        self._syncing = False
        self._loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self._failure: asyncio.Future[None] | None = None
        self._due = False  # `_run_group` is scheduled: events of one loop iteration are one group
        self._idle = asyncio.Event()
        self._idle.set()
        self._running = 0

    def submit(self, event: EventT) -> None:
        """Hand an event in. Raises asyncio.QueueFull above `queue_max` events."""
        if len(self._queue) >= self._queue_max:
            raise asyncio.QueueFull
        self._idle.clear()
        self._queue.append(event)
        self._schedule()

    async def run(self) -> None:
        """Handle events without end. Raises the errors of the core and the journal."""
        self._loop = asyncio.get_running_loop()
        self._failure = self._loop.create_future()
        self._schedule()
        try:
            await self._failure
        finally:
            self._loop = None

    async def drained(self) -> None:
        """Wait until no event is queued and no action runs."""
        await self._idle.wait()

    def _schedule(self) -> None:
        if self._queue and not self._due and self._loop is not None:
            self._due = True
            self._loop.call_soon(self._run_group)

    def _run_group(self) -> None:
        """Decide one group; other tasks run before the next one."""
        self._due = False
        if self._loop is None or self._failure is None or self._failure.done():
            return
        try:
            self._decide()
            if not self._syncing:
                self._commit()
        except Exception as error:
            self._fail(error)
            return
        if len(self._decided) < self._group_max:
            self._schedule()

    def _decide(self) -> None:
        while self._queue and len(self._decided) < self._group_max:
            self._decided.append(self._machine.handle(self._queue.popleft()))

    def _commit(self) -> None:
        group, self._decided = self._decided, []
        changes = [change for decision in group for change in decision.changes]
        durable = self._journal.append(changes) if changes else DURABLE
        if durable is DURABLE:
            self._act(group)
        else:
            self._syncing = True
            self._nursery.start(self._act_when(durable, group), "sync")

    async def _act_when(
        self, durable: Awaitable[None], group: Sequence[Decision[ChangeT, ActionT]]
    ) -> None:
        try:
            await durable
            self._syncing = False  # after a failure it stays set: the journal is not used again
            self._act(group)
            if self._decided:
                self._commit()
        except Exception as error:
            self._fail(error)
            return
        self._schedule()

    def _fail(self, error: Exception) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _act(self, group: Sequence[Decision[ChangeT, ActionT]]) -> None:
        for decision in group:
            for action in decision.actions:
                work = self._perform(action)
                if work is not None:
                    self._running += 1
                    self._nursery.start(self._one(work), type(action).__name__)
        self._acted()
        self._settle()

    async def _one(self, work: Awaitable[EventT | None]) -> None:
        try:
            event = await work
            if event is not None:
                self.submit(event)
        finally:
            self._running -= 1
            self._settle()

    def _settle(self) -> None:
        if not (self._running or self._queue or self._decided or self._syncing):
            self._idle.set()
