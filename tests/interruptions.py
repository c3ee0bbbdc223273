"""An error at every await of a daemon's tasks.

with interruptions() as found:
    async with daemon():
        ...                                # what tasks are there
        for kind in sorted(found.kinds):
            for await_ in found.points(kind):
                ...                        # serve one thing, which may fail
                found.disarm()
                ...                        # then another one, which may not
assert not found.failures
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from corekit.aio.supervise import Nursery

#: An await: the functions that wait for each other there, each with its line.
Place = tuple[str, ...]


class Injected(Exception):
    """An error that no code expects."""


class Interruptions:
    """Fails each await in the code of the tasks of one kind, once."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()  #: of all tasks that were started
        self.failures: list[str] = []  #: tasks whose error fails their nursery: the daemon ends
        self.places: dict[Place, None] = {}  #: awaits that were failed
        self.spares = False  #: tasks that start now are never interrupted
        self._armed = ""  # a kind
        self._running = 0
        self._before = -1  # of those when the first point was reached

    def points(self, kind: str) -> Iterator[None]:
        """One turn for each await that tasks of the kind reach, and one that reaches no new one."""
        if self._before < 0:
            self._before = self._running
        count = -1
        while count < len(self.places):
            count = len(self.places)
            self._armed = kind
            yield
            self.disarm()

    @property
    def is_reached(self) -> bool:
        """Whether an await was failed in this turn."""
        return not self._armed

    def disarm(self) -> None:
        """Fail no await in the rest of the turn."""
        self._armed = ""

    async def settled(self) -> None:
        """Wait until no more tasks run than before the first point."""
        async with asyncio.timeout(60):
            while self._running > self._before:  # noqa: ASYNC110 - it may be any task
                await asyncio.sleep(0.01)

    async def run(self, work: Coroutine[Any, Any, Any], kind: str) -> Any:
        """Run a task's coroutine."""
        self.kinds.add(kind)
        self._running += 1
        try:
            return await (work if self.spares else self._steps(work, kind))
        finally:
            self._running -= 1

    def ended(self, task: asyncio.Task[Any]) -> None:
        """Note a task whose error fails its nursery."""
        if not task.cancelled() and task.exception() is not None:
            self.failures.append(task.get_name())

    @types.coroutine
    def _steps(self, work: Coroutine[Any, Any, Any], kind: str) -> Generator[Any, Any, Any]:
        sent: Any = None
        error: BaseException | None = None
        while True:
            try:
                waits_for = work.send(sent) if error is None else work.throw(error)
            except StopIteration as end:
                return end.value
            is_after, sent, error = isinstance(error, Injected), None, None
            place = _place(work)
            if self._armed == kind and place not in self.places and not is_after:
                self.places[place] = None
                self.disarm()
                error = _failed(waits_for)
                if error is not None:
                    continue
            try:
                sent = yield waits_for
            except BaseException as raised:
                error = raised


def _place(work: Any) -> Place:
    found = []
    while (frame := getattr(work, "cr_frame", None) or getattr(work, "gi_frame", None)) is not None:
        found.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        work = getattr(work, "cr_await", None) or getattr(work, "gi_yieldfrom", None)
    return tuple(found)


def _failed(waits_for: Any) -> Injected | None:
    """Fail a future, as a socket or a timer would; the error to throw where it is another task."""
    error = Injected("at this await")
    is_task = isinstance(waits_for, asyncio.Task)
    if isinstance(waits_for, asyncio.Future) and not is_task and not waits_for.done():
        waits_for.set_exception(error)
        return None
    return error


@contextmanager
def interruptions() -> Iterator[Interruptions]:
    """For all nurseries. The kind of a task is its name up to the first slash."""
    found = Interruptions()
    start: Callable[..., asyncio.Task[Any]] = Nursery._start

    def started(nursery: Nursery, watched: Any, work: Any, name: str) -> asyncio.Task[Any]:
        task = start(nursery, found.run(watched, name.partition("/")[0]), work, name)
        task.add_done_callback(lambda _: watched.close())  # it may have ended before its first step
        task.add_done_callback(found.ended)
        return task

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Nursery, "_start", started)
        yield found
