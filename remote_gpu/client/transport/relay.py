"""A relay of bytes between two connections, in both directions, until both have ended.

Blocking sockets and one thread per direction, without the interpreter's lock while bytes move.
Small messages are copied. The first large read of a direction between two plain sockets changes it
to `splice` for the rest of the connection: the kernel passes pages from one socket to the other, by
way of a pipe, and no byte is copied here. A slow reader slows its sender down, with 256 KiB of
memory or of pages in the pipe.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from remote_gpu.wire.frames import BufferLike

#: Of one read; a socket's buffer holds no more.
_CHUNK_BYTES = 1 << 18
#: A read that shows a bulk transfer: a pipe costs two descriptors, which small calls do not need.
_BULK_BYTES = 1 << 15
#: Of `splice` where the kernel or a sandbox lacks it for these sockets: bytes are copied on.
_NO_SPLICE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP})


class RelayEnd(Protocol):
    """One side of a relay: a connected socket, or one in TLS."""

    def setblocking(self, flag: bool, /) -> None: ...

    def recv_into(self, buffer: BufferLike, nbytes: int = 0, /) -> int: ...

    def sendall(self, data: memoryview, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...

    def fileno(self) -> int: ...

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
    plain = isinstance(source, socket.socket) and isinstance(sink, socket.socket)
    pair = (source.fileno(), sink.fileno()) if plain else None
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    while count := source.recv_into(buffer):
        sink.sendall(buffer[:count])
        if pair is not None and count >= _BULK_BYTES:
            if (rest := _spliced(*pair)) is None:
                break
            pair = None
            sink.sendall(memoryview(rest))
    sink.shutdown(socket.SHUT_WR)


def _spliced(source: int, sink: int) -> bytes | None:
    """Pass all bytes on by the kernel, to the end: None.

    Bytes: it cannot be done here, and these were taken from `source` and not passed on. Raises
    OSError when a side is broken.
    """
    with contextlib.ExitStack() as stack:
        try:
            out, into = stack.enter_context(_pipe())
        except OSError:  # this process or user has no descriptor or memory left for it
            return b""
        left = 0
        try:
            while left := os.splice(source, into, _CHUNK_BYTES):
                while left:
                    left -= os.splice(out, sink, left)
        except OSError as error:
            if error.errno not in _NO_SPLICE:
                raise
            return os.read(out, left) if left else b""
    return None


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """The ends to read from and to write to. Raises OSError."""
    out, into = os.pipe()
    try:
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)
        yield out, into
    finally:
        os.close(out)
        os.close(into)


def _nothing() -> None:
    pass
