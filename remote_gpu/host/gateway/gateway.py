"""The gateway, a host's only open port: authenticates clients, holds sessions, hands lanes over."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field

from corekit.aio.supervise import Nursery, until_first
from corekit.budget import Budget
from corekit.ids import HostId, LeaseId
from gpu_scheduler.model import EndReason
from gpu_scheduler.protocol.host import Install
from remote_gpu.client.transport.handshake import tune
from remote_gpu.client.transport.relay import RelayEnd
from remote_gpu.client.transport.tls import TlsStream
from remote_gpu.host.credentials.tls import HostTls
from remote_gpu.host.gateway.arrivals import Arrivals, Slots
from remote_gpu.host.gateway.frames import Peer
from remote_gpu.host.gateway.lease_ports import PortSettings
from remote_gpu.host.gateway.listeners import Listeners, accepted
from remote_gpu.host.gateway.relays import Relays, relayed
from remote_gpu.host.gateway.waiting import WaitingReports, WaitingSessions
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.leases.steps import LeaseStep
from remote_gpu.host.reports.traces import HostTraces
from remote_gpu.host.runs.runs import FunctionRuns
from remote_gpu.host.workers.lease_workers import LeaseWorkers
from remote_gpu.wire.errors import Refusal, Refused, WireError
from remote_gpu.wire.frames import HANDSHAKE, SESSION, text_field
from remote_gpu.wire.proof import (
    NONCE_BYTES,
    ConnectionRole,
    Hello,
    Proving,
    confirm_binding,
    port_key,
)
from remote_gpu.wire.runs import RUN, RunOrder

logger = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("3i")  #: struct ucred, <sys/socket.h>: pid, uid, gid


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Limits on open connections; above one, the largest source's oldest connection is evicted."""

    #: connections without a hello; each costs a task, a descriptor and at most 4 KiB
    arrived: int = 512  #: connections that were accepted, and of which nothing was read yet
    unproven: int = 512
    known: int = 512  #: connections that prove the secret of a lease that is installed here
    awaited: int = 512  #: connections that wait for an install that may never come
    waiting: int = 512  #: proven sessions that wait for the shares of their leases
    per_source: int = 256  #: of each kind; behind one NAT there may be many functions

    @classmethod
    def of(cls, descriptors: int) -> GatewayLimits:
        """Limits for a process with so many descriptors: most of them are left to leases."""
        most = max(4, min(512, descriptors // 16))
        return cls(
            arrived=most,
            unproven=most,
            known=most,
            awaited=most,
            waiting=most,
            per_source=most // 2,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The addresses at which clients reach this host."""

    host: HostId
    listeners: Listeners  #: of the gateway
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    ports: PortSettings  #: of leases with a port of their own
    tls: HostTls | None = None


class Gateway:
    """The connections to the host's listening sockets."""

    def __init__(
        self,
        endpoints: Endpoints,
        leases: Leases,
        workers: LeaseWorkers,
        relays: Relays,
        runs: FunctionRuns,
        traces: HostTraces,
        budget: Budget,
        nursery: Nursery,
        reports: WaitingReports,
    ) -> None:
        limits = endpoints.limits
        self._host = endpoints.host
        self._leases = leases
        self._workers = workers
        self._relays = relays
        self._runs = runs
        self._traces = traces
        self._budget = budget
        self._nursery = nursery
        self._tls = endpoints.tls
        self._listeners = endpoints.listeners
        self._arrivals: Arrivals[tuple[socket.socket, str]] = Arrivals(limits.arrived)
        self._begins = False
        self._unproven = Slots(limits.unproven, limits.per_source)
        self._known = Slots(limits.known, limits.per_source)
        self._awaited = Slots(limits.awaited, limits.per_source)
        self._waiting = WaitingSessions(leases, reports, budget, limits.waiting)
        self._sessions: dict[LeaseId, Peer] = {}
        self.refusals: Counter[str] = Counter()  #: refused connections by code
        self.refused_secrets = 0  #: of them, those with a wrong proof of a lease's secret

    @property
    def address(self) -> str:
        """The "address:port" on which the gateway listens."""
        return self._listeners.address

    @property
    def sessions(self) -> int:
        """The number of open sessions."""
        return len(self._sessions)

    def waiting(self) -> tuple[LeaseId, ...]:
        """The leases of which a session has knocked and waits, or is open: whether the scheduler
        knows of that is not known here."""
        return tuple(dict.fromkeys((*self._waiting.knocked(), *self._sessions)))

    async def serve(self) -> None:
        """Accept connections until it is cancelled."""
        try:
            await until_first(*(self._accept(listener) for listener in self._listeners.sockets))
        finally:
            while waiting := self._arrivals.portion():
                for stream, _ in waiting:
                    stream.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        async for found in accepted(listener):
            for stream, source in found:
                dropped = self._arrivals.arrived((stream, source), source, loop.time())
                if dropped is not None:
                    self.refusals[Refusal.BUSY] += 1
                    dropped[0].close()
            self._begin_soon()

    def _begin_soon(self) -> None:
        if not self._begins and len(self._arrivals):
            self._begins = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._begins = False
        for stream, source in self._arrivals.portion():
            self._nursery.start(self._connection(stream, source), "connection")
        self._begin_soon()

    def session_ended(self, step: LeaseStep) -> None:
        """Send the session's holder the reason, and close the connection."""
        if (peer := self._sessions.pop(step.lease, None)) is not None:
            ended = {"reason": step.reason, "detail": step.detail}
            with contextlib.suppress(OSError):  # at once: its task may close it at any await
                peer.send_now({"ended": ended})
                peer.socket.shutdown(socket.SHUT_RDWR)

    def session_preempted(self, lease: LeaseId, grace_s: float) -> None:
        """Send the notice that the lease ends in `grace_s` to its session, if one is open."""
        if (peer := self._sessions.get(lease)) is not None:
            with contextlib.suppress(OSError):  # its task sees that the connection broke
                peer.send_now({"preempt": {"grace_s": grace_s}})

    async def serve_port(self, install: Install, stream: socket.socket, source: str) -> None:
        """Serve a connection to the lease's own port by the middleware of its request."""
        if (name := install.middleware or "builtin") == "builtin":
            await self._connection(stream, source, install.lease)
            return
        try:
            await self._relays.serve_port(install, name, stream)
        except Refused as refused:
            about = {"event": "refused", "lease": install.lease, "why": refused.message}
            logger.warning("a connection to a lease's port is refused", extra=about)

    async def _connection(
        self, stream: socket.socket, source: str, port_of: LeaseId | None = None
    ) -> None:
        peer = Peer(stream)
        with stream:
            try:
                if source:
                    tune(stream)  # a relay has no session that would detect a lost peer
                proven = await self._prove(peer, source, port_of)
            except Refused as refused:
                await self._refuse(peer, refused)
                return
            except (WireError, OSError, TimeoutError) as error:
                await self._refuse(
                    peer, Refused(Refusal.PROTOCOL, str(error) or "the handshake timed out")
                )
                return
            await self._serve_proven(peer, proven)

    async def _serve_proven(self, peer: Peer, proven: Proving) -> None:
        hello = proven.hello
        try:
            if hello.role is ConnectionRole.LANE:
                await self._lane(peer, proven)
                return
            welcome = await self._bound(peer, proven) if proven.key else {}
            if hello.role is ConnectionRole.SESSION:
                await self._session(peer, hello, welcome)
            elif hello.role is ConnectionRole.RUN:
                await self._run(peer, hello, welcome)
            elif hello.role is ConnectionRole.CALLS:
                await self._calls(peer, hello, welcome)
            else:
                self._leases.expire()
                entry = self._leases.table.admit_lane(hello.lease, hello.session)
                await self._relays.serve(entry.install, hello, peer, welcome)
        except Refused as refused:
            await self._refuse(peer, refused)
        except (WireError, OSError, TimeoutError) as error:
            logger.info("connection lost", extra={"lease": hello.lease, "why": str(error)})
        except Exception:
            with contextlib.suppress(OSError):  # a worker may have a copy of it
                peer.socket.shutdown(socket.SHUT_RDWR)
            raise

    async def _refuse(self, peer: Peer, refused: Refused) -> None:
        """Count the refusal and send it; a peer that does not read it is dropped."""
        self.refusals[refused.code] += 1
        with contextlib.suppress(OSError, TimeoutError):
            body = {"code": refused.code, "message": refused.message[:500]}
            await peer.send({"refused": body}, 0.5)

    async def _prove(self, peer: Peer, source: str, port_of: LeaseId | None) -> Proving:
        if not source:
            _check_credentials(peer.socket)
        evict = functools.partial(_evict, peer)
        with self._unproven.held(source, evict):
            hello = Hello.from_meta(await self._receive(peer))
        proving = await self._proving(hello, source, port_of)
        with self._known.held(source, evict):
            await self._send(peer, proving.challenge)
            answer = text_field(await self._receive(peer), "proof", 64)
        if not proving.accepts(answer):
            self.refused_secrets += 1
            raise Refused(Refusal.DENIED, "the proof of the secret is wrong")
        if port_of is None:
            self._arrivals.proved(source, asyncio.get_running_loop().time())
        return proving

    async def _proving(self, hello: Hello, source: str, port_of: LeaseId | None) -> Proving:
        """The proof to demand: of the lease's secret or, at the lease's own port, of its id."""
        authority = self._tls.authority_for(source) if self._tls is not None else ""
        nonce = secrets.token_hex(NONCE_BYTES)
        if port_of is None:
            if hello.host != self._host:
                raise Refused(Refusal.DENIED, f"this host is {self._host}, not {hello.host}")
            await self._until_installed(hello.lease, source)
            install = self._leases.table.install_of(hello.lease, hello.fence)
            return Proving(bytes.fromhex(install.secret), hello, nonce, authority)
        if hello.lease != port_of:
            raise Refused(Refusal.DENIED, "this port belongs to another lease")
        if hello.role in (ConnectionRole.RUN, ConnectionRole.CALLS):  # its key is public
            raise Refused(Refusal.DENIED, "a run is ordered, and called, at the gateway")
        return Proving(port_key(hello.lease), hello, nonce, authority)

    async def _bound(self, peer: Peer, proven: Proving) -> dict[str, object]:
        """Continue in TLS; returns the fields of the welcome. Raises WireError, Refused(DENIED)."""
        assert self._tls is not None, "only TLS gives a connection a key"
        await self._send(peer, {"tls": {}})
        binding = await peer.secure(self._tls.context, self._budget.handshake_s)
        return confirm_binding(proven.key, binding, await self._receive(peer))

    async def _until_installed(self, lease: str, source: str) -> None:
        """Wait for an install that may arrive after the envelope. Raises Refused(BUSY)."""
        self._leases.expire()
        knows = functools.partial(self._leases.table.knows, lease)
        if knows():
            return
        waiting = asyncio.ensure_future(self._leases.until(knows, self._budget.install_wait_s))
        evicted = False

        def evict() -> None:
            nonlocal evicted
            evicted = True
            waiting.cancel()

        try:
            with self._awaited.held(source, evict):
                await asyncio.wait({waiting})
        finally:
            waiting.cancel()
        if evicted:
            raise Refused(Refusal.BUSY, "evicted by newer connections that wait for an install")

    async def _receive(self, peer: Peer) -> dict[str, object]:
        return await peer.receive(HANDSHAKE, self._budget.handshake_s)

    async def _send(self, peer: Peer, meta: dict[str, object]) -> None:
        await peer.send(meta, self._budget.handshake_s)

    async def _run(self, peer: Peer, hello: Hello, welcome: dict[str, object]) -> None:
        """Receive the order of the lease's run, and begin it. Raises Refused."""
        await self._send(peer, {"welcome": welcome})
        order = RunOrder.from_meta(await peer.receive(RUN, self._budget.handshake_s))
        self._leases.expire()  # the lease may have ended meanwhile
        install = self._leases.table.install_of(hello.lease, hello.fence)
        new = self._runs.order(install, order)
        await self._send(peer, {"running": {"new": new}})

    async def _calls(self, peer: Peer, hello: Hello, welcome: dict[str, object]) -> None:
        """Relay a caller of the lease's run until either side ends. Raises Refused."""
        self._leases.expire()
        install = self._leases.table.install_of(hello.lease, hello.fence)
        called = self._runs.called(install.lease)
        with called.connect() as inner:
            await self._send(peer, {"welcome": welcome})
            outer: RelayEnd = peer.socket
            if peer.machine is not None:
                outer = TlsStream(peer.socket, peer.machine)
            await relayed((called.relays,), outer, inner)

    async def _session(self, peer: Peer, hello: Hello, welcome: dict[str, object]) -> None:
        lease = LeaseId(hello.lease)
        leases = self._leases
        proven_s = leases.now_s()
        # Killing the preceding lease takes time; a refused session would fail its attempt.
        await self._waiting.until_placed(peer, hello)
        now_s = leases.expire()
        cap_s, waited_s = hello.cap_ms / 1000, round(now_s - proven_s, 6)
        opened = leases.table.open(lease, hello.session, cap_s, now_s, waited_s, hello.new_sandbox)
        self._sessions[lease] = peer
        if (entry := leases.table.find(lease)) and entry.booked_at_s is not None:
            welcome["held_s"] = round(now_s - entry.booked_at_s, 6)
        leases.apply(opened)
        welcome |= {
            "beat_s": self._budget.session_beat_s,
            "silence_s": self._budget.session_silence_s,
            "unix": self._listeners.path if _is_local(peer.socket) else "",
        }
        try:
            await self._send(peer, {"welcome": welcome})
            await self._hold(peer, lease, hello.session)
        except Exception as error:
            if self._sessions.get(lease) is peer:  # else this host ended the session
                why = await self._runs.explained(lease, str(error))
                leases.apply(leases.table.session_over(lease, EndReason.SESSION_LOST, why))
            if not isinstance(error, WireError | OSError | TimeoutError):
                raise
        finally:
            if self._sessions.get(lease) is peer:
                del self._sessions[lease]

    async def _hold(self, peer: Peer, lease: LeaseId, nonce: str) -> None:
        leases, silence_s = self._leases, self._budget.session_silence_s
        while True:
            meta = await peer.receive(SESSION, 2 * silence_s)
            now_s = leases.expire()  # first: this process may have been stopped
            entry = leases.table.find(lease)
            if entry is None or entry.nonce != nonce:
                return
            leases.table.heard(lease, now_s)
            if "traceparent" in meta:
                self._traces.traced(lease, meta["traceparent"])
            if isinstance(close := meta.get("close"), dict):
                await self._closed(peer, lease, close)
                return
            if "give_back" in meta:
                if not self._runs.keeps_device(lease):
                    leases.apply(leases.table.give_back(lease, _succeeded(meta["give_back"])))
                await self._send(peer, {"give_back": {}})
            else:
                await self._send(peer, {"beat": {}})

    async def _closed(self, peer: Peer, lease: LeaseId, close: dict[str, object]) -> None:
        reason = EndReason.RELEASED if close.get("reason") == "RELEASED" else EndReason.DONE
        self._sessions.pop(lease, None)  # the holder ended the session, and needs no message
        detail = str(close.get("detail", ""))[:500]
        steps = self._leases.table.session_over(lease, reason, detail, _succeeded(close))
        self._leases.apply(steps)
        with contextlib.suppress(OSError, TimeoutError):
            await self._send(peer, {"close": {}})

    async def _lane(self, peer: Peer, proven: Proving) -> None:
        hello = proven.hello
        self._leases.expire()
        entry = self._leases.table.admit_lane(hello.lease, hello.session)
        if not any(share.index == hello.device for share in entry.install.shares):
            raise Refused(Refusal.DENIED, f"device {hello.device} is not part of the lease")
        await self._workers.hand_over(entry, hello.device, peer.socket, proven.key)
        peer.send_now({"tls": {}} if proven.key else {"welcome": {}})


def _succeeded(given: object) -> bool | None:
    """Whether the code of a session succeeded, as its end reports it; None: an older client."""
    found = given.get("succeeded") if isinstance(given, dict) else None
    return found if isinstance(found, bool) else None


def _check_credentials(stream: socket.socket) -> None:
    """Check the peer's user on a Unix socket, as the kernel knows it. Raises Refused(DENIED)."""
    credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    if user not in (0, os.geteuid()):
        raise Refused(Refusal.DENIED, f"user {user} of this machine may connect by TCP only")


def _is_local(stream: socket.socket) -> bool:
    """True when the peer is a program of this machine: both ends have the same address."""
    if stream.family == socket.AF_UNIX:
        return True
    with contextlib.suppress(OSError):
        return bool(stream.getpeername()[0] == stream.getsockname()[0])
    return False


def _evict(peer: Peer) -> None:
    """Refuse a connection before its proof; its task then sees the end of the connection."""
    with contextlib.suppress(OSError):
        refused = {"code": Refusal.BUSY, "message": "evicted by newer connections"}
        peer.send_now({"refused": refused})
        peer.socket.shutdown(socket.SHUT_RDWR)
