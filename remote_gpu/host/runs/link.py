"""The socket between gpud and a runner that stays for the next order (`gpu_runner.on_host`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
from collections.abc import Mapping

from gpu_scheduler.model import LENGTH_S_MAX

_LINE_BYTES_MAX = 4096


class RunnerLink:
    """gpud's end. The runner is the tenant's package: its word ends a run, and opens nothing."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._socket, self._theirs = socket.socketpair()
        self.descriptor = self._theirs.fileno()  #: of the runner's end, in its process too
        self._socket.setblocking(False)
        self._part = b""
        #: The runner has done its job and can serve the next.
        self.idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.loading_s = 0.0  #: that its program took to load, by its word

    def inherited(self) -> None:
        """The runner's process has its end."""
        self._theirs.close()
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    async def send(self, order: Mapping[str, object]) -> None:
        """Send the next order. Raises OSError."""
        line = json.dumps(order).encode("ascii") + b"\n"
        await asyncio.get_running_loop().sock_sendall(self._socket, line)

    def close(self) -> None:
        """A runner that waits for an order ends. Idempotent."""
        self._theirs.close()
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    def _read(self) -> None:
        try:
            chunk = self._socket.recv(_LINE_BYTES_MAX)
            *lines, self._part = (self._part + chunk).split(b"\n")
            if not chunk or len(self._part) > _LINE_BYTES_MAX:
                raise ValueError("the end, or no line")
            for line in lines:
                loading_s = float(json.loads(line)["idle"]["loading_s"])
                if not math.isfinite(loading_s) or self.idle.done():
                    raise ValueError("no answer to an order")
                self.loading_s = min(max(0.0, loading_s), LENGTH_S_MAX)
                self.idle.set_result(None)
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            with contextlib.suppress(OSError):  # without orders, the runner ends
                self.close()
