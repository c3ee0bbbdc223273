"""Requests of the HTTP door on their way to the core and back: one future each."""

from __future__ import annotations

import asyncio

from corekit.errors import AppError, ErrorCode
from corekit.ids import SessionId
from gpu_scheduler.core import actions as do
from gpu_scheduler.daemon.access.authorizer import TRUSTED, Caller
from gpu_scheduler.daemon.endpoints.connections import ConnectionRegistry
from gpu_scheduler.daemon.endpoints.request_decoder import RequestDecoder
from gpu_scheduler.protocol.codec import Body

Answered = tuple[do.Answer, bytes]  #: the core's value and its JSON


class Calls:
    """A sink of the registry."""

    bytes_max = None  # an HTTP answer may be as long as it is

    def __init__(self, decoder: RequestDecoder, registry: ConnectionRegistry) -> None:
        self._decoder = decoder
        self._number = registry.register(self)
        self._waiting: dict[int, asyncio.Future[Answered]] = {}
        self._callers: dict[int, Caller] = {}
        self._next = 0

    async def ask(self, caller: Caller, session: str, op: str, body: Body) -> Answered:
        """One op. Raises AppError; BrokenFrame when the body is no object."""
        self._next += 1
        id_ = self._next
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting[id_], self._callers[id_] = future, caller
        try:
            known_as = SessionId(caller.session(session))
            self._decoder.ask(caller, known_as, op, body, f"{self._number}.{id_}")
            return await future
        except asyncio.QueueFull:
            text = "the scheduler is behind with its work; try again in a moment"
            raise AppError(ErrorCode.EXHAUSTED, text) from None
        finally:
            del self._waiting[id_], self._callers[id_]

    def answer(self, id_: int, answer: do.Answer, text: bytes) -> None:
        if (future := self._waiting.get(id_)) and not future.done():
            future.set_result((answer, text))

    def refuse(self, id_: int, error: AppError) -> None:
        if (future := self._waiting.get(id_)) and not future.done():
            future.set_exception(error)

    def caller_of(self, id_: int) -> Caller:
        return self._callers.get(id_, TRUSTED)  # he is gone, and is not answered

    def close(self) -> None:
        """Requests under way are ended by the HTTP server itself."""
