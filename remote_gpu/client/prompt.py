"""A socket that is asked again and again, for a moment, before its reader sleeps.

To wake a thread whose core sleeps too takes as long as a round trip on one machine, and what it
knew is no longer in its caches.
"""

from __future__ import annotations

import socket
import time
from typing import Any

#: Small operations with small payloads are done by then; what takes longer gains little.
_ASKING_S = 0.0003
#: Reads that sleep at once after one that asked in vain: twice as many each time, until one does
#: not. So a program that shares its only core with the worker, or calls for long, asks no more.
_SLEEPING_MAX = 64


class PromptSocket:
    """What a channel uses of a blocking TCP socket."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self.send, self.sendmsg = stream.send, stream.sendmsg
        self._sleeping = 0  # reads still to come that do not ask
        self._penalty = 1

    def recv_into(self, buffer: Any, nbytes: int = 0, /) -> int:
        """As a socket's."""
        if self._sleeping:
            self._sleeping -= 1
            return self._stream.recv_into(buffer, nbytes)
        receive, asked = self._stream.recv_into, False
        until_s = time.perf_counter() + _ASKING_S
        while True:
            try:
                count = receive(buffer, nbytes, socket.MSG_DONTWAIT)
            except BlockingIOError:
                asked = True
                if time.perf_counter() < until_s:
                    continue
                self._sleeping = self._penalty
                self._penalty = min(2 * self._penalty, _SLEEPING_MAX)
                return receive(buffer, nbytes)
            if asked:
                self._penalty = 1
            return count
