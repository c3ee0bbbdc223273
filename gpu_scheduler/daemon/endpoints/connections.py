"""Registry of connections: the destinations of answers and pushes. Not durable, decides nothing.

A *sink* takes answers: a socket connection, the HTTP endpoint, a part of the daemon. A session or
host is bound to the connection of its newest accepted hello; an older one of its name is closed.
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
    """Destination of the answers to one connection's requests."""

    @property
    def bytes_max(self) -> int | None:
        """Longest answer; a longer list is truncated to it. None: no limit."""
        ...

    def answer(self, id_: int, answer: do.Answer, text: bytes) -> None:
        """Send an answer: the core's value, and its JSON with secrets."""
        ...

    def refuse(self, id_: int, error: AppError) -> None: ...

    def caller_of(self, id_: int) -> Caller:
        """The sender of a request, for the redaction of its answer."""
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
        self._ended = ""  #: the lease of the newest end
        #: Messages whose wire form has secrets, which the core does not know.
        self._with_secrets: Mapping[type[Any], Callable[[Any], Any]] = {
            do.AttemptAnswer: self._attempt,
            do.AdoptAnswer: self._adopted,
            do.GrantedPush: self._granted_push,
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
        if target := self._sessions.get(action.session):
            self._push(target, do.PUSH_NAMES[type(push)], self._text(push))

    def install(self, action: do.InstallOnHost) -> None:
        install = self._install(action.install, action.host)
        self._push_to_host(action.host, "install", host_words.InstallPush(install=install))

    def end(self, action: do.EndOnHost) -> None:
        # one action per host of the lease; without a fence the scheduler did not know the lease
        if action.fence and action.lease != self._ended:
            self._ended = action.lease
            self._metrics.lease_ends[action.reason.value] += 1
        end = host_words.End(lease=action.lease, fence=action.fence, reason=action.reason)
        self._push_to_host(action.host, "end", end)

    def staged(self, action: do.StagedOnHost) -> None:
        staged = host_words.Staged(lease=action.lease, connect_by_s=action.connect_by_s)
        self._push_to_host(action.host, "staged", staged)

    def resize(self, action: do.ResizeOnHost) -> None:
        resize = host_words.Resize(lease=action.lease, compute_limit_pct=action.compute_limit_pct)
        self._push_to_host(action.host, "resize", resize)

    def _push_to_host(self, host: str, name: str, value: object) -> None:
        if target := self._hosts.get(host):
            self._push(target, name, encode_json(value))

    def _push(self, target: PushTarget, name: str, text: bytes) -> None:
        self._metrics.pushes += 1
        target.push(name, text)

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
                return encode_json(
                    {"epoch": value.epoch, "run": value.run, "installs": page, **more}
                )
            case do.InstallsAnswer():
                page = self._install_page(value.installs)
                more_follow = value.more or len(page) < len(value.installs)
                return encode_json({"installs": page, "more": more_follow})
            case _:
                text = self._text(value)
                return text if bytes_max is None else fitting(value, text, bytes_max)

    def _install_page(self, installs: Sequence[do.Install]) -> list[msgspec.Raw]:
        """As many installs as fit into one message, from the first on."""
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


def _bind(table: dict[str, PushTarget], name: str, target: PushTarget) -> None:
    older = table.get(name)
    table[name] = target
    if older is not None and older is not target:
        older.close()
