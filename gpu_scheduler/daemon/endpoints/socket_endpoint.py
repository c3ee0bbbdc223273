"""The socket endpoint: JSON lines, many requests in flight per connection, pushes in between.

An invalid request is answered with a typed error and the connection stays open; a malformed frame
is answered once (id null) and the connection is closed. The connection of a peer that does not read
is aborted: the peer reconnects and gets the full state, which is cheaper than buffering.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from functools import partial
from typing import cast

from corekit.aio.newer import known
from corekit.decode import encode_json
from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import HostId, SessionId
from corekit.values import Value, replace
from gpu_scheduler.daemon.access.authorizer import NOBODY, Authorizer, Caller
from gpu_scheduler.daemon.access.connection_admission import ConnectionAdmission
from gpu_scheduler.daemon.access.iam_join import KEY_S, IamKeyIssuer
from gpu_scheduler.daemon.endpoints.connections import AnyPush, ConnectionRegistry
from gpu_scheduler.daemon.endpoints.hello_pages import HelloPages
from gpu_scheduler.daemon.endpoints.pages import fitting
from gpu_scheduler.daemon.endpoints.request_decoder import RequestDecoder
from gpu_scheduler.daemon.metrics import Metrics
from gpu_scheduler.protocol.answers import PUSHES, SessionWelcome
from gpu_scheduler.protocol.codec import (
    PAGE_BYTES_MAX,
    Body,
    BrokenFrame,
    LineBuffer,
    error_line,
    ok_line,
    push_line,
    read_request,
)
from gpu_scheduler.protocol.host import (
    HOST_PUSHES,
    JOIN_OPS,
    HostWelcome,
    Join,
    JoinAnswer,
    JoinChallenge,
)

logger = logging.getLogger(__name__)

_PUSH_NAMES = {cls: name for name, cls in {**PUSHES, **HOST_PUSHES}.items()}

#: Unread bytes at which a peer is disconnected; 1,000 lease changes at once are about 1 MiB.
UNREAD_BYTES_MAX = 16 * 2**20
#: The most requests in flight on one connection. At the limit, the connection is not read until
#: half of them are answered, so one client cannot fill the core's queue or starve the others.
UNDER_WAY_MAX = 1_000


class SocketConnection(asyncio.Protocol):
    """A connection of one peer: unauthenticated, then a requester session or a host."""

    def __init__(
        self,
        decoder: RequestDecoder,
        registry: ConnectionRegistry,
        metrics: Metrics,
        authorizer: Authorizer,
        admission: ConnectionAdmission,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._decoder = decoder
        self._registry = registry
        self._metrics = metrics
        self._authorizer = authorizer
        self._caller = NOBODY  # until its hello
        self._admission = admission
        self._lines = LineBuffer()
        self._received: deque[bytes] = deque()  # whole lines, not yet handled
        self._held = 0  # bytes of an unfinished line, as counted by admission
        self._under_way = 0
        self._paused = False
        self._out: list[bytes] = []  # lines of one group of actions, written together
        self._transport: asyncio.Transport | None = None
        self._number = 0
        self._session: SessionId | None = None
        self._host: HostId | None = None
        self._hello_to = ""  # reply_to of the newest hello
        self._pages = HelloPages()  # of a host's hello
        self._nonce = ""  # of a host that joins
        self._joining: asyncio.Task[None] | None = None

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own class
        self._transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)
        self._number = self._registry.register(self)
        self._metrics.connections += 1
        self._admission.connected(self, transport.get_extra_info("peername"))

    def connection_lost(self, exc: Exception | None) -> None:
        logger.debug("connection of %s ended: %s", self._name, exc)
        self._metrics.connections -= 1
        self._transport = None
        if self._joining is not None:
            self._joining.cancel()
        self._registry.unregister(self._number)
        for host in self._registry.unbind(self):
            with contextlib.suppress(asyncio.QueueFull):  # the host becomes stale instead
                self._decoder.host_left(HostId(host))
        self._authorizer.untrack(self)
        self._admission.disconnected(self)

    def pause_writing(self) -> None:
        logger.warning("a peer does not read; connection aborted", extra={"peer": self._name})
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._received.extend(self._lines.feed(data))
        except BrokenFrame as error:
            self._broken(error)
            return
        if self._lines.held != self._held:
            self._held = self._lines.held
            self._admission.buffered(self, self._held)
        if not self._paused:
            self._read_on()

    def _read_on(self) -> None:
        while self._received and self._under_way < UNDER_WAY_MAX:
            line = self._received.popleft()
            if self._transport is None or self._transport.is_closing():
                self._received.clear()
                return
            try:
                self._frame(line)
            except BrokenFrame as error:
                self._broken(error)
                return
        full = self._under_way >= UNDER_WAY_MAX
        if full is not self._paused and self._transport is not None:
            self._paused = full
            self._transport.pause_reading() if full else self._transport.resume_reading()
        self.flush()

    def _broken(self, error: BrokenFrame) -> None:
        self._received.clear()
        self._fatal(invalid(f"{error}; this endpoint accepts JSON lines"))

    # --- requests

    @property
    def _name(self) -> str:
        return self._host or self._session or "unauthenticated"

    def _frame(self, line: bytes) -> None:
        id_: int | None = None
        try:
            request = read_request(line)
            id_ = request.id
            if request.op in JOIN_OPS:
                self._join(request.op, request.body, request.id)
                return
            self._request(request.op, request.body, f"{self._number}.{id_}")
        except BrokenFrame:
            raise
        except AppError as error:
            self._refuse(error.details.get("id") if id_ is None else id_, error)
        except asyncio.QueueFull:
            text = "the scheduler is overloaded; try again in a moment"
            self._refuse(id_, AppError(ErrorCode.EXHAUSTED, text))

    def _request(self, op: str, body: Body, reply_to: str) -> None:
        if op == "hello":
            self._hello(body, reply_to)
        elif self._session is not None:
            self._decoder.submit(
                self._caller, self._session, self._decoder.read(op, body), reply_to
            )
        elif self._host is not None:
            self._decoder.submit_of_host(self._host, op, body, reply_to, self._pages)
        else:
            raise invalid(f"op {op!r}: send hello first, with role, session or host, and version")
        if op not in ("hello", "installed") or not self._pages.incomplete:
            self._under_way += 1  # a hello is answered after its last page

    def _join(self, op: str, body: Body, id_: int) -> None:
        join = self._authorizer.join
        if join is None:
            raise invalid("hosts join by a key here: this scheduler was started without --join-iam")
        if op == "join_challenge":
            self._nonce = join.challenge()
            challenge = JoinChallenge(server=join.rules.server, nonce=self._nonce)
            self._write(ok_line(id_, encode_json(challenge)))
            return
        if self._joining is not None and not self._joining.done():
            raise AppError(ErrorCode.EXHAUSTED, "join: one is under way on this connection")
        asked, nonce = known(logger, body.read_known(Join)), self._nonce
        self._nonce = ""  # each serves once
        if not nonce:
            text = "join: there is no nonce; send join_challenge first, on this connection"
            raise AppError(ErrorCode.DENIED, text, needs="nonce")
        self._joining = self._loop.create_task(self._joined(join, asked, nonce, id_))

    async def _joined(self, join: IamKeyIssuer, asked: Join, nonce: str, id_: int) -> None:
        try:
            key = await join.join(asked.host, asked.url, nonce)
        except AppError as error:
            logger.warning("%s", error.message, extra={"event": "join", "host": asked.host})
            self._refuse(id_, error)
        else:
            self._write(ok_line(id_, encode_json(JoinAnswer(key=key, lasts_s=KEY_S))))
        self.flush()

    def _answered(self) -> None:
        self._under_way -= 1
        if self._paused and self._under_way == UNDER_WAY_MAX // 2:
            self._loop.call_soon(self._read_on)

    def _hello(self, body: Body, reply_to: str) -> None:
        envelope, fields = body.without("key", "role")
        caller, role = self._authorizer.caller(envelope.get("key")), envelope.get("role")
        admit = partial(self._admission.authenticated, self, host=role == "host")
        if role == "requester" and self._host is None:
            self._session = self._decoder.requester_hello(caller, fields, reply_to, admit)
        elif role == "host" and self._session is None:
            self._host = self._decoder.host_hello(caller, fields, reply_to, self._pages, admit)
        elif role in ("requester", "host"):
            raise invalid(
                f"hello: this connection is bound to {self._name}; open another connection"
            )
        else:
            raise invalid(f"hello: role {role!r} must be 'requester' or 'host'")
        self._hello_to = reply_to
        self._known_as(caller)

    def _known_as(self, caller: Caller) -> None:
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        self._caller = replace(caller, peer=str(name[0]) if name else "")
        self._authorizer.track(self, caller)

    def reject(self, error: AppError) -> None:
        """`Rejectable`: evicted for another connection, or not authenticated in time."""
        self._fatal(error)

    def _refuse(self, id_: int | None, error: AppError) -> None:
        self._metrics.errors[error.code.value] += 1
        self._write(error_line(id_, error))

    def _fatal(self, error: AppError) -> None:
        self._refuse(None, error)
        self.close()

    # --- Sink and PushTarget

    def answer(self, id_: int, answer: Value) -> None:
        self._answered()
        if isinstance(answer, SessionWelcome) and self._session is not None:
            self._registry.bind_session(self._session, self)
            if (key := self._caller.key) is not None:
                answer = replace(answer, role=key.role.value, tenant=key.tenant)
        elif isinstance(answer, HostWelcome) and self._host is not None:
            self._registry.bind_host(self._host, self)
        try:
            self._write(ok_line(id_, fitting(answer, PAGE_BYTES_MAX)))
        except AppError as error:  # longer than the longest line
            self._refuse(id_, error)

    def refuse(self, id_: int, error: AppError) -> None:
        self._answered()
        if f"{self._number}.{id_}" == self._hello_to:  # a refused peer has no further rights
            self._session = self._host = None
            self._registry.unbind(self)
        self._write(error_line(id_, error))

    def caller_of(self, _: int) -> Caller:
        return self._caller

    def push(self, push: AnyPush) -> None:
        self._write(push_line(_PUSH_NAMES[type(push)], encode_json(push)))

    def close(self) -> None:
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def _write(self, line: bytes) -> None:
        if not self._out:
            self._registry.has_unsent(self)
        self._out.append(line)

    def flush(self) -> None:
        """`Buffered`."""
        if self._out and self._transport is not None:
            self._transport.write(b"".join(self._out))
        self._out.clear()
