"""Leases of requests that wait for a device, over one connection to the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from corekit.errors import AppError
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.client.pushes import PushWord
from gpu_scheduler.model import GrantedLease, Request
from gpu_scheduler.protocol.answers import GrantedPush


class WaitingLeases:
    """Requests, each with the future of its lease."""

    def __init__(self, address: str) -> None:
        self.scheduler = SchedulerClient(address, on_push=self._pushed)
        self._granted: dict[str, asyncio.Future[GrantedLease]] = {}

    async def __aenter__(self) -> WaitingLeases:
        await self.scheduler.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.scheduler.__aexit__(kind, error, trace)

    async def submit(self, attempt: str, request: Request) -> None:
        """Put a request into the queue; requests keep the order of their submission."""
        self._granted[attempt] = asyncio.get_running_loop().create_future()
        answer = await self.scheduler.reserve(attempt, request, wait=True)
        if answer.granted is not None:
            self._resolve(attempt, answer.granted)

    async def lease(self, attempt: str) -> GrantedLease:
        """The lease of a submitted request, once it is granted."""
        granted = await self._granted[attempt]
        del self._granted[attempt]
        with contextlib.suppress(AppError):  # granted at once: there is nothing to accept
            await self.scheduler.renew(granted.lease.id)
        return granted

    def _pushed(self, push: PushWord) -> None:
        if isinstance(push, GrantedPush):
            self._resolve(push.attempt, push.granted)

    def _resolve(self, attempt: str, granted: GrantedLease) -> None:
        future = self._granted.get(attempt)
        if future is not None and not future.done():  # an answer may follow its push
            future.set_result(granted)
