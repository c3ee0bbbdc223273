"""A lane's turn on its device: with a token of gpud's, which the worker keeps from call to call.

gpud gives tokens (`remote_gpu.host.slices`), one for each operation at a time; they are kept until
it asks for them, or until the end of a slice when other leases wait. As long as one is at hand an
operation begins without a message. While others wait it is given back

* after the operation during which the slice ended,
* at once, when the calls of this lease are too far apart to keep the device waiting,
* else when no call has come for `LINGER_S` (the thread that listens to gpud looks).
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

#: A round trip within a data centre and some work of the caller's. It counts as the lease's own
#: time. One of 90 % that lost the device to a foreign slice at each pause would have half of it.
LINGER_S = 0.004
#: Of pauses between calls, smoothed: who is usually later than this is not waited for.
_QUICK_S = LINGER_S / 2
#: A longer pause counts as this one: a single late call is forgiven, two in a row are not.
_PAUSE_S_MAX = 2 * LINGER_S
_SMOOTHING = 1 / 8  #: weight of the newest pause


@dataclass(slots=True, eq=False)
class Waiter:
    """Somebody that waits for a token: until `ticket` is set and `lock` free."""

    lock: threading.Lock = field(default_factory=threading.Lock)  #: cheaper than an Event
    ticket: int = 0


class Tokens:
    """The tokens of one device in one worker, as a table without a thread or a clock.

    `send` is called with "ask" or "done" and a ticket.
    """

    def __init__(self, send: Callable[[str, int], None]) -> None:
        self._send = send
        self._tickets = itertools.count(1)
        self._width = 1  # as gpud says with each token: asking for more is in vain
        self._idle: list[int] = []
        self._used = 0
        self._asked = 0
        self._waiting: deque[Waiter] = deque()
        self._until_s = math.inf  # all tokens are due
        self._left_s: float | None = None  # since when none is used
        self._pause_s = 0.0

    def take(self, now_s: float) -> int:
        """A token that is at hand, or 0; then `wait` for one."""
        if self._left_s is not None:
            pause_s = min(now_s - self._left_s, _PAUSE_S_MAX)
            self._pause_s += (pause_s - self._pause_s) * _SMOOTHING
            self._left_s = None
        if self._idle and now_s < self._until_s:
            self._used += 1
            return self._idle.pop()
        self._give_back_idle()
        return 0

    def wait(self, waiter: Waiter) -> None:
        """It goes when there is a token for it."""
        waiter.lock.acquire()
        self._waiting.append(waiter)
        self._ask()

    def put(self, ticket: int, now_s: float) -> None:
        """An operation is over: the next waiter's turn, or kept, or given back."""
        self._used -= 1
        if not self._used:
            self._left_s = now_s
        if now_s >= self._until_s:
            self._send("done", ticket)
            self._ask()
        elif self._waiting:
            self._go(ticket)
        elif self._until_s < math.inf and self._pause_s > _QUICK_S:
            self._send("done", ticket)
        else:
            self._idle.append(ticket)

    def granted(self, ticket: int, until_s: float, width: int, now_s: float) -> None:
        """gpud gives one; all are due at `until_s`."""
        self._asked -= 1
        self._width, self._until_s = width, until_s
        if self._waiting:
            self._go(ticket)
            self._ask()
        else:  # its waiter had another one meanwhile
            self._idle.append(ticket)
            self._left_s = now_s if self._left_s is None and not self._used else self._left_s

    def due(self, until_s: float, now_s: float) -> None:
        """gpud wants all tokens back at another moment, maybe now."""
        self._until_s = until_s
        self.look(now_s)

    def look(self, now_s: float) -> None:
        """Give back what is idle for too long; to be called at `next_look_s`."""
        if self._idle and now_s >= self._idle_end_s():
            self._give_back_idle()

    def next_look_s(self, now_s: float) -> float | None:
        """When something may have to be given back without a call."""
        if self._until_s == math.inf or not (self._idle or self._used):
            return None
        busy_s = now_s + LINGER_S
        if now_s < self._until_s:
            busy_s = min(busy_s, self._until_s)
        return self._idle_end_s() if self._idle else busy_s

    def _idle_end_s(self) -> float:
        if self._left_s is None or self._until_s == math.inf:  # others compute, or nobody waits
            return self._until_s
        return min(self._until_s, self._left_s + LINGER_S)

    def _go(self, ticket: int) -> None:
        waiter = self._waiting.popleft()
        waiter.ticket = ticket
        self._used += 1
        waiter.lock.release()

    def _ask(self) -> None:
        """As many as there are waiters, of those that the device has at all."""
        while self._asked < min(len(self._waiting), self._width - self._used - len(self._idle)):
            self._asked += 1
            self._send("ask", next(self._tickets))

    def _give_back_idle(self) -> None:
        while self._idle:
            self._send("done", self._idle.pop())


class Gate:
    """The gate of one device in one worker; lanes use it from their threads."""

    def __init__(self, device: int, send: Callable[[Mapping[str, Any]], None]) -> None:
        """`send`: one packet to gpud, from any thread."""
        self._tokens = Tokens(lambda word, ticket: send({word: [device, ticket]}))
        self._lock = threading.Lock()

    def turn(self) -> Turn:
        """To compute within."""
        return Turn(self)

    def enter(self) -> int:
        """Wait for a token; `leave` with it."""
        with self._lock:
            if ticket := self._tokens.take(time.monotonic()):
                return ticket
            waiter = Waiter()
            self._tokens.wait(waiter)
        waiter.lock.acquire()
        return waiter.ticket

    def leave(self, ticket: int) -> None:
        """The operation is over."""
        with self._lock:
            self._tokens.put(ticket, time.monotonic())

    def granted(self, ticket: int, until_s: float | None, width: int) -> None:
        """gpud gives a token."""
        with self._lock:
            self._tokens.granted(ticket, _moment_s(until_s), width, time.monotonic())

    def due(self, until_s: float | None) -> None:
        """gpud says when it wants all tokens back; None: when it asks again."""
        with self._lock:
            self._tokens.due(_moment_s(until_s), time.monotonic())

    def look(self) -> float | None:
        """Give back what is idle for too long; returns in how many seconds to look again."""
        with self._lock:
            now_s = time.monotonic()
            self._tokens.look(now_s)
            next_s = self._tokens.next_look_s(now_s)
        return None if next_s is None else max(0.0, next_s - now_s)


def _moment_s(until_s: float | None) -> float:
    return math.inf if until_s is None else until_s


class Turn:
    """One operation's stay inside of a gate."""

    __slots__ = ("_gate", "_ticket")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        self._ticket = self._gate.enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._gate.leave(self._ticket)
