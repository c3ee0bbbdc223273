"""Who is connected: where answers and pushes go. Nothing here is durable or decided.

A *sink* is where answers go: a socket connection or the HTTP door. A session or host is bound to
the connection on which its newest hello was welcomed; an older one of the same name is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from corekit.decode import encode, encode_json
from corekit.errors import AppError
from gpu_scheduler.core import actions as do
from gpu_scheduler.daemon.access.authorizer import Caller
from gpu_scheduler.daemon.access.redaction import Redaction
from gpu_scheduler.daemon.access.secret import Secrets
from gpu_scheduler.daemon.endpoints.pages import fitting
from gpu_scheduler.daemon.metrics import Metrics
from gpu_scheduler.model import GrantedLease
from gpu_scheduler.protocol import answers
from gpu_scheduler.protocol import host as host_words
from gpu_scheduler.protocol.codec import PAGE_BYTES_MAX


class Sink(Protocol):
    """Where the answers of one connection go."""

    @property
    def bytes_max(self) -> int | None:
        """A page that is longer is cut to this; None: it is never cut."""
        ...

    def answer(self, id_: int, answer: do.Answer, text: bytes) -> None:
        """The good answer: the core's value, and its JSON with secrets."""
        ...

    def refuse(self, id_: int, error: AppError) -> None: ...

    def caller_of(self, id_: int) -> Caller:
        """Who sent that request, for what he may see of its answer."""
        ...

    def close(self) -> None: ...


class PushTarget(Protocol):
    """A connection that takes pushes."""

    def push(self, name: str, text: bytes) -> None: ...
    def close(self) -> None: ...


class ConnectionRegistry:
    """Performs the core's answers and pushes."""

    def __init__(self, secrets: Secrets, metrics: Metrics, redaction: Redaction) -> None:
        self._redaction = redaction
        self._secrets = secrets
        self._metrics = metrics
        self._sinks: dict[int, Sink] = {}
        self._next = 0
        self._sessions: dict[str, PushTarget] = {}
        self._hosts: dict[str, PushTarget] = {}
        self._ended = ""  #: the lease that ended last
        #: What the wire has with secrets, which the core does not know.
        self._with_secrets: Mapping[type[Any], Callable[[Any], Any]] = {
            do.AttemptAnswer: self._attempt,
            do.AdoptAnswer: self._adopted,
            do.GrantedPush: self._granted_push,
        }

    # --- connections

    def register(self, sink: Sink) -> int:
        """A number for the sink; a request's `reply_to` is `"<number>.<id>"`."""
        self._next += 1
        self._sinks[self._next] = sink
        return self._next

    def unregister(self, number: int) -> None:
        """Its answers are dropped from now on."""
        del self._sinks[number]

    def bind_session(self, session: str, line: PushTarget) -> None:
        _bind(self._sessions, session, line)

    def bind_host(self, host: str, line: PushTarget) -> None:
        _bind(self._hosts, host, line)

    def unbind(self, line: PushTarget) -> list[str]:
        """The connection is gone; a newer one of the same name stays. Returns the hosts it was."""
        hosts = [name for name, bound in self._hosts.items() if bound is line]
        for table in (self._sessions, self._hosts):
            for name in [name for name, bound in table.items() if bound is line]:
                del table[name]
        return hosts

    def close_all(self) -> None:
        """Close every connection; their peers come back to the next run."""
        for sink in list(self._sinks.values()):
            sink.close()

    # --- actions

    def reply(self, action: do.Reply) -> None:
        sink, id_ = self._sink(action.reply_to)
        if sink is not None:
            answer = self._redaction.of(sink.caller_of(id_), action.answer)
            sink.answer(id_, answer, self._answer_text(answer, sink.bytes_max))

    def reply_error(self, action: do.ReplyError) -> None:
        self._metrics.errors[action.code.value] += 1
        if limit := action.details.get("limit"):
            self._metrics.limited[limit] += 1
        sink, id_ = self._sink(action.reply_to)
        if sink is not None:
            details = self._redaction.of_details(sink.caller_of(id_), action.details)
            sink.refuse(id_, AppError(action.code, action.message, **encode(details)))

    def push(self, action: do.PushToSession) -> None:
        push = action.push
        if line := self._sessions.get(action.session):
            self._push(line, do.PUSH_NAMES[type(push)], self._text(push))

    def install(self, action: do.InstallOnHost) -> None:
        install = self._install(action.install, action.host)
        self._tell_host(action.host, "install", host_words.InstallPush(install=install))

    def end(self, action: do.EndOnHost) -> None:
        # each of its hosts is told, one after the other; without a fence no lease ended here
        if action.fence and action.lease != self._ended:
            self._ended = action.lease
            self._metrics.lease_ends[action.reason.value] += 1
        end = host_words.End(lease=action.lease, fence=action.fence, reason=action.reason)
        self._tell_host(action.host, "end", end)

    def staged(self, action: do.StagedOnHost) -> None:
        staged = host_words.Staged(lease=action.lease, connect_by_s=action.connect_by_s)
        self._tell_host(action.host, "staged", staged)

    def resize(self, action: do.ResizeOnHost) -> None:
        resize = host_words.Resize(lease=action.lease, compute_limit_pct=action.compute_limit_pct)
        self._tell_host(action.host, "resize", resize)

    def _tell_host(self, host: str, name: str, value: Any) -> None:
        if line := self._hosts.get(host):
            self._push(line, name, encode_json(value))

    def _push(self, line: PushTarget, name: str, text: bytes) -> None:
        self._metrics.pushes += 1
        line.push(name, text)

    # --- wire forms

    def _sink(self, reply_to: str) -> tuple[Sink | None, int]:
        number, _, id_ = reply_to.partition(".")
        return self._sinks.get(int(number)), int(id_)

    def _text(self, value: do.Answer | do.Push) -> bytes:
        form = self._with_secrets.get(type(value))
        return encode_json(value if form is None else form(value))

    def _attempt(self, value: do.AttemptAnswer) -> do.AttemptAnswer | answers.AttemptOutcome:
        self._metrics.outcomes[value.outcome.value] += 1
        if value.granted is None:
            return value
        granted = self._granted(value.granted)
        return answers.AttemptOutcome(outcome=value.outcome, granted=granted, record=value.record)

    def _adopted(self, value: do.AdoptAnswer) -> do.AdoptAnswer | answers.Adopted:
        if value.granted is None:
            return value
        return answers.Adopted(record=value.record, granted=self._granted(value.granted))

    def _granted_push(self, value: do.GrantedPush) -> answers.GrantedPush:
        granted = self._granted(value.granted)
        return answers.GrantedPush(holder=value.holder, attempt=value.attempt, granted=granted)

    def _answer_text(self, value: do.Answer, bytes_max: int | None) -> bytes:
        match value:
            case do.HostWelcome():
                page = self._install_page(value.installs)
                whole = len(page) == len(value.installs)
                more = {} if whole else {"more": True, "until": value.installs[-1].fence}
                said = {"epoch": value.epoch, "run": value.run, "installs": page, **more}
                return encode_json(said)
            case do.InstallsAnswer():
                page = self._install_page(value.installs)
                more_follow = value.more or len(page) < len(value.installs)
                return encode_json({"installs": page, "more": more_follow})
            case _:
                text = self._text(value)
                return text if bytes_max is None else fitting(value, text, bytes_max)

    def _install_page(self, installs: Sequence[do.Install]) -> list[msgspec.Raw]:
        """The first of them, as many as one message has room for."""
        page: list[msgspec.Raw] = []
        left = PAGE_BYTES_MAX
        for install in installs:
            text = encode_json(self._install(install, install.shares[0].host))
            left -= len(text) + 1
            if left < 0 and page:
                break
            page.append(msgspec.Raw(text))
        return page

    def _granted(self, granted: do.Granted) -> GrantedLease:
        lease = granted.lease
        secrets = {host: self._secrets.of(lease.id, lease.fence, host) for host in granted.gateways}
        return GrantedLease(
            lease=lease, epoch=granted.epoch, gateways=granted.gateways, secrets=secrets
        )

    def _install(self, install: do.Install, host: str) -> host_words.Install:
        return host_words.Install(
            lease=install.lease,
            fence=install.fence,
            secret=self._secrets.of(install.lease, install.fence, host),
            state=install.state,
            shares=install.shares,
            tenant=install.tenant,
            hold=install.hold,
            door=install.door,
            sources=install.sources,
            middleware=install.middleware,
            cap_s=install.cap_s,
            connect_by_s=install.connect_by_s,
        )


def _bind(table: dict[str, PushTarget], name: str, line: PushTarget) -> None:
    older = table.get(name)
    table[name] = line
    if older is not None and older is not line:
        older.close()
