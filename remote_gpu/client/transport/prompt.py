"""A socket that is polled for a moment before its reader sleeps.

Waking up a thread on an idle core takes as long as a round trip on one machine, and its caches are
cold.
"""

from __future__ import annotations

import socket
import threading
import time

from remote_gpu.wire.frames import BufferLike

#: For longer operations the wake-up is less than a twentieth of the time.
_POLL_S = 0.001
#: After a poll without result this many reads sleep at once, twice as many each time, until a poll
#: succeeds. So a program that shares its only core with the worker, or makes long calls, stops
#: polling.
_SLEEPING_MAX = 64
#: Held by the only thread of a program that polls: several would compete for processors.
_polling = threading.Lock()


class PromptSocket:
    """The part of a blocking TCP socket that a channel uses."""

    def __init__(self, stream: socket.socket, poll_s: float = _POLL_S) -> None:
        self._poll_s = poll_s
        self._stream = stream
        self.send, self.sendmsg = stream.send, stream.sendmsg
        self._sleeping = 0  # next reads without polling
        self._penalty = 1

    def recv_into(self, buffer: BufferLike, nbytes: int = 0, /) -> int:
        """As of a socket."""
        if self._sleeping:
            self._sleeping -= 1
            return self._stream.recv_into(buffer, nbytes)
        count = self._poll(buffer, nbytes, 0.0)
        if count is None and _polling.acquire(blocking=False):
            try:
                count = self._poll(buffer, nbytes, self._poll_s)
            finally:
                _polling.release()
            if count is None:
                self._sleeping = self._penalty
                self._penalty = min(2 * self._penalty, _SLEEPING_MAX)
            else:
                self._penalty = 1
        return self._stream.recv_into(buffer, nbytes) if count is None else count

    def _poll(self, buffer: BufferLike, nbytes: int, for_s: float) -> int | None:
        """Read within that time; None without data."""
        receive, until_s = self._stream.recv_into, time.perf_counter() + for_s
        while True:
            try:
                return receive(buffer, nbytes, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if time.perf_counter() >= until_s:
                    return None
