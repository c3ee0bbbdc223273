"""The client's end of a lane's shared memory, where its worker is on the same machine."""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import socket
from collections.abc import Iterable

from remote_gpu.wire.channel import Channel
from remote_gpu.wire.errors import WireError
from remote_gpu.wire.frames import BufferLike, FrameLimits
from remote_gpu.wire.segment import SEGMENT_BYTES, SEGMENT_COMMAND, Segment


class SharedMemory:
    """The shared memory of one lane, until it is closed."""

    def __init__(self, stream: socket.socket, call: int) -> None:
        """Request it from the worker. Raises WireError when it offers none, OSError."""
        receiver = _DescriptorSocket(stream)
        channel = Channel(receiver, FrameLimits())
        channel.send({"op": SEGMENT_COMMAND}, call=call)
        try:
            received = channel.receive()
            if received is None or received[0].call != call:
                raise WireError("its worker died, or the lease is over")
            if len(receiver.descriptors) != 2:
                raise WireError("the worker shares no memory")
            memory, bell = receiver.descriptors
            if os.fstat(memory).st_size != SEGMENT_BYTES:
                raise WireError("the worker's shared memory has another size")
            mapped = mmap.mmap(memory, SEGMENT_BYTES)
            self._bell = socket.socket(fileno=os.dup(bell))
        finally:
            for descriptor in receiver.descriptors:
                os.close(descriptor)
        self.segment = Segment(mapped, self._bell, first=True)

    def close(self) -> None:
        """Wake a thread that waits for a slot, and close. Safe to repeat."""
        with contextlib.suppress(OSError):
            self._bell.shutdown(socket.SHUT_RDWR)
        self._bell.close()


class _DescriptorSocket:
    """A Unix socket whose next frame carries descriptors, which a plain read would drop."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self.descriptors: list[int] = []

    def send(self, data: BufferLike, /) -> int:
        return self._stream.send(data)

    def sendmsg(self, buffers: Iterable[BufferLike], /) -> int:
        return self._stream.sendmsg(buffers)

    def recv_into(self, buffer: BufferLike, nbytes: int = 0, /) -> int:
        size = array.array("i").itemsize
        view = memoryview(buffer)[: nbytes or None]
        count, ancillary, _, _ = self._stream.recvmsg_into(
            [view], socket.CMSG_SPACE(2 * size), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array.array("i")
                found.frombytes(data[: len(data) - len(data) % size])
                self.descriptors += found
        return count
