"""Doors to other middlewares: one server per lease on 127.0.0.1, reached by proven connections.

A lease's first door starts its server, its end kills it. Which programs there are is the operator's
to say (`gpud --middleware NAME=PROGRAM`); a client only names one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.ids import LeaseId
from gpu_scheduler.protocol.host import Install
from remote_gpu.client.relay import End, Relay
from remote_gpu.client.tls import TlsStream
from remote_gpu.host.gateway.frames import Peer
from remote_gpu.host.servers.server import Server, free_port
from remote_gpu.host.workers.cells import Sandboxes
from remote_gpu.middleware import VisibleDevices, find
from remote_gpu.wire.errors import Refusal, Refused
from remote_gpu.wire.proof import Hello
from remote_gpu.wire.variables import PORTS

logger = logging.getLogger(__name__)

DOORS_MAX = 64  #: open at once on one lease; each is two threads and half a MiB of gpud
#: A server that dies or does not serve is started anew this often within one lease.
STARTS_MAX = 5


@dataclass(slots=True, kw_only=True)
class _Served:
    """One lease's server and the doors to it."""

    install: Install
    middleware: str
    ended: bool = False  #: the lease is over: nothing starts any more
    doors: int = 0  #: open or about to be
    starts: int = 0
    relays: list[Relay] = field(default_factory=list)
    proven: list[Relay] = field(default_factory=list)  #: those of them that a session opened
    sessions: int = 0  #: that are over
    server: Server | None = None
    port: asyncio.Task[int | Refused] | None = None  #: where it serves, or why it does not

    @contextlib.contextmanager
    def door(self) -> Iterator[None]:
        """One place. Raises Refused(BUSY)."""
        if self.doors >= DOORS_MAX:
            raise Refused(Refusal.BUSY, f"a lease has at most {DOORS_MAX} doors open")
        self.doors += 1
        try:
            yield
        finally:
            self.doors -= 1

    def check(self) -> None:
        """Raises Refused(ENDED) once the lease is over."""
        if self.ended:
            raise Refused(Refusal.ENDED, f"lease {self.install.lease} is over")


class Relays:
    """The servers of this host."""

    def __init__(
        self,
        programs: Mapping[str, Path],
        folder: Path,
        budget: Budget,
        nursery: Nursery,
        visible: VisibleDevices,
        cells: Sandboxes | None = None,
    ) -> None:
        """`programs`: middleware → absolute path; `folder`: for those that run, emptied now;
        `visible`: what their servers could see of this host; `cells`: where they run, as far as
        they bear it."""
        self._cells = cells
        self._programs = programs
        self._folder = folder
        self._budget = budget
        self._nursery = nursery
        self._visible = visible
        self._served: dict[LeaseId, _Served] = {}
        shutil.rmtree(folder, ignore_errors=True)

    async def serve(
        self, install: Install, hello: Hello, peer: Peer, welcome: dict[str, Any]
    ) -> None:
        """Relay a proven door to the lease's server until either side, or the lease, ends.

        Raises Refused: DENIED for a middleware or port this host has not, NOT_READY when the
        program does not serve, BUSY, ENDED.
        """
        served = self._of(install, hello.middleware, hello.port)
        sessions = served.sessions
        with served.door(), contextlib.ExitStack() as stack:
            port = await self._port(served) + hello.port
            inner = stack.enter_context(await _connected(port))
            await peer.send({"welcome": welcome}, self._budget.handshake_s)
            served.check()
            if served.sessions != sessions:
                raise Refused(Refusal.ENDED, f"the session of {install.lease} is over")
            outer: End = peer.socket
            if peer.machine is not None:
                outer = TlsStream(peer.socket, peer.machine)
            await _relayed(served, outer, inner, proven=True)

    async def serve_port(self, install: Install, name: str, stream: socket.socket) -> None:
        """Relay a connection to the lease's own port to its server, from the first byte on.

        Of a server with several ports only the first can be reached so. Raises Refused.
        """
        served = self._of(install, name, 0)
        with served.door(), contextlib.ExitStack() as stack:
            inner = stack.enter_context(await _connected(await self._port(served)))
            served.check()
            await _relayed(served, stream, inner)

    def unbind(self, lease: LeaseId) -> None:
        """Cut what the lease's session opened; its server goes on, for those of its port too."""
        if (served := self._served.get(lease)) is not None:
            served.sessions += 1
            for relay in served.proven:
                relay.cut()

    def leave(self, lease: LeaseId) -> Server | None:
        """Cut the lease's doors and kill its server; the caller awaits that it is gone."""
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
            raise Refused(Refusal.DENIED, f"lease {install.lease} is one for {install.middleware}")
        if port >= PORTS[name]:
            raise Refused(Refusal.DENIED, f"{name} has no port number {port}")
        served = self._served.setdefault(install.lease, _Served(install=install, middleware=name))
        if served.middleware != name:
            raise Refused(Refusal.DENIED, f"lease {install.lease} runs {served.middleware} already")
        return served

    async def _port(self, served: _Served) -> int:
        """Where the lease's server serves, started if it is not there."""
        task = served.port
        if task is None or (task.done() and not _serves(served, task.result())):
            if served.starts >= STARTS_MAX:
                raise Refused(Refusal.NOT_READY, f"{served.middleware} died {STARTS_MAX} times")
            task = served.port = self._nursery.start(self._start(served), "server")
        port = await asyncio.shield(task)
        if isinstance(port, Refused):
            raise Refused(port.code, port.message)
        served.check()
        return port

    async def _start(self, served: _Served) -> int | Refused:
        """Its port once it serves. Returned and not raised: a bad program is no bug of gpud's."""
        if served.server is not None:
            await served.server.gone
        if served.ended:
            return Refused(Refusal.ENDED, f"lease {served.install.lease} is over")
        name, install = served.middleware, served.install
        middleware = find(name)
        if (why := middleware.refusal(self._visible, install.shares)) is not None:
            return Refused(Refusal.DENIED, f"{name} is refused for lease {install.lease}: {why}")
        served.starts += 1
        try:
            command = middleware.server_command(
                install.fence, install.shares, free_port(middleware.server_ports)
            )
            assert command is not None, "--middleware refuses those without a server"
            folder = self._folder / f"{install.fence}.{served.starts}"
            program = self._programs[name]
            sandbox = None if self._cells is None else self._cells.make_of_server(program)
            server = served.server = Server(program, command, folder, sandbox)
        except OSError as error:
            return Refused(Refusal.NOT_READY, f"{name} cannot be started: {error}")
        self._nursery.start(server.watch(), "watch")
        about = {"lease": install.lease, "middleware": name, "pid": server.pid}
        port = await server.listens(command.port, self._budget.worker_ready_s)
        if port:
            logger.info("server ready", extra={"event": "server", "port": port, **about})
            return port
        server.kill()
        await server.gone
        logger.error("server not ready", extra={"event": "server", "said": server.said, **about})
        return Refused(Refusal.NOT_READY, f"{name} did not begin to serve on this host")


def _serves(served: _Served, port: int | Refused) -> bool:
    return isinstance(port, int) and not (served.server is None or served.server.exited.is_set())


async def _connected(port: int) -> socket.socket:
    stream = socket.socket()
    stream.setblocking(False)
    try:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(stream, ("127.0.0.1", port))
    except OSError as error:
        stream.close()
        raise Refused(Refusal.NOT_READY, f"the server takes no connection: {error}") from None
    except BaseException:
        stream.close()
        raise
    return stream


async def _relayed(
    served: _Served, outer: End, inner: socket.socket, *, proven: bool = False
) -> None:
    """Both ways, to the end of both sockets."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    relay = Relay(outer, inner)

    def ended() -> None:
        loop.call_soon_threadsafe(over.set)

    try:
        relay.start(ended)
    except RuntimeError:  # the machine has no more threads; those that began end with the sockets
        relay.cut()
        raise Refused(Refusal.BUSY, "this host has no thread for one more door") from None
    lists = (served.relays, served.proven) if proven else (served.relays,)
    for one in lists:
        one.append(relay)
    try:
        await over.wait()
    finally:
        relay.cut()
        await over.wait()  # at once: its threads end when both sockets are shut down
        for one in lists:
            one.remove(relay)
