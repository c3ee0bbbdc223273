"""The scheduler, asked with the key of one browser: one connection for each question."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.values import Value, replace
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.client.access import Access
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.keys import name_of
from orchgpu.jobs.rights import Role, rights_of
from orchgpu.web.model.viewers import Viewer

T = TypeVar("T")

#: A person waits for the answer.
ANSWER_WITHIN_S = 5.0


class SchedulerDoor(Value):
    """The way to the scheduler."""

    address: str
    access: Access  #: of the server itself: its CA also holds for browsers' keys
    budget: Budget

    @asynccontextmanager
    async def client(self, key: str | None) -> AsyncIterator[SchedulerClient]:
        """A client with a browser's key, for the length of the block."""
        access = replace(self.access, key=key, source=None)
        async with SchedulerClient(
            self.address, budget=self.budget, deadline_s=ANSWER_WITHIN_S, access=access
        ) as client:
            yield client

    async def ask(self, key: str | None, question: Callable[[SchedulerClient], Awaitable[T]]) -> T:
        """One question. Raises the scheduler's error, or UNAVAILABLE."""
        async with self.client(key) as client:
            return await question(client)

    async def viewer(self, key: str | None) -> Viewer:
        """The rights of a key; None: without one. Raises DENIED for a wrong or missing key."""
        if key is not None and name_of(key) is None:
            text = "this is not a valid key; paste the one that `ssgmd keys add` printed"
            raise AppError(ErrorCode.DENIED, text, needs="key")
        async with self.client(key) as client:
            await client.ask(ops.Beat())  # a refused hello fails it at once
            welcome = client.welcome
        if key is None:
            return Viewer(name="", role=Role.OPERATOR)  # no keys: this machine is trusted
        found = rights_of(client.session, welcome)
        if found is None:  # an older scheduler: the least rights
            return Viewer(name=name_of(key) or "", role=Role.READER)
        return Viewer(name=found.name, role=found.role, tenant=found.tenant)
