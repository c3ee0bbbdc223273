"""The sockets of the gateway: one for TCP, and one for programs of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from remote_gpu.wire.connection import UNIX_PATH_BYTES_MAX

#: Connections that the kernel holds until they are accepted. A peer beyond it tries again after one
#: second, then two; the kernel's own limit is 4,096 (net.core.somaxconn).
BACKLOG = 4096
TOGETHER_MAX = 64

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


async def accepted(listener: socket.socket) -> AsyncIterator[list[tuple[socket.socket, str]]]:
    """The new connections, each with the address of its peer, "" on a local socket; never ends.

    Other tasks run between two lists, which have `TOGETHER_MAX` connections at most.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            found = [await loop.sock_accept(listener)]
        except OSError as error:  # out of descriptors: those in use must end first
            logger.warning("cannot accept", extra={"why": str(error)})
            await asyncio.sleep(0.1)
            continue
        with contextlib.suppress(OSError):  # no further one, or out of descriptors
            while len(found) < TOGETHER_MAX:
                found.append(listener.accept())
        for stream, _ in found:
            stream.setblocking(False)
        yield [(stream, name[0] if name else "") for stream, name in found]
        await asyncio.sleep(0)
