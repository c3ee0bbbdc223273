"""Relays to servers of other middlewares: one server per lease on 127.0.0.1.

A lease's first relay starts its server, and the lease's end kills it. The operator names the
programs (`gpud --middleware NAME=PROGRAM`); a client chooses one of them by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.ids import LeaseId
from gpu_scheduler.protocol.host import Install
from remote_gpu.client.transport.relay import Relay, RelayEnd
from remote_gpu.client.transport.tls import TlsStream
from remote_gpu.host.gateway.frames import Peer
from remote_gpu.host.servers.server import Server, free_port, unregister
from remote_gpu.isolation.sandboxes import Sandboxes
from remote_gpu.middleware import find
from remote_gpu.middleware.base import ServerLease, VisibleDevices
from remote_gpu.wire.errors import Refusal, Refused
from remote_gpu.wire.proof import Hello

logger = logging.getLogger(__name__)

RELAYS_MAX = 64  #: limit for one lease; each costs two threads, six descriptors, half a MiB at most
#: A server that dies or does not serve is started at most this often within one lease.
STARTS_MAX = 5


@dataclass(slots=True, kw_only=True)
class _Served:
    """One lease's server and the relays to it."""

    install: Install
    middleware: str
    ended: bool = False  #: the lease is over: no server is started any more
    open: int = 0  #: relays, starting ones included
    starts: int = 0
    relays: list[Relay] = field(default_factory=list)
    of_sessions: list[Relay] = field(default_factory=list)  #: a part of `relays`
    sessions_ended: int = 0
    server: Server | None = None
    port: asyncio.Task[int | Refused | None] | None = (
        None  #: the server's port, or the reason why it does not serve
    )

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count one relay for the length of a block. Raises Refused(BUSY)."""
        if self.open >= RELAYS_MAX:
            raise Refused(Refusal.BUSY, f"a lease has at most {RELAYS_MAX} relays at once")
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    def check(self) -> None:
        """Raises Refused(ENDED) once the lease is over."""
        if self.ended:
            raise Refused(Refusal.ENDED, f"lease {self.install.lease} is over")


class Relays:
    """The servers of this host's leases, and the relays to them."""

    def __init__(
        self,
        programs: Mapping[str, Path],
        folder: Path,
        budget: Budget,
        nursery: Nursery,
        visible: VisibleDevices,
        sandboxes: Sandboxes,
    ) -> None:
        """`programs`: middleware → absolute path; `folder`: of running servers, emptied now;
        `visible`: devices that servers can see here; `sandboxes`: of unmodified servers."""
        self._sandboxes = sandboxes
        self._programs = programs
        self._folder = folder
        self._budget = budget
        self._nursery = nursery
        self._visible = visible
        self._served: dict[LeaseId, _Served] = {}
        shutil.rmtree(folder, ignore_errors=True)

    async def serve(
        self, install: Install, hello: Hello, peer: Peer, welcome: dict[str, object]
    ) -> None:
        """Relay an authenticated connection to the server until either side or the lease ends.

        Raises Refused: DENIED for a middleware or port that this host lacks, NOT_READY when the
        program does not serve, BUSY, ENDED.
        """
        served = self._of(install, hello.middleware, hello.port)
        sessions_ended = served.sessions_ended
        with served.counted(), contextlib.ExitStack() as stack:
            port = await self._port(served) + hello.port
            inner = stack.enter_context(await _connected(port))
            await peer.send({"welcome": welcome}, self._budget.handshake_s)
            served.check()
            if served.sessions_ended != sessions_ended:
                raise Refused(Refusal.ENDED, f"the session of {install.lease} is over")
            outer: RelayEnd = peer.socket
            if peer.machine is not None:
                outer = TlsStream(peer.socket, peer.machine)
            await relayed((served.relays, served.of_sessions), outer, inner)

    async def serve_port(self, install: Install, name: str, stream: socket.socket) -> None:
        """Relay a connection at the lease's own port to its server, from the first byte on.

        Only the first of several ports of a server can be reached this way. Raises Refused.
        """
        served = self._of(install, name, 0)
        with served.counted(), contextlib.ExitStack() as stack:
            inner = stack.enter_context(await _connected(await self._port(served)))
            served.check()
            await relayed((served.relays,), stream, inner)

    def owners(self) -> dict[int, LeaseId]:
        """The leases of the running servers, by process id."""
        servers = ((lease, served.server) for lease, served in self._served.items())
        return {server.pid: lease for lease, server in servers if server is not None}

    def unbind(self, lease: LeaseId) -> None:
        """Cut the relays of the lease's session; its server and relays of its port go on."""
        if (served := self._served.get(lease)) is not None:
            served.sessions_ended += 1
            for relay in served.of_sessions:
                relay.cut()

    def leave(self, lease: LeaseId) -> Server | None:
        """Cut the lease's relays and kill its server; the caller awaits the server's end."""
        served = self._served.pop(lease, None)
        if served is None:
            return None
        served.ended = True
        for relay in served.relays:
            relay.cut()
        if served.server is not None:
            served.server.kill()
        return served.server

    def _of(self, install: Install, name: str, port: int) -> _Served:
        if name not in self._programs:
            raise Refused(Refusal.DENIED, f"this host does not offer {name!r}")
        if install.middleware not in (None, name):
            raise Refused(Refusal.DENIED, f"lease {install.lease} is for {install.middleware} only")
        if port >= find(name).client.ports:
            raise Refused(Refusal.DENIED, f"{name} has no port number {port}")
        served = self._served.setdefault(install.lease, _Served(install=install, middleware=name))
        if served.middleware != name:
            raise Refused(Refusal.DENIED, f"lease {install.lease} runs {served.middleware} already")
        return served

    async def _port(self, served: _Served) -> int:
        task = served.port
        if task is None or (task.done() and not _serves(served, task.result())):
            if served.starts >= STARTS_MAX:
                raise Refused(Refusal.NOT_READY, f"{served.middleware} died {STARTS_MAX} times")
            task = served.port = self._nursery.start(self._start(served), "server")
        port = await asyncio.shield(task)
        if port is None:
            raise Refused(Refusal.NOT_READY, f"{served.middleware} failed here; see gpud's log")
        if isinstance(port, Refused):
            raise Refused(port.code, port.message)
        served.check()
        return port

    async def _start(self, served: _Served) -> int | Refused:
        """Start the server; returns its port, or a refusal: a bad program is not a bug in gpud."""
        name, install = served.middleware, served.install
        middleware = find(name)
        if (why := middleware.refusal(self._visible, install.shares)) is not None:
            return Refused(Refusal.DENIED, f"{name} is refused for lease {install.lease}: {why}")
        if served.server is not None:
            await served.server.gone
        served.starts += 1
        try:
            command = middleware.server_command(
                ServerLease(
                    fence=install.fence,
                    shares=install.shares,
                    port=free_port(middleware.server_ports),
                )
            )
            assert command is not None, "--middleware refuses middlewares without a server"
            if command.rpc_program is not None:  # of a server whose gpud was killed
                await asyncio.to_thread(unregister, command.rpc_program)
            if served.ended:
                return Refused(Refusal.ENDED, f"lease {install.lease} is over")
            folder = self._folder / f"{install.fence}.{served.starts}"
            program = self._programs[name]
            sandbox = self._sandboxes.make_for_server(program)
            server = served.server = Server(
                program, command, folder, sandbox, inherited=middleware.inherited
            )
        except OSError as error:
            return Refused(Refusal.NOT_READY, f"{name} cannot be started: {error}")
        about = {"lease": install.lease, "middleware": name, "pid": server.pid}
        self._nursery.start_end(functools.partial(_watched, server, about), "watch")
        port = await server.listens(command.port, self._budget.worker_ready_s)
        if port:
            logger.info("server ready", extra={"event": "server", "port": port, **about})
            return port
        server.kill()
        await server.gone
        logger.error("server not ready", extra={"event": "server", **about})
        return Refused(
            Refusal.NOT_READY, f"{name} did not begin to serve on this host; see gpud's log"
        )


def _serves(served: _Served, port: int | Refused | None) -> bool:
    return isinstance(port, int) and not (served.server is None or served.server.exited.is_set())


async def _watched(server: Server, about: Mapping[str, object]) -> None:
    await server.watch()
    extra = {"event": "server", "status": server.status, "output": server.output, **about}
    if server.killed:
        logger.info("server was ended", extra=extra)
    else:
        logger.warning("server ended by itself", extra=extra)


async def _connected(port: int) -> socket.socket:
    stream = socket.socket()
    stream.setblocking(False)
    try:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(stream, ("127.0.0.1", port))
    except OSError as error:
        stream.close()
        raise Refused(Refusal.NOT_READY, f"the server accepts no connection: {error}") from None
    except BaseException:
        stream.close()
        raise
    return stream


async def relayed(lists: Sequence[list[Relay]], outer: RelayEnd, inner: socket.socket) -> None:
    """Relay until both sides have ended; meanwhile the relay is in `lists`. Raises Refused(BUSY).

    It owns both sockets.
    """
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    relay = Relay(outer, inner)

    def ended() -> None:
        loop.call_soon_threadsafe(over.set)

    try:
        relay.start(ended)
    except RuntimeError:  # no more threads; a thread that has started ends with its socket
        relay.cut()
        raise Refused(Refusal.BUSY, "this host has no thread for one more relay") from None
    for relays in lists:
        relays.append(relay)
    try:
        await over.wait()
    finally:
        relay.cut()
        await over.wait()  # at once: its threads end when both sockets are shut down
        for relays in lists:
            relays.remove(relay)
