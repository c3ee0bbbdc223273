"""Supervised tasks: each has a name, is watched, and ends at shutdown.

A `Nursery` owns the tasks of one daemon. An eternal task that ends is an error; an error in any
task is logged when it happens and ends the daemon; `close` cancels what is left and waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from types import TracebackType
from typing import TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work = Coroutine[object, object, T]


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


class Nursery:
    """`async with Nursery("ssgmd") as nursery:` — tasks started in it end before the block does."""

    def __init__(self, name: str) -> None:
        self.name = name
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

    def start(self, work: Work[T], name: str) -> asyncio.Task[T]:
        """Run `work` until it ends; its failure fails the nursery."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name}/{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def start_eternal(self, work: Work[None], name: str) -> asyncio.Task[None]:
        """Run `work` that must not end before the nursery closes."""
        task = self.start(self._eternal(work, name), name)
        task.add_done_callback(lambda _: work.close())  # it may have ended before its first step
        return task

    async def _eternal(self, work: Work[None], name: str) -> None:
        await work
        if not self._closing:
            raise RuntimeError(f"{self.name}/{name} ended unexpectedly")

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
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
