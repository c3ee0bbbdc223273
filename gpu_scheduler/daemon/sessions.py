"""Who is connected: where answers and pushes go. Nothing here is durable or decided.

A *sink* is where answers go: a socket connection or the HTTP door. A session or host is bound to
the connection on which its newest hello was welcomed; an older one of the same name is closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from corekit.decode import encode
from corekit.errors import AppError
from gpu_scheduler.core import actions as do
from gpu_scheduler.daemon.metrics import Metrics
from gpu_scheduler.daemon.secret import Secrets


class Sink(Protocol):
    """Where the answers of one connection go."""

    def answer(self, id_: int, answer: do.Answer, value: Mapping[str, Any]) -> None:
        """The good answer: the core's value, and its wire form with secrets."""
        ...

    def refuse(self, id_: int, error: AppError) -> None: ...
    def close(self) -> None: ...


class Line(Protocol):
    """A connection that takes pushes."""

    def push(self, name: str, fields: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class Switchboard:
    """Performs the core's answers and pushes."""

    def __init__(self, secrets: Secrets, metrics: Metrics) -> None:
        self._secrets = secrets
        self._metrics = metrics
        self._sinks: dict[int, Sink] = {}
        self._next = 0
        self._sessions: dict[str, Line] = {}
        self._hosts: dict[str, Line] = {}

    # --- connections

    def register(self, sink: Sink) -> int:
        """A number for the sink; a request's `reply_to` is `"<number>.<id>"`."""
        self._next += 1
        self._sinks[self._next] = sink
        return self._next

    def unregister(self, number: int) -> None:
        """Its answers are dropped from now on."""
        del self._sinks[number]

    def bind_session(self, session: str, line: Line) -> None:
        _bind(self._sessions, session, line)

    def bind_host(self, host: str, line: Line) -> None:
        _bind(self._hosts, host, line)

    def unbind(self, line: Line) -> None:
        """The connection is gone; a newer one of the same name stays."""
        for table in (self._sessions, self._hosts):
            for name in [name for name, bound in table.items() if bound is line]:
                del table[name]

    def close_all(self) -> None:
        """Close every connection; their peers come back to the next run."""
        for sink in list(self._sinks.values()):
            sink.close()

    # --- actions

    def reply(self, action: do.Reply) -> None:
        sink, id_ = self._sink(action.reply_to)
        if isinstance(action.answer, do.AttemptAnswer):
            self._metrics.outcomes[action.answer.outcome.value] += 1
        if sink is not None:
            sink.answer(id_, action.answer, self._wire(action.answer))

    def reply_error(self, action: do.ReplyError) -> None:
        self._metrics.errors[action.code.value] += 1
        sink, id_ = self._sink(action.reply_to)
        if sink is not None:
            sink.refuse(id_, AppError(action.code, action.message, **encode(action.details)))

    def push(self, action: do.PushToSession) -> None:
        push = action.push
        line = self._sessions.get(action.session)
        if line is None:
            return
        self._metrics.pushes += 1
        fields = encode(push)
        if isinstance(push, do.GrantedPush):
            self._fill_granted(fields["granted"], push.granted)
        line.push(do.PUSH_NAMES[type(push)], fields)

    def install(self, action: do.InstallOnHost) -> None:
        if line := self._hosts.get(action.host):
            line.push("install", {"install": self._install(action.install, action.host)})

    def end(self, action: do.EndOnHost) -> None:
        self._metrics.lease_ends[action.reason.value] += 1
        if line := self._hosts.get(action.host):
            fields = {"lease": action.lease, "fence": action.fence, "reason": action.reason.value}
            line.push("end", fields)

    def staged(self, action: do.StagedOnHost) -> None:
        if line := self._hosts.get(action.host):
            line.push("staged", {"lease": action.lease, "connect_by_s": action.connect_by_s})

    # --- wire forms

    def _sink(self, reply_to: str) -> tuple[Sink | None, int]:
        number, _, id_ = reply_to.partition(".")
        return self._sinks.get(int(number)), int(id_)

    def _wire(self, answer: do.Answer) -> Mapping[str, Any]:
        if isinstance(answer, do.HostWelcome):
            return self._welcome(answer)
        value: dict[str, Any] = encode(answer)
        if isinstance(answer, (do.AttemptAnswer, do.AdoptAnswer)) and answer.granted is not None:
            self._fill_granted(value["granted"], answer.granted)
        return value

    def _fill_granted(self, value: dict[str, Any], granted: do.Granted) -> None:
        lease = granted.lease
        value["secrets"] = {
            host: self._secrets.of(lease.id, lease.fence, host) for host in granted.gateways
        }

    def _welcome(self, answer: do.HostWelcome) -> Mapping[str, Any]:
        installs = [self._install(i, i.shares[0].host) for i in answer.installs]
        return {"epoch": answer.epoch, "installs": installs}

    def _install(self, install: do.Install, host: str) -> dict[str, Any]:
        value: dict[str, Any] = encode(install)
        value["secret"] = self._secrets.of(install.lease, install.fence, host)
        return value


def _bind(table: dict[str, Line], name: str, line: Line) -> None:
    older = table.get(name)
    table[name] = line
    if older is not None and older is not line:
        older.close()
