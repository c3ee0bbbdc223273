"""Bytes between two connections, both ways at once, until both ways have ended.

Blocking sockets and one thread per direction: the copies run in the kernel without the
interpreter's lock, and a side that stops reading stops the other one, at 256 KiB of memory.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from remote_gpu.wire.frames import BufferLike

#: One read at most. Larger ones gain nothing: a socket's buffer holds no more.
_CHUNK_BYTES = 1 << 18


class End(Protocol):
    """One side of a relay: a connected socket, or one in TLS."""

    def setblocking(self, flag: bool, /) -> None: ...

    def recv_into(self, buffer: BufferLike, nbytes: int = 0, /) -> int: ...

    def sendall(self, data: memoryview, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


class Relay:
    """Owns both sockets from `start` on, and closes them when it is over."""

    def __init__(self, one: End, other: End) -> None:
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
        """End both ways now, whatever is on its way. Safe to repeat and after the end."""
        with self._lock:
            if self._running:  # else they are closed, and the numbers may be others' by now
                for stream in self._pair:
                    with contextlib.suppress(OSError):
                        stream.shutdown(socket.SHUT_RDWR)

    def join(self, timeout_s: float) -> bool:
        """Wait for both threads; False when one still runs."""
        for thread in self._threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, source: End, sink: End) -> None:
        try:
            _copy(source, sink)
        except OSError:  # a broken way breaks the other one: half of a dialogue is none
            self.cut()
        with self._lock:
            self._running -= 1
            last = not self._running
            if last:
                for stream in self._pair:
                    stream.close()
        if last:
            self._on_end()


def _copy(source: End, sink: End) -> None:
    """Until the source says that it will send no more; the sink is told the same."""
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    while count := source.recv_into(buffer):
        sink.sendall(buffer[:count])
    sink.shutdown(socket.SHUT_WR)


def _nothing() -> None:
    pass
