"""The `Scheduler` port over `gpu_scheduler.client`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.client import Connected, PushWord, SchedulerClient
from gpu_scheduler.client.access import Access
from gpu_scheduler.client.client import new_session
from gpu_scheduler.model import EndReason, GrantedLease, LeaseLifetime, Record, Request
from gpu_scheduler.protocol import answers
from orchgpu import ports


class SchedulerAdapter:
    """One requester session. Its pushes are kept in order until `pushes` takes them."""

    def __init__(self, client: SchedulerClient, mail: asyncio.Queue[ports.Push]) -> None:
        self._client = client
        self._mail = mail

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, address: str, replica: str, budget: Budget, access: Access | None = None
    ) -> AsyncIterator[SchedulerAdapter]:
        """A session of its own for every process: a successor adopts, it never impersonates.

        `access` None: the environment's.
        """
        mail: asyncio.Queue[ports.Push] = asyncio.Queue()

        def receive(word: PushWord) -> None:
            push = _translate(word)
            if push is not None:
                mail.put_nowait(push)

        session = f"{replica}-{new_session()}"
        async with SchedulerClient(
            address, session=session, budget=budget, on_push=receive, access=access
        ) as client:
            await client.wait_connected(budget.client_gone_s + budget.reconnect_s_max)
            yield cls(client, mail)

    @property
    def session(self) -> str:
        return self._client.session

    async def pushes(self) -> AsyncIterator[ports.Push]:
        while True:
            yield await self._mail.get()

    async def attempt(
        self,
        holder: str,
        n: int,
        revision: int,
        handle: str,
        block: Mapping[str, Any],
        request: Request,
        received_ago_s: float,
        *,
        hold: LeaseLifetime = LeaseLifetime.SESSION,
    ) -> ports.AttemptOutcome:
        answer = await self._client.attempt(
            holder,
            n,
            revision,
            request,
            handle=handle,
            block=block,
            wait=True,
            received_ago_s=received_ago_s,
            hold=hold,
        )
        return ports.AttemptOutcome(
            outcome=answer.outcome.value,
            granted=answer.granted,
            explanation=answer.explanation,
            record=answer.record,
        )

    async def adopt(
        self, holder: str, revision: int, handle: str | None
    ) -> tuple[Record, GrantedLease | None]:
        adopted = await self._client.adopt(holder, revision, handle)
        return adopted.record, adopted.granted

    async def orphans(self, limit: int) -> Sequence[Record]:
        return await self._client.orphans(limit)

    async def record(self, holder: str) -> Record | None:
        return await self._client.record(holder)

    async def store_handle(self, holder: str, handle: str) -> None:
        await self._client.handle(holder, handle)

    async def hand_back(self, holder: str, revision: int) -> None:
        await self._client.hand_back(holder, revision)

    async def renew(self, lease: str) -> None:
        await self._client.renew(lease)

    async def staged(self, holder: str, lease: str, connect_by_s: float) -> None:
        await self._client.staged(holder, lease, connect_by_s)

    async def release(self, lease: str, reason: str, detail: str) -> None:
        await self._client.release(lease, EndReason(reason), detail)

    async def fail_attempt(
        self, holder: str, revision: int, reason: str, detail: str, retry_at_s: float
    ) -> Record:
        return _present(
            await self._client.fail_attempt(holder, revision, reason, detail, retry_at_s)
        )

    async def finish(
        self,
        holder: str,
        outcome: str,
        reason: str,
        detail: str,
        *,
        block: Mapping[str, Any] | None,
        received_ago_s: float,
        committed_ago_s: float,
    ) -> None:
        await self._client.finish(
            holder,
            outcome,
            reason,
            detail,
            block=block,
            received_ago_s=received_ago_s,
            committed_ago_s=committed_ago_s,
        )

    async def reopen(self, holder: str, revision: int, handle: str) -> Record:
        return _present(await self._client.reopen(holder, revision, handle))

    async def device_count(self, request: Request) -> int:
        inventory = await self._client.inventory()
        devices = [view.device for host in inventory.hosts for view in host.devices]
        return sum(not request.kinds or device.kind in request.kinds for device in devices)


def _present(record: Record | None) -> Record:
    if record is None:
        raise AppError(ErrorCode.NOT_FOUND, "the job record is gone")
    return record


def _translate(word: PushWord) -> ports.Push | None:
    """What concerns a job of ours; leases without a job record are not our business."""
    if isinstance(word, Connected):
        return ports.Returned(holder="")
    holder = getattr(word, "holder", None)
    if holder is None:
        return None
    match word:
        case answers.GrantedPush():
            return ports.GrantPush(
                holder=holder, attempt=_number(word.attempt), granted=word.granted
            )
        case answers.ImpossiblePush() | answers.BusyPush():
            return ports.RefusalPush(
                holder=holder,
                attempt=_number(word.attempt),
                explanation=word.explanation,
                busy=isinstance(word, answers.BusyPush),
            )
        case answers.LeasePush():
            return ports.LeasePush(
                holder=holder,
                attempt=_number(word.attempt),
                state=word.state,
                reason=word.reason,
                detail=word.detail,
            )
        case answers.HandlePush():
            return ports.HandlePush(holder=holder, handle=word.handle)
        case answers.DisownedPush():
            return ports.DisownedPush(holder=holder)
    return None


def _number(attempt: str) -> int:
    """n of an attempt id `<job_id>:<n>`."""
    return int(attempt.rsplit(":", 1)[1])
