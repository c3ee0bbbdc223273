"""The cloud, asked in threads: a few calls at once, the others wait in line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

from corekit.errors import AppError, ErrorCode
from orchgpu.jobs.cloud import JobCloud

T = TypeVar("T")

#: Calls at once; each browser's request is one.
AT_ONCE = 8
#: Requests that may wait for a thread; more are refused.
IN_LINE_MAX = 64


class CloudDoor:
    """`async with CloudDoor() as door: await door.ask(lambda cloud: cloud.functions())`."""

    def __init__(self) -> None:
        self._cloud = JobCloud(connections=AT_ONCE)
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="cloud")
        self._waiting = 0

    async def __aenter__(self) -> CloudDoor:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)
        self._cloud.close()

    async def ask(self, question: Callable[[JobCloud], T]) -> T:
        """One piece of work. Raises its AppError; EXHAUSTED when too many wait."""
        if self._waiting >= IN_LINE_MAX:
            text = "too many requests wait for the cloud; try again"
            raise AppError(ErrorCode.EXHAUSTED, text, retry_in_s=2.0)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, question, self._cloud)
        finally:
            self._waiting -= 1
