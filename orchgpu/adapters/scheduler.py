"""The `Scheduler` port over `gpu_scheduler.client`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from corekit.budget import Budget
from gpu_scheduler.client import PushWord, SchedulerClient
from gpu_scheduler.client.access import Access
from gpu_scheduler.client.client import new_session
from gpu_scheduler.model import Request
from gpu_scheduler.protocol.ops import Beat, Op
from orchgpu.ports import AnswerT


class SchedulerAdapter:
    """One requester session. Its pushes are kept in order until `pushes` takes them."""

    def __init__(self, client: SchedulerClient, mail: asyncio.Queue[PushWord]) -> None:
        self._client = client
        self._mail = mail

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, address: str, replica: str, budget: Budget, access: Access | None = None
    ) -> AsyncIterator[SchedulerAdapter]:
        """Open a new session: a successor adopts records and never reuses a session.

        `access`: None means the environment's.
        """
        mail: asyncio.Queue[PushWord] = asyncio.Queue()

        session = f"{replica}-{new_session()}"
        async with SchedulerClient(
            address, session=session, budget=budget, on_push=mail.put_nowait, access=access
        ) as client:
            await client.wait_connected(budget.client_gone_s + budget.reconnect_s_max)
            yield cls(client, mail)

    @property
    def session(self) -> str:
        return self._client.session

    def report_account(self, account: str, ahead_max: int | None) -> None:
        """Report with every beat the account of the functions, and how many may wait ahead."""
        self._client.beat = Beat(account=account, ahead_max=ahead_max)

    async def pushes(self) -> AsyncIterator[PushWord]:
        while True:
            yield await self._mail.get()

    async def ask(self, op: Op[AnswerT]) -> AnswerT:
        return await self._client.ask(op)

    async def device_count(self, request: Request) -> int:
        inventory = await self._client.inventory()
        devices = [view.device for host in inventory.hosts for view in host.devices]
        devices += inventory.declared  # a fleet starts hosts for requests that wait
        return sum(not request.kinds or device.kind in request.kinds for device in devices)
