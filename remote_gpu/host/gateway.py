"""The gateway: the host's one open port. Proves, claims, holds sessions, hands lanes to workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.ids import LeaseId
from gpu_scheduler.model import EndReason
from remote_gpu.host.frames import receive_frame, send_frame
from remote_gpu.host.leases import Entry, LeaseTable, Phase, Step
from remote_gpu.host.slots import Slots
from remote_gpu.wire.errors import Refusal, Refused, WireError
from remote_gpu.wire.frames import HANDSHAKE, SESSION, pack, text_field
from remote_gpu.wire.proof import (
    NONCE_BYTES,
    Hello,
    Role,
    client_proof,
    gateway_proof,
    lane_key,
    matches,
)

logger = logging.getLogger(__name__)

#: Connections that prove themselves now; each costs a task, a descriptor and at most 4 KiB.
UNPROVEN_MAX = 512
#: Connections that wait for an install that may never come: they take no place from the former.
AWAITED_MAX = 512
#: Of one source address, of both kinds each: behind one NAT there may be many functions.
PER_SOURCE_MAX = 256
_BACKLOG = 256


class Host(Protocol):
    """What the gateway asks of the daemon."""

    table: LeaseTable

    def now_s(self) -> float: ...

    def apply(self, steps: list[Step]) -> None:
        """Carry steps of the table out."""
        ...

    async def until(self, ready: Callable[[], bool], wait_s: float) -> bool:
        """Wait until the table makes `ready` true; False when it did not in time."""
        ...

    async def hand_over(self, entry: Entry, device: int, stream: socket.socket) -> None:
        """Give a proven lane to the lease's worker. Raises Refused."""
        ...

    async def serve_door(self, entry: Entry, hello: Hello, stream: socket.socket) -> None:
        """Welcome a proven door and relay it to the lease's server to its end. Raises Refused."""
        ...


class Gateway:
    """One listening socket and its connections."""

    def __init__(self, host_id: str, host: Host, budget: Budget, nursery: Nursery) -> None:
        self._host_id = host_id
        self._host = host
        self._budget = budget
        self._nursery = nursery
        self._listener: socket.socket | None = None
        self._unproven = Slots(UNPROVEN_MAX, PER_SOURCE_MAX, "connections that prove themselves")
        self._awaited = Slots(AWAITED_MAX, PER_SOURCE_MAX, "connections that wait for an install")
        self._sessions: dict[LeaseId, socket.socket] = {}

    def listen(self, address: str, port: int) -> str:
        """Bind; returns "address:port" as it became. Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, port), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        bound = self._listener.getsockname()
        return f"[{bound[0]}]:{bound[1]}" if family == socket.AF_INET6 else f"{bound[0]}:{bound[1]}"

    async def serve(self) -> None:
        """Accept connections for ever."""
        assert self._listener is not None, "listen() comes first"
        loop = asyncio.get_running_loop()
        while True:
            try:
                stream, name = await loop.sock_accept(self._listener)
            except OSError as error:  # out of descriptors: those in use must end first
                logger.warning("cannot accept", extra={"why": str(error)})
                await asyncio.sleep(0.1)
                continue
            stream.setblocking(False)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._nursery.start(self._connection(stream, name[0]), "connection")

    def close(self) -> None:
        """Stop listening; sessions end with their tasks."""
        if self._listener is not None:
            self._listener.close()

    def session_ended(self, step: Step) -> None:
        """Tell the session's holder why it is over, and cut it."""
        if (stream := self._sessions.pop(step.lease, None)) is not None:
            ended = {"reason": step.reason, "detail": step.detail}
            with contextlib.suppress(OSError):  # at once: its task may close it at any await
                stream.send(pack({"ended": ended}))
                stream.shutdown(socket.SHUT_RDWR)

    async def _connection(self, stream: socket.socket, source: str) -> None:
        with stream:
            try:
                hello = await self._prove(stream, source)
            except Refused as refused:
                await _refuse(stream, refused)
                return
            except (WireError, OSError, TimeoutError) as error:
                await _refuse(stream, Refused(Refusal.PROTOCOL, str(error) or "too slow"))
                return
            await self._serve_proven(stream, hello)

    async def _serve_proven(self, stream: socket.socket, hello: Hello) -> None:
        try:
            if hello.role is Role.SESSION:
                await self._session(stream, hello)
            elif hello.role is Role.LANE:
                await self._lane(stream, hello)
            else:
                await self._door(stream, hello)
        except Refused as refused:
            await _refuse(stream, refused)
        except (WireError, OSError, TimeoutError) as error:
            logger.info("connection lost", extra={"lease": hello.lease, "why": str(error)})

    async def _prove(self, stream: socket.socket, source: str) -> Hello:
        with self._unproven.held(source):
            hello = Hello.from_meta(await self._receive(stream))
        if hello.host != self._host_id:
            raise Refused(Refusal.DENIED, f"this is not {hello.host}")
        entry = await self._installed(hello, source)
        if entry.install.fence != hello.fence:
            raise Refused(Refusal.DENIED, f"lease {hello.lease} has another fence")
        key = bytes.fromhex(entry.install.secret)
        if hello.role is not Role.SESSION:
            key = lane_key(key, hello.lease, hello.fence, hello.host, hello.session)
        nonce = secrets.token_hex(NONCE_BYTES)
        challenge = {"nonce": nonce, "proof": gateway_proof(key, hello, nonce)}
        with self._unproven.held(source):
            await self._send(stream, {"challenge": challenge})
            answer = text_field(await self._receive(stream), "proof", 64)
        if not matches(client_proof(key, hello, nonce), answer):
            raise Refused(Refusal.DENIED, "the proof of the secret is wrong")
        return hello

    async def _installed(self, hello: Hello, source: str) -> Entry:
        """The lease's entry; its install may be a moment behind the envelope."""
        host = self._host
        host.apply(host.table.expire(host.now_s()))

        def known() -> bool:
            return host.table.find(hello.lease) is not None or bool(host.table.ended(hello.lease))

        if not known():
            with self._awaited.held(source):
                await host.until(known, self._budget.install_wait_s)
        if (entry := host.table.find(hello.lease)) is not None:
            return entry
        if (ended := host.table.ended(hello.lease)) is not None:
            raise Refused(Refusal.ENDED, f"lease {hello.lease} ended here: {ended.reason}")
        raise Refused(Refusal.NOT_INSTALLED, f"lease {hello.lease} is not known here")

    async def _receive(self, stream: socket.socket) -> dict[str, Any]:
        return await receive_frame(stream, HANDSHAKE, self._budget.handshake_s)

    async def _send(self, stream: socket.socket, meta: Mapping[str, Any]) -> None:
        await send_frame(stream, meta, self._budget.handshake_s)

    async def _session(self, stream: socket.socket, hello: Hello) -> None:
        lease = LeaseId(hello.lease)
        await self._host.until(lambda: self._placed(lease), self._budget.install_wait_s)
        host = self._host
        now_s = host.now_s()
        host.apply(host.table.expire(now_s))
        opened = host.table.open(lease, hello.session, hello.cap_ms / 1000, now_s)
        self._sessions[lease] = stream
        host.apply(opened)
        welcome = {
            "beat_s": self._budget.session_beat_s,
            "silence_s": self._budget.session_silence_s,
        }
        try:
            await self._send(stream, {"welcome": welcome})
            await self._hold(stream, lease, hello.session)
        except (WireError, OSError, TimeoutError) as error:
            if self._sessions.get(lease) is stream:  # else it was ended here, which closed it
                host.apply(host.table.session_over(lease, EndReason.SESSION_LOST, str(error)))
        finally:
            if self._sessions.get(lease) is stream:
                del self._sessions[lease]

    def _placed(self, lease: LeaseId) -> bool:
        entry = self._host.table.find(lease)
        return entry is None or entry.phase is not Phase.QUEUED

    async def _hold(self, stream: socket.socket, lease: LeaseId, nonce: str) -> None:
        """Answer what the session says until it closes."""
        host, silence_s = self._host, self._budget.session_silence_s
        while True:
            meta = await receive_frame(stream, SESSION, 2 * silence_s)
            now_s = host.now_s()
            host.apply(host.table.expire(now_s))  # after a stop of this process: deadlines first
            entry = host.table.find(lease)
            if entry is None or entry.nonce != nonce:
                return
            host.table.heard(lease, now_s)
            if isinstance(close := meta.get("close"), dict):
                await self._closed(stream, lease, close)
                return
            if "give_back" in meta:
                host.apply(host.table.give_back(lease))
                await self._send(stream, {"give_back": {}})
            else:
                await self._send(stream, {"beat": {}})

    async def _closed(
        self, stream: socket.socket, lease: LeaseId, close: dict[str, object]
    ) -> None:
        reason = EndReason.RELEASED if close.get("reason") == "RELEASED" else EndReason.DONE
        self._sessions.pop(lease, None)  # ended by its holder: there is nobody to tell
        detail = str(close.get("detail", ""))[:500]
        self._host.apply(self._host.table.session_over(lease, reason, detail))
        with contextlib.suppress(OSError, TimeoutError):
            await self._send(stream, {"close": {}})

    async def _lane(self, stream: socket.socket, hello: Hello) -> None:
        host = self._host
        host.apply(host.table.expire(host.now_s()))
        entry = host.table.admit_lane(hello.lease, hello.session)
        if not any(share.index == hello.device for share in entry.install.shares):
            raise Refused(Refusal.DENIED, f"device {hello.device} is not part of the lease")
        await host.hand_over(entry, hello.device, stream)

    async def _door(self, stream: socket.socket, hello: Hello) -> None:
        host = self._host
        host.apply(host.table.expire(host.now_s()))
        await host.serve_door(host.table.admit_lane(hello.lease, hello.session), hello, stream)


async def _refuse(stream: socket.socket, refused: Refused) -> None:
    """Say why and close; a peer that does not listen is dropped."""
    with contextlib.suppress(OSError, TimeoutError):
        body = {"code": refused.code, "message": refused.message[:500]}
        await send_frame(stream, {"refused": body}, 0.5)
