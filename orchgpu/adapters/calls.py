"""Callers of endpoints: a connection to the run of a lease, over the gateway of its host.

The handshake and the stream are the blocking ones of a function's session, so each step of a call
is one of a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.hosts import refusal
from remote_gpu.client.transport.handshake import (
    ANSWER_S,
    Carrier,
    errors_as_refusals,
    new_nonce,
    open_connection,
)
from remote_gpu.wire import calls
from remote_gpu.wire.calls import Message
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.connection import Access
from remote_gpu.wire.errors import Refused, WireError
from remote_gpu.wire.proof import ConnectionRole

#: Steps of calls at once: one for each connection that answers, or is made. More than calls
#: that may wait, so that none waits for another endpoint's; threads start as they are needed.
THREADS_MAX = 1024
_CODES = {calls.TIMEOUT: ErrorCode.TIMEOUT, calls.UNAVAILABLE: ErrorCode.UNAVAILABLE}

T = TypeVar("T")


class Line:
    """A connection to one run, for one call at a time."""

    def __init__(self, stream: Carrier, channel: Channel, threads: ThreadPoolExecutor) -> None:
        self._stream = stream
        self._channel = channel
        self._threads = threads
        self._is_free = False

    @property
    def is_closed(self) -> bool:
        return self._stream.fileno() < 0

    @property
    def is_open(self) -> bool:
        """Whether a next call may be made: nothing has come, its end neither."""
        if not self._is_free or self.is_closed:
            return False
        look = select.poll()
        look.register(self._stream.fileno(), select.POLLIN)
        return not look.poll(0)

    @property
    def has_ended(self) -> bool:
        """Whether its run has closed it, outside of a call."""
        return self._is_free and not self.is_open

    async def begin(self) -> None:
        """Wait until the run has loaded. Raises UNAVAILABLE when it ends before."""
        found = await self._threaded(lambda: calls.receive(self._channel))
        if found is None or found.kind != "ready":
            raise AppError(ErrorCode.UNAVAILABLE, "the run of the endpoint has ended")
        self._is_free = True

    async def call(self, name: str, content: bytes) -> AsyncGenerator[Message, None]:
        """The parts of an answer as they come, at last the answer.

        Raises the code's own failure as INTERNAL, with `failed` among the details; TIMEOUT;
        UNAVAILABLE when it is not known whether the call was made. A call that is given up breaks
        the connection.
        """
        self._is_free = False
        asked = Message(kind="call", name=name, content=content)
        try:
            message = await self._threaded(lambda: self._exchange(asked))
            while message.kind == "part":
                yield message
                message = await self._threaded(self._receive)
            self._is_free = message.kind in ("answer", "failed")
        finally:
            if not self._is_free:
                self.close()
        if message.kind == "failed":
            raise _failure(message)
        yield message

    def close(self) -> None:
        """Safe to repeat; a call in progress breaks off."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()

    def _exchange(self, asked: Message) -> Message:
        calls.send(self._channel, asked)
        return self._receive()

    def _receive(self) -> Message:
        found = calls.receive(self._channel)
        if found is None or found.kind not in ("part", "answer", "failed"):
            raise WireError("the connection ended without an answer")
        return found

    async def _threaded(self, step: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, step)
        except (WireError, OSError) as error:
            text = f"the endpoint was lost, and the call may have been made: {error}"
            raise AppError(ErrorCode.UNAVAILABLE, text, may_be_made=True) from None


class Lines:
    """`async with Lines() as lines: line = await lines.connect(access)`."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="calls")
        self._open: set[Line] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for line in self._open:
            line.close()
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    async def connect(self, access: Access) -> Line:
        """A connection to the run of a lease, once it has loaded.

        Raises the gateway's refusal, and UNAVAILABLE when the run ends before.
        """
        loop = asyncio.get_running_loop()
        stream, channel = await loop.run_in_executor(self._threads, _dialled, access)
        line = Line(stream, channel, self._threads)
        for one in self._open:
            if one.has_ended:
                one.close()
        self._open = {one for one in self._open if not one.is_closed} | {line}
        try:
            await line.begin()
        except BaseException:
            line.close()
            raise
        return line


def _dialled(access: Access) -> tuple[Carrier, Channel]:
    host = access.hosts[0]
    try:
        with errors_as_refusals(f"gateway {host.gateway} of {host.host}"):
            stream, channel, _ = open_connection(
                host,
                role=ConnectionRole.CALLS,
                lease=access.lease,
                fence=access.fence,
                session=new_nonce(),
                timeout_s=ANSWER_S,
            )
    except Refused as refused:
        raise refusal(host.host, refused) from None
    stream.settimeout(None)  # keepalive finds a host that is gone, and the run limits each call
    channel.limits = calls.CALLS
    return stream, channel


def _failure(message: Message) -> AppError:
    code = _CODES.get(message.code, ErrorCode.INTERNAL)
    named = {ErrorCode.INTERNAL: "failed", ErrorCode.UNAVAILABLE: "may_be_made"}
    details = {named[code]: True} if code in named else {}
    return AppError(code, message.message or "the code failed", **details)
