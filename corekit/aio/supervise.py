"""Supervised tasks: each has a name, is watched, and ends at shutdown.

A `Nursery` owns the tasks of one daemon, and the method that starts a task decides what its errors
end. **An error while one thing is served (a connection, lease, worker, request, job) ends that one,
never the daemon.**

| method | the task is | its error |
| --- | --- | --- |
| `start` | the work of one thing | ends it alone; a task that awaits it gets None |
| `start_end` | the end of one thing, such as a lease's processes | repeats it until it succeeds |
| `start_loop` | a loop that serves many things | begins it again; ends the daemon when repeated |
| `start_eternal` | the daemon: the driver of a core and its journal | ends it, as does its return |

A step for one thing inside a task of the daemon stands in a block `contained`. A journal that fails
is not tried again: what it holds is unknown, and a restart reads it. `close` cancels what is left
and waits for it. In simulations a nursery is `strict`: every error fails it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import TypeVar

from corekit.errors import AppError, ErrorCode

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work = Coroutine[object, object, T]

#: A loop that fails more often than this within the time ends the daemon, which its service manager
#: then starts again.
FAILURES_MAX, FAILURES_S = 10, 60.0
#: The pause before a loop or an end begins again.
AGAIN_S = 0.1


async def until_first(*works: Awaitable[object]) -> None:
    """Wait until one awaitable ends, then cancel the others. Raises the error of an ended one."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def contained(what: str, ended: Callable[[Exception], object] = lambda _: None) -> Iterator[None]:
    """Log an error of a block that serves one thing within a larger step, and go on after it.

    `ended` is called with the error, to end that thing.
    """
    try:
        yield
    except Exception as error:
        log_contained(what, error)
        ended(error)


def log_contained(what: str, error: BaseException) -> None:
    """Log an error that ended one thing only."""
    extra = {"event": "contained", "of": what}
    logger.error("%s failed; nothing else ends", what, exc_info=error, extra=extra)


class Nursery:
    """`async with Nursery("ssgmd") as nursery:` — tasks started in it end before the block does."""

    def __init__(self, name: str, *, strict: bool = False) -> None:
        """`strict`: every error fails the nursery, as simulations want it."""
        self.name = name
        self.strict = strict
        self._tasks: set[asyncio.Task[object]] = set()
        self._failure: asyncio.Future[None] | None = None
        self._closing = False

    async def __aenter__(self) -> Nursery:
        self._failure = asyncio.get_running_loop().create_future()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def start(self, work: Work[T], name: str) -> asyncio.Task[T | None]:
        """Run the work of one thing; its error is logged, and the task's result is then None."""
        return self._start(self._contained(work, name), work, name)

    def start_end(self, end: Callable[[], Work[None]], name: str) -> asyncio.Task[None]:
        """End one thing: repeat `end`, which continues where it failed, until it succeeds."""
        return self._start(self._repeated(end, name, None), None, name)

    def start_loop(self, loop: Callable[[], Work[None]], name: str) -> asyncio.Task[None]:
        """Run a loop until it returns; it begins again after an error, `FAILURES_MAX` times."""
        return self._start(self._repeated(loop, name, FAILURES_MAX), None, name)

    def start_eternal(self, work: Work[None], name: str) -> asyncio.Task[None]:
        """Run `work` that must neither fail nor end before the nursery closes."""
        return self._start(self._eternal(work, name), work, name)

    def _start(self, watched: Work[T], work: Work[object] | None, name: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(watched, name=f"{self.name}/{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if work is not None:
            # it may have ended before its first step
            task.add_done_callback(lambda _: work.close())
        return task

    async def _contained(self, work: Work[T], name: str) -> T | None:
        try:
            return await work
        except (Exception, asyncio.CancelledError) as error:
            if self.strict or _is_cancelled():
                raise
            self._log(name, error)
            return None

    async def _repeated(
        self, work: Callable[[], Work[None]], name: str, failures_max: int | None
    ) -> None:
        now_s = asyncio.get_running_loop().time
        failures: deque[float] = deque(maxlen=failures_max or 1)
        while True:
            try:
                return await work()
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled():
                    raise
                is_too_often = len(failures) == failures_max and now_s() - failures[0] < FAILURES_S
                if self.strict or is_too_often:
                    raise
                failures.append(now_s())
                self._log(name, error)
            await asyncio.sleep(AGAIN_S)

    def _log(self, name: str, error: BaseException) -> None:
        log_contained(f"{self.name}/{name}", error)

    async def _eternal(self, work: Work[None], name: str) -> None:
        await work
        if not self._closing:
            raise RuntimeError(f"{self.name}/{name} ended unexpectedly")

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, AppError) and error.code is not ErrorCode.INTERNAL:
            # it ends the daemon, which names it
            logger.error("%s failed: %s", task.get_name(), error.message)
        else:
            logger.error("%s failed", task.get_name(), exc_info=error)
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def failed(self) -> None:
        """Wait until a task fails, and raise its error; the daemon's main wait."""
        assert self._failure is not None, "the nursery is not open"
        await asyncio.shield(self._failure)

    async def close(self) -> None:
        """Cancel every task and wait for all of them; idempotent."""
        self._closing = True
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._failure is not None and self._failure.done() and not self._failure.cancelled():
            self._failure.exception()  # retrieved: close() is not where it is reported
        elif self._failure is not None:
            self._failure.cancel()


def _is_cancelled() -> bool:
    """Whether this task was cancelled; else a future that it awaited was."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
