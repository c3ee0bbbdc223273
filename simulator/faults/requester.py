"""The orchestrator's Scheduler port onto the simulated scheduler, over a slow and lossy wire."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import SessionId
from gpu_scheduler.client.pushes import Connected, PushWord
from gpu_scheduler.model import Request
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import PromisePush, Push
from gpu_scheduler.protocol.codec import VERSION
from orchgpu.ports import AnswerT
from simulator.faults.scheduler import SimScheduler

LOST_ANSWER_PAUSE_S = 0.5  #: a client repeats a call whose answer was lost


class SimRequester:
    """One session. Pushes may be lost while the scheduler is down; `Connected` follows then."""

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
        self._mail: asyncio.Queue[PushWord] = asyncio.Queue()
        self._connected = False
        self._silences = self._begun = 0  #: at present (they may overlap), and up to now
        self._heard = asyncio.Event()  #: cleared while nothing passes between both
        self._heard.set()

    async def beat(self) -> None:
        """Connect, beat and reconnect, without end."""
        while True:
            try:
                await self._connect()
                await self._heard.wait()
                await self._scheduler.ask(self._id, ops.Beat())
            except AppError:
                self._connected = False
            await asyncio.sleep(self._budget.client_beat_s if self._connected else 0.5)

    @property
    def is_heard(self) -> bool:
        """Whether the scheduler hears this session now."""
        return self._heard.is_set() and self._scheduler.up

    @property
    def disturbances(self) -> tuple[int, int]:
        """Silences, and starts of the scheduler, up to now."""
        return self._begun, self._scheduler.runs

    @property
    def _id(self) -> SessionId:
        return SessionId(self.session)

    async def _connect(self) -> None:
        if self._connected:
            return
        await self._heard.wait()
        self._scheduler.sessions[self._id] = self._receive
        hello = ops.Hello(session=self.session, version=VERSION)
        welcome = await self._scheduler.ask(self._id, hello)
        self._connected = True
        while not self._mail.empty():
            self._mail.get_nowait()  # of the connection before
        self._mail.put_nowait(Connected(epoch=welcome.epoch))

    def disconnect(self) -> None:
        """The process died: its mail is dropped."""
        self._scheduler.sessions.pop(self._id, None)

    def _receive(self, push: Push | None) -> None:
        if push is None:
            self._connected = False
        elif not isinstance(push, PromisePush):  # as the client: its readers use the event stream
            self._mail.put_nowait(push)

    async def pushes(self) -> AsyncIterator[PushWord]:
        while True:
            push = await self._mail.get()
            await self._travel()
            yield push

    async def be_silent(self, lasts_s: float) -> None:
        """Nothing passes for a time, and the connection ends by it. The process lives."""
        self._silences += 1
        self._begun += 1
        self._heard.clear()
        await asyncio.sleep(lasts_s)
        self._silences -= 1
        if not self._silences:
            self._connected = False
            self._heard.set()

    async def _travel(self) -> None:
        await asyncio.sleep(self._stream.uniform(0.0, self._delay_s_max))
        await self._heard.wait()

    async def ask(self, op: ops.Op[AnswerT]) -> AnswerT:
        """A request whose answer is lost is repeated: every call is idempotent."""
        while True:
            await self._travel()
            await self._connect()
            await self._heard.wait()
            answer = await self._scheduler.ask(self._id, op)
            if self._stream.random() >= self._loss_rate:
                await self._travel()
                return answer
            await asyncio.sleep(LOST_ANSWER_PAUSE_S)

    async def device_count(self, request: Request) -> int:
        answer = await self.ask(ops.Inventory())
        kinds = request.kinds
        devices = [view.device for host in answer.hosts for view in host.devices]
        devices += answer.declared
        return sum(not kinds or device.kind in kinds for device in devices)
