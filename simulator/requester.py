"""The orchestrator's Scheduler port onto the simulated scheduler, over a slow and lossy wire."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import JobId, LeaseId, SessionId
from gpu_scheduler.core import actions as sched
from gpu_scheduler.core import events as ask
from gpu_scheduler.model import EndReason, GrantedLease, LeaseLifetime, Record, Request
from orchgpu import ports
from simulator.scheduler import SimScheduler

LOST_ANSWER_PAUSE_S = 0.5  #: a client repeats a call whose answer was lost


class SimRequester:
    """One session. Pushes may be lost while the scheduler is down; `Returned` says so."""

    def __init__(
        self,
        scheduler: SimScheduler,
        session: str,
        budget: Budget,
        stream: random.Random,
        *,
        delay_s_max: float,
        loss_rate: float,
    ) -> None:
        self.session = session
        self._scheduler = scheduler
        self._budget = budget
        self._stream = stream
        self._delay_s_max = delay_s_max
        self._loss_rate = loss_rate
        self._mail: asyncio.Queue[ports.Push] = asyncio.Queue()
        self._connected = False

    async def beat(self) -> None:
        """Connect, beat and reconnect, for ever."""
        while True:
            try:
                await self._connect()
                await self._scheduler.ask(ask.SessionBeat, session=self._id)
            except AppError:
                self._connected = False
            await asyncio.sleep(self._budget.client_beat_s if self._connected else 0.5)

    @property
    def _id(self) -> SessionId:
        return SessionId(self.session)

    async def _connect(self) -> None:
        if self._connected:
            return
        self._scheduler.sessions[self._id] = self._receive
        await self._scheduler.ask(ask.SessionHello, session=self._id)
        self._connected = True
        self._mail.put_nowait(ports.Returned(holder=""))

    def disconnect(self) -> None:
        """The process died: its mail is dropped."""
        self._scheduler.sessions.pop(self._id, None)

    def _receive(self, push: sched.Push | None) -> None:
        if push is None:
            self._connected = False
            return
        translated = _translate(push)
        if translated is not None:
            self._mail.put_nowait(translated)

    async def pushes(self) -> AsyncIterator[ports.Push]:
        while True:
            push = await self._mail.get()
            await self._travel()
            yield push

    async def _travel(self) -> None:
        await asyncio.sleep(self._stream.uniform(0.0, self._delay_s_max))

    async def _ask(self, kind: type[Any], **fields: Any) -> Any:
        """A lost answer is asked for again: every call is idempotent."""
        while True:
            await self._travel()
            await self._connect()
            answer = await self._scheduler.ask(kind, session=self._id, **fields)
            if self._stream.random() >= self._loss_rate:
                await self._travel()
                return answer
            await asyncio.sleep(LOST_ANSWER_PAUSE_S)

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
        answer = await self._ask(
            ask.AttemptAsked,
            holder=JobId(holder),
            n=n,
            revision=revision,
            handle=handle,
            block=block,
            request=request,
            wait=True,
            received_ago_s=received_ago_s,
            hold=hold,
        )
        return ports.AttemptOutcome(
            outcome=answer.outcome.value,
            granted=_granted(answer.granted),
            explanation=answer.explanation,
            record=answer.record,
        )

    async def adopt(
        self, holder: str, revision: int, handle: str | None
    ) -> tuple[Record, GrantedLease | None]:
        answer = await self._ask(
            ask.AdoptAsked, holder=JobId(holder), revision=revision, handle=handle
        )
        return answer.record, _granted(answer.granted)

    async def orphans(self, limit: int) -> Sequence[Record]:
        return tuple((await self._ask(ask.OrphansAsked, limit=limit)).records)

    async def record(self, holder: str) -> Record | None:
        answer = await self._ask(ask.RecordAsked, holder=JobId(holder))
        found: Record | None = answer.record
        return found

    async def store_handle(self, holder: str, handle: str) -> None:
        await self._ask(ask.HandleGiven, holder=JobId(holder), handle=handle)

    async def hand_back(self, holder: str, revision: int) -> None:
        await self._ask(ask.HandBackAsked, holder=JobId(holder), revision=revision)

    async def renew(self, lease: str) -> None:
        await self._ask(ask.RenewAsked, lease=LeaseId(lease))

    async def staged(self, holder: str, lease: str, connect_by_s: float) -> None:
        await self._ask(
            ask.StagedTold, holder=JobId(holder), lease=LeaseId(lease), connect_by_s=connect_by_s
        )

    async def release(self, lease: str, reason: str, detail: str) -> None:
        await self._ask(
            ask.ReleaseAsked, lease=LeaseId(lease), reason=EndReason(reason), detail=detail
        )

    async def fail_attempt(
        self, holder: str, revision: int, reason: str, detail: str, retry_at_s: float
    ) -> Record:
        answer = await self._ask(
            ask.AttemptFailed,
            holder=JobId(holder),
            revision=revision,
            reason=reason,
            detail=detail,
            retry_at_s=retry_at_s,
        )
        return _present(answer.record)

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
        await self._ask(
            ask.FinishAsked,
            holder=JobId(holder),
            outcome=outcome,
            reason=reason,
            detail=detail,
            block=block,
            received_ago_s=received_ago_s,
            committed_ago_s=committed_ago_s,
        )

    async def reopen(self, holder: str, revision: int, handle: str) -> Record:
        answer = await self._ask(
            ask.ReopenAsked, holder=JobId(holder), revision=revision, handle=handle
        )
        return _present(answer.record)

    async def device_count(self, request: Request) -> int:
        answer = await self._ask(ask.InventoryAsked)
        kinds = request.kinds
        devices = [view.device for host in answer.hosts for view in host.devices]
        return sum(not kinds or device.kind in kinds for device in devices)


def _present(record: Record | None) -> Record:
    if record is None:
        raise AppError(ErrorCode.NOT_FOUND, "the record is gone")
    return record


def _granted(granted: sched.Granted | None) -> GrantedLease | None:
    if granted is None:
        return None
    return GrantedLease(
        lease=granted.lease, epoch=granted.epoch, gateways=granted.gateways, secrets={}
    )


def _translate(push: sched.Push) -> ports.Push | None:
    if push.holder is None:
        return None
    holder = push.holder
    match push:
        case sched.GrantedPush():
            granted = _granted(push.granted)
            assert granted is not None
            return ports.GrantPush(holder=holder, attempt=_n(push.attempt), granted=granted)
        case sched.ImpossiblePush() | sched.BusyPush():
            return ports.RefusalPush(
                holder=holder,
                attempt=_n(push.attempt),
                explanation=push.explanation,
                busy=isinstance(push, sched.BusyPush),
            )
        case sched.LeasePush():
            return ports.LeasePush(
                holder=holder,
                attempt=_n(push.attempt),
                state=push.state,
                reason=push.reason,
                detail=push.detail,
            )
        case sched.HandlePush():
            return ports.HandlePush(holder=holder, handle=push.handle)
    return ports.DisownedPush(holder=holder)


def _n(attempt: str) -> int:
    return int(attempt.rsplit(":", 1)[1])
