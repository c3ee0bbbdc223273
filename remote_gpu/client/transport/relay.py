"""A relay of bytes between two connections, in both directions, until both have ended.

Blocking sockets and one thread per direction: copies run without the interpreter's lock, and a slow
reader slows its sender down, with 256 KiB of memory.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from remote_gpu.wire.frames import BufferLike

#: Of one read; a socket's buffer holds no more.
_CHUNK_BYTES = 1 << 18


class RelayEnd(Protocol):
    """One side of a relay: a connected socket, or one in TLS."""

    def setblocking(self, flag: bool, /) -> None: ...

    def recv_into(self, buffer: BufferLike, nbytes: int = 0, /) -> int: ...

    def sendall(self, data: memoryview, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


class Relay:
    """Owns both sockets from `start` on, and closes them at its end."""

    def __init__(self, one: RelayEnd, other: RelayEnd) -> None:
        self._pair = (one, other)
        self._lock = threading.Lock()
        self._running = 2
        self._on_end: Callable[[], None] = _nothing
        self._threads = tuple(
            threading.Thread(target=self._run, args=ends, name="relay", daemon=True)
            for ends in ((one, other), (other, one))
        )

    def start(self, on_end: Callable[[], None]) -> None:
        """`on_end` is called once, from a thread, when both sockets are closed."""
        self._on_end = on_end
        for stream in self._pair:
            stream.setblocking(True)
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        """End both directions at once. Safe to repeat, and after the end."""
        with self._lock:
            if self._running:  # else they are closed, and their numbers may be reused
                for stream in self._pair:
                    with contextlib.suppress(OSError):
                        stream.shutdown(socket.SHUT_RDWR)

    def join(self, timeout_s: float) -> bool:
        """Wait for both threads; False when one still runs."""
        for thread in self._threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, source: RelayEnd, sink: RelayEnd) -> None:
        try:
            _copy(source, sink)
        except OSError:  # a broken direction ends the other one too
            self.cut()
        with self._lock:
            self._running -= 1
            last = not self._running
            if last:
                for stream in self._pair:
                    stream.close()
        if last:
            self._on_end()


def _copy(source: RelayEnd, sink: RelayEnd) -> None:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    while count := source.recv_into(buffer):
        sink.sendall(buffer[:count])
    sink.shutdown(socket.SHUT_WR)


def _nothing() -> None:
    pass
