"""A socket that is asked again and again, for a moment, before its reader sleeps.

To wake a thread whose core sleeps too takes as long as a round trip on one machine, and what it
knew is no longer in its caches.
"""

from __future__ import annotations

import socket
import threading
import time

from remote_gpu.wire.frames import BufferLike

#: Of a longer operation the waking up is less than a twentieth.
_ASKING_S = 0.001
#: Reads that sleep at once after one that asked in vain: twice as many each time, until one does
#: not. So a program that shares its only core with the worker, or calls for long, asks no more.
_SLEEPING_MAX = 64
#: Of all threads of a program one asks: several would take each other's processor.
_asking = threading.Lock()


class PromptSocket:
    """What a channel uses of a blocking TCP socket."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self.send, self.sendmsg = stream.send, stream.sendmsg
        self._sleeping = 0  # reads still to come that do not ask
        self._penalty = 1

    def recv_into(self, buffer: BufferLike, nbytes: int = 0, /) -> int:
        """As a socket's."""
        if self._sleeping:
            self._sleeping -= 1
            return self._stream.recv_into(buffer, nbytes)
        count = self._ask(buffer, nbytes, 0.0)
        if count is None and _asking.acquire(blocking=False):
            try:
                count = self._ask(buffer, nbytes, _ASKING_S)
            finally:
                _asking.release()
            if count is None:
                self._sleeping = self._penalty
                self._penalty = min(2 * self._penalty, _SLEEPING_MAX)
            else:
                self._penalty = 1
        return self._stream.recv_into(buffer, nbytes) if count is None else count

    def _ask(self, buffer: BufferLike, nbytes: int, for_s: float) -> int | None:
        """What is there, or comes within that time; None: nothing."""
        receive, until_s = self._stream.recv_into, time.perf_counter() + for_s
        while True:
            try:
                return receive(buffer, nbytes, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if time.perf_counter() >= until_s:
                    return None
