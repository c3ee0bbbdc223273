"""Conversion of requests of both endpoints to events of the core: the same ops, the same checks.

Decodes, adds the time, and refuses requests that must not reach the core: unknown ops, invalid
fields, new grants while the journal has no room. The core decides about everything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypedDict, TypeVar

from corekit.aio.clock import Clock
from corekit.aio.newer import known
from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import HostId, SessionId
from corekit.suggest import one_of_known
from corekit.values import Value, replace
from gpu_scheduler.core import events as on
from gpu_scheduler.daemon.access.authorizer import Authorizer, Caller
from gpu_scheduler.daemon.endpoints.hello_pages import HelloPages
from gpu_scheduler.daemon.endpoints.unknown_values import read_reworded
from gpu_scheduler.daemon.metrics import Metrics
from gpu_scheduler.model import Door
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.codec import OLDEST_VERSION, VERSION, Body

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Ops that report an event, or end or adopt something: a field that a newer client adds cannot make
#: them do more than requested. In every other op it may be a condition and is refused.
_TOLERANT = frozenset(
    {
        ops.Beat,
        ops.Adopt,
        ops.Handle,
        ops.HandBack,
        ops.StagedOp,
        ops.StartedOp,
        ops.Release,
        ops.FailAttempt,
        ops.Finish,
        ops.Reopen,
        ops.Withdraw,
        ops.ReportFleet,
        ops.KeepWarm,
    }
)

#: Ops that may grant something.
_GRANTS = frozenset({ops.Attempt, ops.Reserve})


class JournalRoom(Protocol):
    """The part of the journal that requests depend on."""

    @property
    def has_room(self) -> bool:
        """False while nothing new may be granted."""
        ...


class RequestDecoder:
    """Decodes requests and submits them to the core."""

    def __init__(
        self,
        clock: Clock,
        room: JournalRoom,
        submit: Callable[[on.Event], None],
        metrics: Metrics,
        authorizer: Authorizer,
    ) -> None:
        self._clock = clock
        self._room = room
        self._submit = submit
        self._metrics = metrics
        self._authorizer = authorizer

    def requester_hello(
        self, caller: Caller, body: Body, reply_to: str, admit: Callable[[], None]
    ) -> SessionId:
        """The session of the hello; `admit` is called once it is accepted. Raises INVALID, DENIED,
        and the errors of `admit`."""
        hello = _read_tolerant(ops.Hello, "hello", body)
        _common_version(hello)
        self._authorizer.authorize(caller, "beat", hello)
        admit()
        session = SessionId(caller.session(hello.session))
        self._metrics.requests["hello"] += 1
        self._submit(on.Asked(session=session, reply_to=reply_to, op=hello, **self._now()))
        return session

    def host_hello(
        self,
        caller: Caller,
        body: Body,
        reply_to: str,
        pages: HelloPages,
        admit: Callable[[], None],
    ) -> HostId:
        """The host of the hello; `pages` belong to the connection. As `requester_hello`."""
        hello = _read_tolerant(host_ops.HostHello, "hello", body)
        _common_version(hello)
        self._authorizer.authorize_host(caller, hello.host)
        admit()
        pages.begin(hello, reply_to)
        self._submit_whole(pages)
        return hello.host

    def _submit_whole(self, pages: HelloPages) -> None:
        if (whole := pages.whole()) is not None:
            hello, reply_to = whole
            self._submit_of_host(hello.host, "hello", hello, reply_to)

    def read(self, op: str, body: Body) -> ops.Op[Value]:
        """The op with this name. Raises INVALID."""
        cls = ops.OPS.get(op)
        if cls is None:
            body.plain()  # a line that is not JSON is the more serious error
            raise invalid(f"op {op!r} is unknown{one_of_known(op, ops.OPS)}")
        return known(logger, body.read_known(cls, op)) if cls in _TOLERANT else body.read(cls, op)

    def submit(self, caller: Caller, session: SessionId, op: ops.Op[Value], reply_to: str) -> None:
        """Submit an op of a requester session; `reply_to` names its answer. Raises AppError."""
        name = ops.OP_NAMES[type(op)]
        self._authorizer.authorize(caller, name, op)
        if type(op) in _GRANTS and not self._room.has_room:
            text = "the scheduler's journal has no room for new grants; free space on its disk"
            raise AppError(ErrorCode.EXHAUSTED, text)
        self._metrics.requests[name] += 1
        event = on.Asked(
            session=session,
            reply_to=reply_to,
            op=_completed(caller, op) if type(op) in _INCOMPLETE else op,
            foreign=self._authorizer.foreign_to(caller) if type(op) is ops.Orphans else (),
            sees_all=caller.sees_all,
            denied=self._authorizer.denied_floors(caller, op)
            if isinstance(op, ops.KeepWarm)
            else {},
            at_s=self._clock.monotonic_s(),
            wall_s=self._clock.wall_s(),
        )
        self._submit(event)

    def submit_of_host(
        self, host: HostId, op: str, body: Body, reply_to: str, pages: HelloPages
    ) -> None:
        """Submit any op of a host session. Raises AppError."""
        cls = host_ops.HOST_OPS.get(op)
        if cls is None:
            body.plain()
            raise invalid(f"op {op!r} of a host is unknown{one_of_known(op, host_ops.HOST_OPS)}")
        value = _read_tolerant(cls, op, body)
        if isinstance(value, host_ops.MoreInstalled):
            pages.add(value.leases, more=value.more)
            self._submit_whole(pages)
        else:
            self._submit_of_host(host, op, value, reply_to)

    def _submit_of_host(self, host: HostId, name: str, op: host_ops.HostOp, reply_to: str) -> None:
        self._metrics.requests[name] += 1
        if isinstance(op, host_ops.Draining):
            fields = {"host": host, "draining": op.draining, "why": op.reason}
            logger.info("draining", extra={"event": "draining", **fields, "limit_s": op.limit_s})
        self._submit(on.HostAsked(host=host, reply_to=reply_to, op=op, **self._now()))

    def host_left(self, host: HostId) -> None:
        """Report that the connection of a host ended."""
        self._metrics.requests["left"] += 1
        self._submit(on.HostLeft(host=host, **self._now()))

    def _now(self) -> _Clocks:
        return {"at_s": self._clock.monotonic_s(), "wall_s": self._clock.wall_s()}


class _Clocks(TypedDict):
    at_s: float
    wall_s: float


#: Ops with values that only their connection knows.
_INCOMPLETE = frozenset({ops.Reserve, ops.Transfer})


def _completed(caller: Caller, op: ops.Op[Value]) -> ops.Op[Value]:
    match op:
        case ops.Reserve(door=Door.PORT, sources=()) if caller.peer:
            return replace(op, sources=(caller.peer,))
        case ops.Transfer() if "/" not in op.to:  # to a session of the same key
            return replace(op, to=SessionId(caller.session(op.to)))
        case _:
            return op


def _read_tolerant(cls: type[T], op: str, body: Body) -> T:
    """Read an op, even of a newer version: unknown keys and values are skipped with a warning."""
    try:
        return known(logger, body.read_known(cls, op))
    except AppError:
        return known(logger, read_reworded(cls, body.plain(), op))


def _common_version(hello: ops.Hello | host_ops.HostHello) -> None:
    oldest = hello.version if hello.oldest_version is None else hello.oldest_version
    if oldest <= VERSION and hello.version >= OLDEST_VERSION:
        return
    older = "this ssgmd" if oldest > VERSION else "the program that sent it"
    text = f"protocol version {hello.version} is not supported; this ssgmd speaks versions "
    raise invalid(f"{text}{OLDEST_VERSION} to {VERSION}: upgrade {older}")
