"""Requests of the HTTP API and of the daemon itself on their way to the core and back."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from corekit.errors import AppError, ErrorCode
from corekit.ids import SessionId
from corekit.values import Value
from gpu_scheduler.daemon.access.authorizer import NOBODY, Caller
from gpu_scheduler.daemon.endpoints.connections import ConnectionRegistry
from gpu_scheduler.daemon.endpoints.request_decoder import RequestDecoder
from gpu_scheduler.protocol.ops import Op, answer_of

AnswerT = TypeVar("AnswerT", bound=Value)


class Calls:
    """A sink with one future for each request."""

    def __init__(self, decoder: RequestDecoder, registry: ConnectionRegistry) -> None:
        self.decoder = decoder
        self._number = registry.register(self)
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # request id → future of its answer
        self._callers: dict[int, Caller] = {}
        self._next = 0

    async def ask(self, caller: Caller, session: str, op: Op[AnswerT]) -> AnswerT:
        """Submit one op and return its answer. Raises AppError."""
        self._next += 1
        id_ = self._next
        future: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()
        self._waiting[id_], self._callers[id_] = future, caller
        try:
            known_as = SessionId(caller.session(session))
            self.decoder.submit(caller, known_as, op, f"{self._number}.{id_}")
            answer = await future
            assert isinstance(answer, answer_of(type(op))), answer
            return answer
        except asyncio.QueueFull:
            text = "the scheduler is overloaded; try again in a moment"
            raise AppError(ErrorCode.EXHAUSTED, text) from None
        finally:
            del self._waiting[id_], self._callers[id_]

    def answer(self, id_: int, answer: Value) -> None:
        if (future := self._waiting.get(id_)) and not future.done():
            future.set_result(answer)

    def refuse(self, id_: int, error: AppError) -> None:
        if (future := self._waiting.get(id_)) and not future.done():
            future.set_exception(error)

    def caller_of(self, id_: int) -> Caller:
        return self._callers.get(id_, NOBODY)  # without a caller the answer is dropped

    def close(self) -> None:
        """Nothing to close: the HTTP server itself ends its requests in flight."""
