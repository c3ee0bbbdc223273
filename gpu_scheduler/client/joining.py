"""Joining without a key of one's own: a host proves its IAM role and gets a short-lived key."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeVar

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.protocol.codec import (
    BrokenFrame,
    LineBuffer,
    read_answer,
    request_line,
)
from gpu_scheduler.protocol.host import ChallengeAsked, Join, JoinAnswer, JoinChallenge

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: The whole exchange; ssgmd closes a connection without a hello after 5 s.
JOIN_S = 5.0
_READ_BYTES = 2**16


class IamJoin:
    """The keys of a host with an IAM role, which expire."""

    def __init__(self, host: str, server: str, sign: Callable[[str, str], Awaitable[str]]) -> None:
        """`server`: name of the scheduler; `sign`: makes the presigned URL of server and nonce."""
        self._host, self._server, self._sign = host, server, sign
        self._key: str | None = None
        self._due_s = 0.0

    @property
    def key(self) -> str | None:
        """The newest key; None before the first one."""
        return self._key

    @property
    def is_due(self) -> bool:
        """Whether the key should be renewed."""
        return self._key is None or asyncio.get_running_loop().time() >= self._due_s

    def refused(self) -> None:
        """Note that the scheduler refused the key."""
        self._key = None

    async def renew(
        self, address: tuple[str, int], tls: ssl.SSLContext | None, first_s: float
    ) -> None:
        """Join by a connection of its own. Raises AppError, OSError.

        TimeoutError when the first answer has not come within `first_s`: its machine may be gone.
        """
        whole = asyncio.timeout(JOIN_S)
        try:
            async with whole:
                answer = await self._joined(address, tls, first_s)
        except TimeoutError:
            if not whole.expired():
                raise
            text = f"the scheduler did not answer the join in {JOIN_S:g} s"
            raise AppError(ErrorCode.UNAVAILABLE, text) from None
        self._key = answer.key
        self._due_s = asyncio.get_running_loop().time() + answer.lasts_s / 2
        logger.info("joined by IAM", extra={"event": "joined", "lasts_s": answer.lasts_s})

    async def _joined(
        self, address: tuple[str, int], tls: ssl.SSLContext | None, first_s: float
    ) -> JoinAnswer:
        async with asyncio.timeout(first_s):
            reader, writer = await asyncio.open_connection(*address, ssl=tls)
        try:
            lines = _Lines(reader, writer)
            async with asyncio.timeout(first_s):
                challenge = await lines.ask(1, "join_challenge", ChallengeAsked(), JoinChallenge)
            if challenge.server != self._server:
                text = f"this scheduler is {challenge.server!r}, not {self._server!r}; nothing was"
                raise AppError(ErrorCode.DENIED, f"{text} signed for it (--join-iam)")
            url = await self._sign(self._server, challenge.nonce)
            return await lines.ask(2, "join", Join(host=self._host, url=url), JoinAnswer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class _Lines:
    """Requests one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._buffer = LineBuffer()

    async def ask(self, id_: int, op: str, message: ChallengeAsked | Join, answer: type[T]) -> T:
        """One request and its answer. Raises AppError."""
        self._writer.write(request_line(id_, op, message))
        while data := await self._reader.read(_READ_BYTES):
            try:
                for line in self._buffer.feed(data):
                    frame = read_answer(line)
                    if frame.error is not None:
                        raise frame.error
                    return frame.body.read_known(answer)[0]
            except BrokenFrame as error:
                raise AppError(ErrorCode.UNAVAILABLE, f"join: {error}") from None
        raise AppError(
            ErrorCode.UNAVAILABLE, "the scheduler closed the connection before its answer"
        )
