"""Ports of leases: `door: port` gives a lease a listening port of its own, without a proof.

Such a port is weaker than the gateway: any peer from one of the lease's networks counts as its
holder. A port therefore opens when the lease has its shares, closes when it ends, and accepts only
these networks. The classic `ssgm` gives such ports to clients without a secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from corekit.aio.supervise import Nursery
from corekit.ids import LeaseId
from gpu_scheduler.protocol.host import Install
from remote_gpu.client.transport.handshake import tune
from remote_gpu.host.gateway.listeners import accepted

logger = logging.getLogger(__name__)

_BACKLOG = 64
#: Serves one connection from an address; the connection is closed afterwards.
Serve = Callable[[Install, socket.socket, str], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortSettings:
    """Addresses and numbers of the ports of leases."""

    listen: str  #: address of this machine
    advertise: str  #: address for clients; IPv6 without brackets
    ports: range = range(1)  #: to choose from; 0 = any free one


@dataclass(frozen=True, slots=True)
class _Open:
    listener: socket.socket
    accepting: asyncio.Task[None]


class LeasePorts:
    """The open ports of this host."""

    def __init__(self, settings: PortSettings, serve: Serve, nursery: Nursery) -> None:
        self._settings = settings
        self._serve = serve
        self._nursery = nursery
        self._open: dict[LeaseId, _Open] = {}

    def open(self, install: Install) -> str:
        """Listen for the lease's holder; returns "address:port". Idempotent.

        Raises OSError when no port is left.
        """
        known = self._open.get(install.lease)
        if known is None:
            listener = self._listener()
            listener.setblocking(False)
            task = self._nursery.start(self._accept(listener, install), "port")
            task.add_done_callback(lambda _: listener.close())
            known = self._open[install.lease] = _Open(listener, task)
        port = known.listener.getsockname()[1]
        address = self._settings.advertise
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    def close(self, lease: LeaseId) -> None:
        """Accept no more connections; open ones end with the lease. Idempotent."""
        if (known := self._open.pop(lease, None)) is not None:
            with contextlib.suppress(OSError):
                known.listener.shutdown(socket.SHUT_RDWR)  # at once, whenever the task ends
            known.accepting.cancel()

    def close_all(self) -> None:
        for lease in tuple(self._open):
            self.close(lease)

    def _listener(self) -> socket.socket:
        address = self._settings.listen
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        for port in self._settings.ports:
            try:
                return socket.create_server((address, port), family=family, backlog=_BACKLOG)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        raise OSError(errno.EADDRINUSE, "every port of --door-ports is in use; give more")

    async def _accept(self, listener: socket.socket, install: Install) -> None:
        async for found in accepted(listener):
            for stream, source in found:
                if admits(install.sources, source):
                    self._nursery.start(self._connection(install, stream, source), "connection")
                    continue
                about = {"event": "not_admitted", "lease": install.lease, "source": source}
                logger.warning(
                    "connection refused: its address is in no network of the lease", extra=about
                )
                stream.close()

    async def _connection(self, install: Install, stream: socket.socket, source: str) -> None:
        with stream:
            tune(stream)  # a relay has no session that would detect a lost peer
            await self._serve(install, stream, source)


def admits(sources: tuple[str, ...], address: str) -> bool:
    """True when a machine of this address may connect."""
    peer = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
        peer = peer.ipv4_mapped
    return any(peer in ipaddress.ip_network(source) for source in sources)
