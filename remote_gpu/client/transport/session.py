"""The session: the connections that hold a lease, kept alive by heartbeats from a thread.

Opening a session claims the attempt: the lease is bound to the first session nonce, and any other
is refused as CLAIMED. A lease with devices on several hosts has one connection to each, with one
nonce.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping

from remote_gpu.client.transport.handshake import (
    ANSWER_S,
    Carrier,
    Wait,
    errors_as_refusals,
    is_reachable,
    new_nonce,
    open_connection,
)
from remote_gpu.client.transport.readiness import readable
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.connection import (
    COUNT_VARIABLE,
    SESSION_VARIABLE,
    Access,
    HostAccess,
    parse_access,
)
from remote_gpu.wire.errors import Refusal, Refused, WireError
from remote_gpu.wire.frames import SESSION, Meta
from remote_gpu.wire.proof import ConnectionRole, lane_key


class Session:
    """Holds a lease from `open` to `close`; thread-safe."""

    def __init__(
        self,
        access: Access,
        nonce: str,
        on_lost: Callable[[Refused], None] | None,
        on_preempt: Callable[[float], None] | None,
        traceparent: str,
    ) -> None:
        self._access = access
        self._trace: Meta = {"traceparent": traceparent} if traceparent else {}
        self._nonce = nonce
        self._on_lost = on_lost
        self._on_preempt = on_preempt
        self._connections: list[_HostConnection] = []
        self._unix: dict[str, str] = {}  # host → its socket on this machine
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._beat_s = self._silence_s = 0.0
        self.lost: Refused | None = None  #: why the session is gone, once it is
        #: Seconds before its opening since which a lease granted ahead had its shares; None: it
        #: always had them, or the host is older.
        self.held_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)

    @classmethod
    def open(
        cls,
        connection: Mapping[str, object] | str,
        cap_s: float,
        *,
        on_lost: Callable[[Refused], None] | None = None,
        on_preempt: Callable[[float], None] | None = None,
        traceparent: str = "",
        timeout_s: float = ANSWER_S,
        wait_s: float | None = None,
        on_waiting: Callable[[], None] | None = None,
        new_sandbox: bool | None = None,
    ) -> Session:
        """Claim the lease of an envelope's `connection` on all its hosts, the first one first.

        `cap_s`: the hosts end the lease after this time. `on_lost` is called once, from the
        session's thread, when the session ends without `close`; `on_preempt` once, with the grace
        time in seconds, when the scheduler will end the lease for a request of higher priority.
        `traceparent`: the W3C trace context below which hosts record their spans of the session.
        `wait_s`: the longest wait for shares that are not free, None = as long as the gateways
        allow; `on_waiting` is called, in this thread, at each message that the session waits.
        `new_sandbox`: whether the function started a sandbox, None = unknown; the scheduler learns
        the times of both starts apart.
        Raises Refused: TIMEOUT after `wait_s`; after CLAIMED this start should exit, because
        another start of the same attempt was first.
        """
        try:
            access = parse_access(connection)
        except WireError as error:
            raise Refused(Refusal.PROTOCOL, str(error)) from None
        session = cls(access, new_nonce(), on_lost, on_preempt, traceparent)

        def waits() -> None:
            session._beat()  # hosts that are open already would miss a session that is silent
            if on_waiting is not None:
                on_waiting()

        until_s = None if wait_s is None else time.monotonic() + wait_s
        wait = Wait(until_s=until_s, on_waiting=waits)
        try:
            for host in access.hosts:
                session._add(host, cap_s, timeout_s, wait, new_sandbox)
        except BaseException:
            session._drop()
            raise
        session._thread.start()
        return session

    @property
    def alive(self) -> bool:
        """False after `close` and after a loss."""
        return self.lost is None and not self._closed.is_set()

    @property
    def nonce(self) -> str:
        """This session's identity; the same on all hosts, recorded by the scheduler."""
        return self._nonce

    def view(self) -> Access:
        """The access to the lease with this session's lane keys in place of its secrets."""
        access, nonce = self._access, self._nonce
        hosts = tuple(
            HostAccess(
                host.host,
                host.gateway,
                lane_key(
                    bytes.fromhex(host.secret), access.lease, access.fence, host.host, nonce
                ).hex(),
                host.devices,
                self._unix.get(host.host, ""),
            )
            for host in access.hosts
        )
        return Access(access.lease, access.fence, hosts, nonce)

    def environment(self) -> dict[str, str]:
        """The variables for `connect()` in another process, which opens lanes on this session."""
        view = self.view()
        return {SESSION_VARIABLE: view.to_json(), COUNT_VARIABLE: str(len(view.devices))}

    def give_back(self, timeout_s: float = ANSWER_S, *, succeeded: bool | None = None) -> None:
        """Give the devices back: lanes and workers end, memory is freed; the session stays.

        `succeeded`: False keeps the scheduler from learning the execution time of code that failed.
        Safe to repeat. Raises Refused when the session is lost meanwhile.
        """
        self._ask("give_back", _known(succeeded=succeeded), timeout_s)

    def close(
        self,
        reason: str = "DONE",
        detail: str = "",
        timeout_s: float = ANSWER_S,
        *,
        succeeded: bool | None = None,
    ) -> None:
        """End the lease. Safe to repeat and after a loss; never raises Refused.

        `succeeded`: as of `give_back`, for devices that were not given back before.
        """
        if not self._closed.is_set() and self.lost is None:
            about = {"reason": reason, "detail": detail[:500]}
            with contextlib.suppress(Refused):
                self._ask("close", {**about, **_known(succeeded=succeeded)}, timeout_s)
        self._closed.set()
        self._drop()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(succeeded=kind is None)

    def _add(
        self,
        host: HostAccess,
        cap_s: float,
        timeout_s: float,
        wait: Wait,
        new_sandbox: bool | None,
    ) -> None:
        stream, channel, welcome = open_connection(
            host,
            role=ConnectionRole.SESSION,
            lease=self._access.lease,
            fence=self._access.fence,
            session=self._nonce,
            timeout_s=timeout_s,
            cap_s=cap_s,
            wait=wait,
            new_sandbox=new_sandbox,
        )
        channel.limits = SESSION
        self._connections.append(_HostConnection(stream, channel, host.gateway))
        self._beat_s = float(welcome.get("beat_s", 5.0))
        self._silence_s = float(welcome.get("silence_s", 30.0))
        if isinstance(held_s := welcome.get("held_s"), int | float):
            self.held_s = float(held_s)
        unix = welcome.get("unix")
        if isinstance(unix, str) and unix and is_reachable(unix):
            self._unix[host.host] = unix
        stream.settimeout(self._silence_s)

    def _ask(self, command: str, fields: Meta, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        for connection in self._connections:
            connection.answered[command].clear()
            self._send(connection, {command: fields, **self._trace})
        for connection in self._connections:
            while not connection.answered[command].wait(
                min(0.5, max(0.0, deadline_s - time.monotonic()))
            ):
                if self.lost is not None:
                    raise self.lost
                if time.monotonic() >= deadline_s:
                    raise Refused(Refusal.TIMEOUT, f"{connection.where} did not answer {command}")

    def _send(self, connection: _HostConnection, meta: Meta) -> None:
        with errors_as_refusals(connection.where), self._lock:
            connection.channel.send(meta)

    def _run(self) -> None:
        """The session's thread: sends heartbeats, reads answers, detects silence."""
        try:
            self._keep_alive()
        except Refused as refused:
            if self._closed.is_set():
                return
            self.lost = refused
            self._drop()
            if self._on_lost is not None:
                self._on_lost(refused)

    def _keep_alive(self) -> None:
        next_beat_s = time.monotonic()
        while not self._closed.is_set():
            now_s = time.monotonic()
            if now_s >= next_beat_s:
                self._beat()
                self._trace = {}  # the first message carries it
                next_beat_s = now_s + self._beat_s
            self._listen(max(0.0, next_beat_s - now_s))
            self._check_silence()

    def _beat(self) -> None:
        for connection in self._connections:
            self._send(connection, {"beat": {}, **self._trace})

    def _listen(self, wait_s: float) -> None:
        with errors_as_refusals("the session"):
            try:
                ready = readable(self._connections, wait_s)
            except ValueError:  # closed by another thread
                raise Refused(Refusal.ENDED, "the session was closed") from None
        for connection in ready:
            with errors_as_refusals(connection.where):
                connection.read()
                while connection.channel.buffered:  # several answers in one segment
                    connection.read()
            if connection.grace_s is not None and self._on_preempt is not None:
                notify, self._on_preempt = self._on_preempt, None
                notify(connection.grace_s)

    def _check_silence(self) -> None:
        for connection in self._connections:
            if time.monotonic() - connection.received_s > self._silence_s:
                message = f"{connection.where} was silent for {self._silence_s:g} s"
                raise Refused(Refusal.TIMEOUT, message)

    def _drop(self) -> None:
        for connection in self._connections:
            connection.close()


def _known(**facts: bool | None) -> dict[str, object]:
    return {name: fact for name, fact in facts.items() if fact is not None}


class _HostConnection:
    """The session's connection to one host."""

    def __init__(self, stream: Carrier, channel: Channel, where: str) -> None:
        self.stream = stream
        self.channel = channel
        self.where = f"gateway {where}"
        self.received_s = time.monotonic()
        self.grace_s: float | None = None  #: of the notice that the lease is preempted
        self.answered = {"give_back": threading.Event(), "close": threading.Event()}

    def fileno(self) -> int:
        """−1 once closed."""
        return self.stream.fileno()

    def read(self) -> None:
        """Read one message. Raises Refused(ENDED) when the host ended the lease."""
        received = self.channel.receive()
        if received is None:
            if self.answered["close"].is_set():
                raise Refused(Refusal.ENDED, "the session was closed")
            raise Refused(Refusal.UNREACHABLE, f"{self.where} closed the session")
        self.received_s = time.monotonic()
        meta = received[1]
        if isinstance(ended := meta.get("ended"), dict):
            raise Refused(Refusal.ENDED, f"{ended.get('reason')}: {ended.get('detail') or ''}")
        if isinstance(preempt := meta.get("preempt"), dict):
            grace_s = preempt.get("grace_s")
            self.grace_s = float(grace_s) if isinstance(grace_s, int | float) else 0.0
        for command, event in self.answered.items():
            if command in meta:
                event.set()

    def close(self) -> None:
        """Shut down, so that a thread inside recv returns, and close."""
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_RDWR)
        self.stream.close()
