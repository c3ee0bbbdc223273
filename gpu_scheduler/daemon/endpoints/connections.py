"""Registry of connections: the destinations of answers and pushes. Not durable, decides nothing.

A *sink* receives answers: a socket connection, the HTTP endpoint, a part of the daemon. A session
or host is bound to the connection of its newest accepted hello; an older connection is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from corekit.aio.supervise import log_contained
from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from corekit.values import Value, replace
from gpu_scheduler.core import actions as do
from gpu_scheduler.daemon.access.authorizer import Caller
from gpu_scheduler.daemon.access.redaction import Redaction
from gpu_scheduler.daemon.access.secret import LeaseSecrets
from gpu_scheduler.daemon.metrics import Metrics
from gpu_scheduler.model import GrantedLease
from gpu_scheduler.protocol import answers
from gpu_scheduler.protocol import host as host_ops

WithGranted = TypeVar(
    "WithGranted", answers.AttemptAnswer, answers.AdoptAnswer, answers.GrantedPush
)
WithInstalls = TypeVar("WithInstalls", host_ops.HostWelcome, host_ops.InstallsPage)
AnyPush = answers.Push | host_ops.HostPush


class Sink(Protocol):
    """The destination of the answers to the requests of one connection."""

    def answer(self, id_: int, answer: Value) -> None:
        """Send an answer, redacted for its caller, with secrets."""
        ...

    def refuse(self, id_: int, error: AppError) -> None: ...

    def caller_of(self, id_: int) -> Caller:
        """The sender of a request, for the redaction of its answer."""
        ...

    def close(self) -> None: ...


class Buffered(Protocol):
    """A connection that keeps its lines until a group of actions is over."""

    def flush(self) -> None:
        """Write them together."""
        ...


class PushTarget(Protocol):
    """A connection that receives pushes."""

    def push(self, push: AnyPush) -> None: ...
    def close(self) -> None: ...

    def caller_of(self, id_: int) -> Caller:
        """The reader of the pushes, for their redaction."""
        ...


class ConnectionRegistry:
    """Delivers the answers and pushes of the core."""

    def __init__(self, secrets: LeaseSecrets, metrics: Metrics, redaction: Redaction) -> None:
        self._redaction = redaction
        self._secrets = secrets
        self._metrics = metrics
        self._sinks: dict[int, Sink] = {}
        self._unsent: dict[Buffered, None] = {}
        self._next = 0
        self._sessions: dict[str, PushTarget] = {}
        self._hosts: dict[str, PushTarget] = {}
        self._ended = ""  #: the lease that ended last
        #: Answers whose wire form has secrets, which the core does not know.
        self._complete: Mapping[type[Value], Callable[[Any], Value]] = {
            answers.AttemptAnswer: self._attempt,
            answers.AdoptAnswer: self._with_granted,
            host_ops.HostWelcome: self._with_installs,
            host_ops.InstallsPage: self._with_installs,
        }

    # --- connections

    def register(self, sink: Sink) -> int:
        """Add a sink; returns its number. The `reply_to` of a request is `"<number>.<id>"`."""
        self._next += 1
        self._sinks[self._next] = sink
        return self._next

    def unregister(self, number: int) -> None:
        """Remove a sink: further answers to it are dropped."""
        del self._sinks[number]

    def bind_session(self, session: str, target: PushTarget) -> None:
        _bind(self._sessions, session, target)

    def bind_host(self, host: str, target: PushTarget) -> None:
        _bind(self._hosts, host, target)

    def unbind(self, target: PushTarget) -> list[str]:
        """Remove a connection that has ended, unless a newer one replaced it; returns its hosts."""
        hosts = [name for name, bound in self._hosts.items() if bound is target]
        for table in (self._sessions, self._hosts):
            for name in [name for name, bound in table.items() if bound is target]:
                del table[name]
        return hosts

    def close_all(self) -> None:
        """Close every connection; the peers reconnect to the next run."""
        for sink in list(self._sinks.values()):
            sink.close()

    def has_unsent(self, connection: Buffered) -> None:
        """Note a connection with lines for `flush`."""
        self._unsent[connection] = None

    def flush(self) -> None:
        """Write what a group of actions left; the next turn of the loop would cost another wait."""
        unsent, self._unsent = self._unsent, {}
        for connection in unsent:
            try:
                connection.flush()
            except Exception as error:
                log_contained("lines of a connection", error)

    # --- actions

    def reply(self, action: do.Reply) -> None:
        sink, id_ = self._sink(action.reply_to)
        if sink is not None:
            answer = self._redaction.of(sink.caller_of(id_), action.answer)
            complete = self._complete.get(type(answer))
            sink.answer(id_, answer if complete is None else complete(answer))

    def reply_error(self, action: do.ReplyError) -> None:
        self._metrics.errors[action.code.value] += 1
        if limit := action.details.get("limit"):
            self._metrics.limited[limit] += 1
        sink, id_ = self._sink(action.reply_to)
        if sink is not None:
            details = self._redaction.of_details(sink.caller_of(id_), action.details)
            sink.refuse(id_, AppError(action.code, action.message, **encode(details)))

    def push(self, action: do.PushToSession) -> None:
        push, target = action.push, self._sessions.get(action.session)
        if isinstance(push, answers.GrantedPush):
            push = self._with_granted(push)
        elif isinstance(push, answers.RecordPush) and target is not None:
            push = self._redaction.of_record_push(target.caller_of(0), push)
        self._push(target, push)

    def push_to_host(self, action: do.PushToHost) -> None:
        push = action.push
        if isinstance(push, host_ops.End):
            self._count_end(push)
        elif isinstance(push, host_ops.InstallPush):
            push = replace(push, install=self._install(push.install, action.host))
        self._push(self._hosts.get(action.host), push)

    def failed(self, action: do.Reply | do.ReplyError | do.PushToSession | do.PushToHost) -> None:
        """Refuse the request, or close the connection, whose answer or push cannot be sent."""
        match action:
            case do.Reply() | do.ReplyError():
                sink, id_ = self._sink(action.reply_to)
                if sink is not None:
                    text = "the answer cannot be sent; see the log of ssgmd"
                    sink.refuse(id_, AppError(ErrorCode.INTERNAL, text))
            case do.PushToSession():
                _close(self._sessions.get(action.session))
            case do.PushToHost():
                _close(self._hosts.get(action.host))

    def _push(self, target: PushTarget | None, push: AnyPush) -> None:
        if target is not None:
            self._metrics.pushes += 1
            target.push(push)

    def _count_end(self, end: host_ops.End) -> None:
        """Count an ended lease once, not per host; fence 0 means an unknown lease."""
        if end.fence and end.lease != self._ended:
            self._ended = end.lease
            self._metrics.lease_ends[end.reason.value] += 1

    # --- secrets

    def _sink(self, reply_to: str) -> tuple[Sink | None, int]:
        number, _, id_ = reply_to.partition(".")
        return self._sinks.get(int(number)), int(id_)

    def _attempt(self, answer: answers.AttemptAnswer) -> answers.AttemptAnswer:
        self._metrics.outcomes[answer.outcome.value] += 1
        return self._with_granted(answer)

    def _with_granted(self, value: WithGranted) -> WithGranted:
        if value.granted is None:
            return value
        return replace(value, granted=self._granted(value.granted))

    def _with_installs(self, value: WithInstalls) -> WithInstalls:
        installs = tuple(self._install(one, one.shares[0].host) for one in value.installs)
        return replace(value, installs=installs)

    def _granted(self, granted: GrantedLease) -> GrantedLease:
        lease = granted.lease
        secrets = {host: self._secrets.of(lease.id, lease.fence, host) for host in granted.gateways}
        return replace(granted, secrets=secrets)

    def _install(self, install: host_ops.Install, host: str) -> host_ops.Install:
        return replace(install, secret=self._secrets.of(install.lease, install.fence, host))


def _close(target: PushTarget | None) -> None:
    if target is not None:
        target.close()


def _bind(table: dict[str, PushTarget], name: str, target: PushTarget) -> None:
    older = table.get(name)
    table[name] = target
    if older is not None and older is not target:
        older.close()
