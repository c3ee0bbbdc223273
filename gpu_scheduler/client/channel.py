"""One connection to ssgmd that repairs itself: many requests in flight, pushes, re-hello.

With several addresses the connection goes to the scheduler that leads. A request that was in flight
when the connection broke is sent again on the next one, in its old order, until its own deadline;
that is right because every op of the protocol is idempotent.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

from corekit.aio.backoff import Backoff
from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import Address
from corekit.values import Value
from gpu_scheduler.client.access import Access, find_access
from gpu_scheduler.client.addresses import STANDBY, SchedulerAddresses, leader_of, lives_of
from gpu_scheduler.protocol.codec import (
    AnswerFrame,
    Body,
    BrokenFrame,
    LineBuffer,
    hello_line,
    read_answer,
    request_line,
)

logger = logging.getLogger(__name__)

#: Requests in flight; an orchestrator has at most a few per job and 1,000 jobs.
IN_FLIGHT_MAX = 10_000
#: The id of `hello`, which is sent once per connection and never repeated by resending.
HELLO_ID = 0


class ChannelEvents(Value):
    """Callbacks to the owner of a channel; all are called in the event loop."""

    role: str  #: role in the hellos: requester or host
    hello: Callable[[], Value]  #: the hello of the next connection
    #: answer to the hello; may raise AppError to refuse the connection
    welcomed: Callable[[Body], None]
    pushed: Callable[[str, Body], None]  #: name and fields of a push
    lost: Callable[[str], None]  #: a welcomed connection broke, for this reason
    #: Requests right behind the hello, which is answered after the last of them.
    more: Callable[[], Iterable[tuple[str, Value]]] = tuple


@dataclass(slots=True)
class _Pending:
    line: bytes
    answer: asyncio.Future[Body]
    sent: bool = False


class Channel:
    """`async with Channel(...) as channel: await channel.call("beat", Beat(), deadline_s=5)`."""

    def __init__(
        self,
        address: str,
        events: ChannelEvents,
        budget: Budget,
        *,
        name: str,
        access: Access | None = None,  #: None: the environment's
    ) -> None:
        self.addresses = SchedulerAddresses(address)
        self._access = access or find_access()
        self._tls = self._access.tls()
        self._leader: Address | None = None  # as a standby gave it on the last connection
        self._is_standby = False  # it was one
        self._lives = False  # it wrote to the log just now
        self._silent = False  # the last connection was not answered in time
        self._key_is_new = False  # it was renewed for this connection
        self._rejoins = False  # the key was refused, and another one may be accepted
        self._why_not = "is ssgmd up?"  # reason of the newest failure to connect
        self._events = events
        self._budget = budget
        self._name = name
        self._pending: dict[int, _Pending] = {}
        self._next_id = HELLO_ID + 1
        self._wire: _Wire | None = None  # only while welcomed
        self._nursery = Nursery(name)

    async def open(self) -> None:
        """Connect, and stay connected until `close`."""
        await self._nursery.__aenter__()
        self._nursery.start_loop(self._stay_connected, "connection")

    async def close(self) -> None:
        """End every call in flight with UNAVAILABLE."""
        await self._nursery.close()
        closed = AppError(ErrorCode.UNAVAILABLE, "the connection to the scheduler was closed")
        for pending in list(self._pending.values()):
            _fail(pending.answer, closed)

    @property
    def connected(self) -> bool:
        return self._wire is not None

    @property
    def nursery(self) -> Nursery:
        """For tasks that live as long as the channel, such as beats."""
        return self._nursery

    async def call(self, op: str, fields: Value, *, deadline_s: float) -> Body:
        """One request, through as many connections as it takes; `fields` is the op.

        Raises the scheduler's own AppError; TIMEOUT when no answer came in time, although the
        request may have been carried out; UNAVAILABLE when there was no connection; EXHAUSTED above
        IN_FLIGHT_MAX.
        """
        if len(self._pending) >= IN_FLIGHT_MAX:
            raise AppError(ErrorCode.EXHAUSTED, f"{IN_FLIGHT_MAX} requests are in flight already")
        id_ = self._next_id
        self._next_id += 1
        loop = asyncio.get_running_loop()
        line = request_line(id_, op, fields)
        pending = self._pending[id_] = _Pending(line, loop.create_future())
        timer = loop.call_later(deadline_s, self._expire, pending, op, deadline_s)
        try:
            self._send(pending)
            return await pending.answer
        finally:
            timer.cancel()
            self._pending.pop(id_, None)

    def _send(self, pending: _Pending) -> None:
        if self._wire is not None:
            pending.sent = True
            self._wire.write(pending.line)

    def _expire(self, pending: _Pending, op: str, deadline_s: float) -> None:
        if pending.sent:
            text = f"the scheduler at {self.addresses} did not answer {op!r} in {deadline_s:g} s"
            _fail(pending.answer, AppError(ErrorCode.TIMEOUT, text))
        else:
            _fail(pending.answer, self.unreachable(deadline_s))

    def unreachable(self, deadline_s: float) -> AppError:
        """The error for a scheduler that was not reached in time: the address and the reason."""
        where = f"{self.addresses} in {deadline_s:g} s"
        text = f"no connection to the scheduler at {where}; {self._why_not}"
        return AppError(ErrorCode.UNAVAILABLE, text)

    def say_hello_again(self) -> None:
        """Exchange the full state again on the same connection, in order with its pushes."""
        if self._wire is not None:
            self._say_hello(self._wire)

    async def renew_key(self) -> bool:
        """Renew a key that expires soon; True when it was. Raises AppError, OSError."""
        source = self._access.source
        if source is None or not source.is_due:
            return False
        await source.renew(self.addresses.current, self._tls, self._connect_s)
        return True

    @property
    def _connect_s(self) -> float:
        several = self.addresses.several  # another one may lead
        return self._budget.failover_connect_s if several else self._budget.client_gone_s

    def _say_hello(self, wire: _Wire) -> None:
        events = self._events
        wire.write(hello_line(HELLO_ID, events.role, self._access.current_key, events.hello()))
        for op, fields in self._events.more():
            wire.write(request_line(HELLO_ID, op, fields))

    async def _stay_connected(self) -> None:
        budget, addresses = self._budget, self.addresses
        longest_s = budget.failover_pause_s_max if addresses.several else budget.reconnect_s_max
        backoff = Backoff(min(budget.reconnect_base_s, longest_s), longest_s)
        while True:
            self._leader, self._is_standby, self._lives = None, False, False
            self._silent = self._rejoins = False
            try:
                welcomed = await self._one_connection()
            except OSError as error:
                welcomed = False
                self._silent = isinstance(error, TimeoutError)
                self._not_connected(error)
            except AppError as error:  # of a key that cannot be renewed
                welcomed = False
                self._note(error, "no key")
            if welcomed:
                backoff.reset()
                addresses.lost()
            elif self._rejoins or not self._failed():
                continue
            await asyncio.sleep(backoff.next_s())

    def _failed(self) -> bool:
        standby, lives, silent = self._is_standby, self._lives, self._silent
        return self.addresses.failed(self._leader, standby=standby, lives=lives, silent=silent)

    def _not_connected(self, error: OSError) -> None:
        logger.debug("no connection to the scheduler", extra={"event": str(error)})
        self._why_not = "is ssgmd up?"
        if isinstance(error, ssl.SSLCertVerificationError):  # waiting would not make it better
            text = "the certificate at {}:{} is not the scheduler's"
            text = text.format(*self.addresses.current)
            denied = AppError(ErrorCode.DENIED, f"{text}: {error.verify_message}; check the CA")
            logger.warning("%s: %s", self._name, denied.message)
            for pending in list(self._pending.values()):
                _fail(pending.answer, denied)
        elif isinstance(error, ssl.SSLError):
            self._why_not = "the other side does not speak TLS 1.3; does it lack a certificate?"

    async def _one_connection(self) -> bool:
        loop = asyncio.get_running_loop()
        budget, address = self._budget, self.addresses.current
        connect_s, silence_s = self._connect_s, budget.client_gone_s
        if self.addresses.several:
            silence_s = budget.failover_silence_s
        self._key_is_new = await self.renew_key()
        async with asyncio.timeout(connect_s):
            _, wire = await loop.create_connection(
                lambda: _Wire(self._line, silence_s), *address, ssl=self._tls
            )
        if self.addresses.several:
            wire.expect_welcome(connect_s)
        try:
            self._say_hello(wire)
            reason = await wire.gone
        finally:
            wire.abort()
            self._wire = None
        if wire.welcomed:
            self._events.lost(reason)
        elif not wire.refused:
            self._silent = wire.silent
            self._why_not = (
                f"it broke off before its welcome: {reason}; does only one side speak TLS (--ca)?"
            )
        return wire.welcomed

    def _line(self, wire: _Wire, frame: AnswerFrame) -> None:
        if frame.push is not None:
            self._events.pushed(frame.push, frame.body)
        elif frame.id == HELLO_ID:
            self._hello_answered(wire, frame)
        elif frame.id is not None and (pending := self._pending.get(frame.id)) is not None:
            _settle(pending.answer, frame)

    def _hello_answered(self, wire: _Wire, frame: AnswerFrame) -> None:
        if frame.error is not None:
            return self._refused(wire, frame.error)
        fresh, self._wire = self._wire is not wire, wire
        try:
            self._events.welcomed(frame.body)
        except AppError as error:
            return self._refused(wire, error)
        wire.welcomed = True
        for pending in list(self._pending.values()) if fresh else ():
            if not pending.answer.done():
                self._send(pending)
        return None

    def _refused(self, wire: _Wire, error: AppError) -> None:
        """A refusal is final: waiting calls fail with the reason, instead of a timeout.

        That of a standby names the leader, and the next connection goes there. A new leader does
        not know the key of a host that joined: it joins again, and its calls wait for that.
        """
        self._note(error, "hello refused")
        wire.refused = True
        self._wire = None
        if error.code is ErrorCode.DENIED and self._access.source is not None:
            self._access.source.refused()
            self._rejoins = not self._key_is_new
        if self._rejoins:
            pass
        elif not error.retryable and error.code is not ErrorCode.CONFLICT:
            for pending in list(self._pending.values()):
                _fail(pending.answer, error)
        wire.break_off(error.message)

    def _note(self, error: AppError, what: str) -> None:
        """Keep the reason of a refusal, and the leader if a standby named it."""
        self._leader, self._is_standby = leader_of(error), bool(error.details.get(STANDBY))
        self._lives = lives_of(error, self._budget.leader_beat_s)
        self._why_not = error.message
        level = logging.DEBUG if error.retryable and self.addresses.several else logging.WARNING
        logger.log(level, "%s: %s: %s", self._name, what, error.message)


class _Wire(asyncio.Protocol):
    """One TCP connection: lines in, lines out.

    A stopped peer keeps its TCP connection and is detected only by its silence: the connection is
    closed after `silence_s` without a byte (both roles send something, which is answered, far more
    often).
    """

    def __init__(self, on_frame: Callable[[_Wire, AnswerFrame], None], silence_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[str] = self._loop.create_future()
        self.welcomed = False
        self.refused = False
        self.silent = False  # it did not answer the hello in time
        self._on_frame = on_frame
        self._silence_s = silence_s
        self._heard_s = self._loop.time()
        self._silence = self._loop.call_later(silence_s, self._check_silence)
        self._welcome: asyncio.TimerHandle | None = None
        self._lines = LineBuffer()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        try:
            for line in self._lines.feed(data):
                if not self.gone.done():
                    self._on_frame(self, read_answer(line))
        except BrokenFrame as error:
            self.break_off(f"the scheduler sent an invalid message: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(str(exc) if exc else "the scheduler closed the connection")

    def _check_silence(self) -> None:
        silent_s = self._loop.time() - self._heard_s
        if silent_s >= self._silence_s:
            self.break_off(f"the scheduler was silent for {silent_s:.3g} s")
        else:
            self._silence = self._loop.call_later(self._silence_s - silent_s, self._check_silence)

    def expect_welcome(self, within_s: float) -> None:
        """End the connection unless its hello is answered in time: the peer may be stopped."""
        self._welcome = self._loop.call_later(within_s, self._check_welcome)

    def _check_welcome(self) -> None:
        if not self.welcomed:
            self.silent = True
            self.break_off("no answer to the hello")

    def write(self, line: bytes) -> None:
        assert self._transport is not None
        self._transport.write(line)

    def break_off(self, reason: str) -> None:
        """End the connection; `gone` has the reason."""
        self._ended(reason)
        self.abort()

    def abort(self) -> None:
        self._silence.cancel()
        if self._welcome is not None:
            self._welcome.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _ended(self, reason: str) -> None:
        self._silence.cancel()
        if not self.gone.done():
            self.gone.set_result(reason)


def _settle(answer: asyncio.Future[Body], frame: AnswerFrame) -> None:
    if answer.done():
        return
    if frame.error is not None:
        answer.set_exception(frame.error)
    else:
        answer.set_result(frame.body)


def _fail(answer: asyncio.Future[Body], error: AppError) -> None:
    if not answer.done():
        answer.set_exception(error)
