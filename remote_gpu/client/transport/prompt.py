"""A socket that is polled around the moment at which an answer is due.

Waking up a thread on an idle core takes as long as a round trip on one machine (in a virtual
machine 0.1 ms and more), and its caches are cold. Answers within a millisecond are polled for at
once. Calls of one kind take about as long each time: for a longer one the socket sleeps until
shortly before its answer is due, and polls from then on. Without it an empty operation over
loopback takes 1.5 times as long (`benchmarks.remote_gpu.transport`, paired, two cores).
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable

from remote_gpu.client.transport.readiness import readable
from remote_gpu.wire.frames import BufferLike

#: Answers within this time are polled for at once.
_POLL_S = 0.001
#: For longer operations the wake-up is less than a hundredth of the time.
_FORECAST_S_MAX = 0.03
#: Polling begins this part of the expected wait before its end, and lasts twice as long.
_LEAD = 1 / 10
_LEAD_S_MIN, _LEAD_S_MAX = 0.0001, 0.0004
#: An answer that came while the reader slept was due earlier than expected, by an unknown time.
_EARLIER = 0.95
#: After a poll without result this many reads sleep at once, twice as many each time, until a poll
#: succeeds. So a program that shares its only core with the worker, or makes calls of various
#: lengths, stops polling.
_SLEEPING_MAX = 64
#: Held by the only thread of a program that polls: several would compete for processors.
_polling = threading.Lock()


class Forecast:
    """The time of the next answer, by the waits for earlier ones. Pure."""

    def __init__(self, poll_s: float = _POLL_S) -> None:
        self._poll_s = poll_s
        self._expected_s = 0.0

    def window_s(self) -> tuple[float, float]:
        """The time to sleep before polling, in whole milliseconds, and the time to poll."""
        if not self._poll_s < self._expected_s <= _FORECAST_S_MAX:
            return 0.0, self._poll_s
        lead_s = min(_LEAD_S_MAX, max(_LEAD_S_MIN, _LEAD * self._expected_s))
        sleep_s = int((self._expected_s - lead_s) * 1000) / 1000
        return sleep_s, self._expected_s + lead_s - sleep_s

    def came(self, waited_s: float) -> None:
        """Learn from an answer that came while the socket was polled, or after that."""
        self._expected_s = waited_s

    def came_early(self, waited_s: float) -> None:
        """Learn from an answer that came before the poll."""
        self._expected_s = min(_EARLIER * self._expected_s, waited_s)


class PromptSocket:
    """The part of a blocking TCP socket that a channel uses."""

    def __init__(self, stream: socket.socket, poll_s: float = _POLL_S) -> None:
        self._stream = stream
        self._forecast = Forecast(poll_s)
        self._rest = poll_s  # time to poll for the rest of an answer
        self._asked = False  # nothing was received since the last send
        self._sleeping = 0  # next answers without polling
        self._penalty = 1

    def send(self, data: BufferLike, /) -> int:
        self._asked = True
        return self._stream.send(data)

    def sendmsg(self, buffers: Iterable[BufferLike], /) -> int:
        self._asked = True
        return self._stream.sendmsg(buffers)

    def recv_into(self, buffer: BufferLike, nbytes: int = 0, /) -> int:
        count = self._poll(buffer, nbytes, 0.0)
        asked, self._asked = self._asked, False
        if count is not None:
            return count
        if not asked:
            count = self._poll_alone(buffer, nbytes, self._rest)
            return self._stream.recv_into(buffer, nbytes) if count is None else count
        return self._answer(buffer, nbytes)

    def _answer(self, buffer: BufferLike, nbytes: int) -> int:
        forecast, started_s, count = self._forecast, time.perf_counter(), None
        if self._sleeping:
            self._sleeping -= 1
        else:
            sleep_s, poll_s = forecast.window_s()
            if sleep_s and readable((self._stream,), sleep_s):
                count = self._stream.recv_into(buffer, nbytes)
                forecast.came_early(time.perf_counter() - started_s)
                return count
            count = self._poll_alone(buffer, nbytes, poll_s)
            if count is None:
                self._sleeping = self._penalty
                self._penalty = min(2 * self._penalty, _SLEEPING_MAX)
            else:
                self._penalty = 1
        if count is None:
            count = self._stream.recv_into(buffer, nbytes)
        forecast.came(time.perf_counter() - started_s)
        return count

    def _poll_alone(self, buffer: BufferLike, nbytes: int, for_s: float) -> int | None:
        """Read within that time, unless another thread polls; None without data."""
        if not _polling.acquire(blocking=False):
            return None
        try:
            return self._poll(buffer, nbytes, for_s)
        finally:
            _polling.release()

    def _poll(self, buffer: BufferLike, nbytes: int, for_s: float) -> int | None:
        receive, until_s = self._stream.recv_into, time.perf_counter() + for_s
        while True:
            try:
                return receive(buffer, nbytes, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if time.perf_counter() >= until_s:
                    return None
