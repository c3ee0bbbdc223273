"""The worker's end of a lane's shared memory, for a client of the same machine.

The memory belongs to the worker and is sealed at a fixed size: a client that shrinks it would crash
the worker at a missing page. Like the kernel's socket buffers it is not counted in the quota: 4 MiB
for each lane with large payloads.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket

from remote_gpu.wire.segment import SEGMENT_BYTES, Segment

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SharedLane:
    """Creates shared memory on request and passes it over the lane's socket."""

    def __init__(self, lane: socket.socket) -> None:
        self._lane = lane
        self._bell: socket.socket | None = None

    def share(self, answer: bytes) -> Segment:
        """Send `answer` with the memory and the client's end of the bell. Raises OSError."""
        self.close()
        with contextlib.ExitStack() as stack:
            memory = os.memfd_create("lane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            stack.callback(os.close, memory)
            os.ftruncate(memory, SEGMENT_BYTES)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
            mapped = mmap.mmap(memory, SEGMENT_BYTES)
            self._bell, theirs = socket.socketpair()
            stack.enter_context(theirs)
            socket.send_fds(self._lane, [answer], [memory, theirs.fileno()])
        return Segment(mapped, self._bell, first=False)

    def close(self) -> None:
        """End the client's waits; the memory is freed with its last view."""
        if self._bell is not None:
            self._bell.close()


def shared_lane(lane: socket.socket) -> SharedLane | None:
    """The shared memory of a lane; None for a client on another machine."""
    return SharedLane(lane) if lane.family == socket.AF_UNIX else None
