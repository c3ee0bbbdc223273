"""The sockets of the gateway: one for TCP, and one for programs of this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from remote_gpu.client.transport.handshake import tune
from remote_gpu.wire.connection import UNIX_PATH_BYTES_MAX

BACKLOG = 256

logger = logging.getLogger(__name__)


class Listeners:
    """Open from construction to `close`."""

    def __init__(self, address: str, port: int) -> None:
        """Bind to an address and a port (0 = any free one). Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, port), family=family, backlog=BACKLOG)
        listener.setblocking(False)
        self.sockets = [listener]
        self.path = ""  #: of the local socket; "" = there is none
        bound = listener.getsockname()
        self.address = (  #: "address:port" of the TCP socket
            f"[{bound[0]}]:{bound[1]}" if family == socket.AF_INET6 else f"{bound[0]}:{bound[1]}"
        )

    def add_local(self, path: Path) -> None:
        """Bind a local socket, which replaces any file at the path.

        Only gpud's own user and root may connect. Raises OSError, also for a path that is too long.
        """
        if len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
            raise OSError(f"{path} is longer than {UNIX_PATH_BYTES_MAX} bytes")
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        self.sockets.append(listener)
        self.path = str(path)

    def close(self) -> None:
        """Accept no more connections; those that are open end with their tasks."""
        for listener in self.sockets:
            listener.close()
        if self.path:
            Path(self.path).unlink(missing_ok=True)


async def accepted(listener: socket.socket) -> AsyncIterator[tuple[socket.socket, str]]:
    """Each new connection with the address of its peer, "" on a local socket; never ends."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            stream, name = await loop.sock_accept(listener)
        except OSError as error:  # out of descriptors: those in use must end first
            logger.warning("cannot accept", extra={"why": str(error)})
            await asyncio.sleep(0.1)
            continue
        stream.setblocking(False)
        if stream.family == socket.AF_UNIX:
            yield stream, ""
        else:
            tune(stream)  # a relay has no session that would detect a lost peer
            yield stream, name[0]
