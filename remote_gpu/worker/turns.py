"""Time sharing of a device in a worker: turns by tokens that gpud grants.

A running operation needs a token (`remote_gpu.host.sharing`). Tokens are kept until gpud revokes
them, or until the end of a time slice while other leases wait; with a token at hand an operation
begins without a message. While other leases wait, a token is returned

* after the operation during which the slice ended,
* at once, if the usual pause between the calls of this lease is too long,
* else when no call has come for `LINGER_S` (checked by the thread that reads from gpud).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from remote_gpu.worker.arguments import Arguments

#: A round trip within a data centre and some work of the caller. It counts as the lease's own time.
#: A lease of 90 % that lost the device for a slice at each pause would get half of it.
LINGER_S = 0.004
#: Limit of the smoothed pause between calls up to which a token is kept.
_QUICK_S = LINGER_S / 2
#: Longer pauses count as this one: a single late call is tolerated, two in a row are not.
_PAUSE_S_MAX = 2 * LINGER_S
_SMOOTHING = 1 / 8  #: weight of the newest pause
#: Of the smoothed pause, at each call whose token was returned: pauses can be measured only while a
#: token is kept, so about one call in twelve keeps it again.
_FORGETTING = 1 / 32
#: Longest wait for an answer of gpud, which takes 0.1 ms.
_LOADS_S = 0.25


@dataclass(slots=True, eq=False)
class Waiter:
    """A thread that waits for a token: until `ticket` is set and `lock` released."""

    lock: threading.Lock = field(default_factory=threading.Lock)  #: cheaper than an Event
    ticket: int = 0


class Tokens:
    """The tokens of one device in one worker, without a clock.

    `send` is called with "ask" or "done" and a ticket. `pop` and `push` are thread-safe (a list's
    pop and append are atomic); the other methods are for one thread at a time.
    """

    def __init__(self, send: Callable[[str, int], None]) -> None:
        self._send = send
        self._tickets = itertools.count(1)
        self._width = 1  # tokens of the device at most, from gpud
        self._idle: list[int] = []
        self._held = 0  # idle and used
        self._asked = 0
        self._waiting: deque[Waiter] = deque()
        self._until_s = math.inf  # all tokens are due
        self._left_s: float | None = None  # start of the pause, while other leases wait
        self._pause_s = 0.0

    def pop(self) -> int:
        """A token, if no other lease wants the device; else 0, then `take` one."""
        if self._idle and self._until_s == math.inf:
            return self._pop()
        return 0

    def push(self, ticket: int) -> bool:
        """Return the token of an ended operation. True: `settle` must be called."""
        self._idle.append(ticket)  # before the check: new waiters look here after it
        return self._until_s < math.inf or bool(self._waiting)

    def take(self, now_s: float) -> int:
        """An idle token, or 0; then `wait` for one."""
        if self._left_s is not None:
            self._learn(min(now_s - self._left_s, _PAUSE_S_MAX))
            self._left_s = None
        if now_s >= self._until_s:
            self._give_back()
        return self._pop()

    def wait(self, waiter: Waiter) -> None:
        """Add a waiter, which is released with the next token."""
        waiter.lock.acquire()
        self._waiting.append(waiter)
        self._go()

    def settle(self, now_s: float) -> None:
        """After an operation: pass its token to a waiter, keep it or return it."""
        if now_s >= self._until_s:
            self._give_back()
        self._go()
        if self._until_s < math.inf and self._idle and len(self._idle) == self._held:
            self._left_s = now_s
            if self._pause_s > _QUICK_S:
                self._pause_s *= 1 - _FORGETTING
                self._give_back()

    def granted(self, ticket: int, until_s: float, width: int, now_s: float) -> None:
        """Accept a token from gpud; all tokens are due at `until_s`."""
        self._asked -= 1
        self._held += 1
        self._width = width
        self._idle.append(ticket)
        self.due(until_s, now_s)

    def due(self, until_s: float, now_s: float) -> None:
        """Set the time at which gpud wants all tokens back."""
        self._until_s = until_s
        self._go()
        if until_s == math.inf:
            self._left_s = None
        elif self._left_s is None and self._idle and len(self._idle) == self._held:
            self._left_s = now_s
        self.look(now_s)

    def look(self, now_s: float) -> None:
        """Return tokens that are idle for too long; called at `next_look_s`."""
        if self._idle and now_s >= self._idle_end_s():
            if self._left_s is not None and now_s >= self._left_s + LINGER_S:
                self._learn(_PAUSE_S_MAX)
            self._give_back()

    def next_look_s(self, now_s: float) -> float | None:
        """The next time at which idle tokens may be due."""
        if self._until_s == math.inf or not self._held:
            return None
        if self._idle:
            return self._idle_end_s()
        return min(now_s + LINGER_S, self._until_s if now_s < self._until_s else math.inf)

    def _idle_end_s(self) -> float:
        if self._left_s is None:  # this lease computes, or no other one waits
            return self._until_s
        return min(self._until_s, self._left_s + LINGER_S)

    def _learn(self, pause_s: float) -> None:
        self._pause_s += (pause_s - self._pause_s) * _SMOOTHING

    def _pop(self) -> int:
        try:
            return self._idle.pop()
        except IndexError:
            return 0

    def _go(self) -> None:
        """Release waiters with idle tokens; request tokens for the rest."""
        while self._waiting and (ticket := self._pop()):
            waiter = self._waiting.popleft()
            waiter.ticket = ticket
            waiter.lock.release()
        while self._asked < min(len(self._waiting), self._width - self._held):
            self._asked += 1
            self._send("ask", next(self._tickets))

    def _give_back(self) -> None:
        """Return idle tokens, and stop measuring the pause: other leases may delay its end."""
        self._left_s = None
        while ticket := self._pop():
            self._held -= 1
            self._send("done", ticket)


class Gate:
    """The access to one device in one worker. Thread-safe."""

    def __init__(self, device: int, send: Callable[[Arguments], None]) -> None:
        """`send`: one packet to gpud, from any thread."""
        self._tokens = Tokens(lambda word, ticket: send({word: [device, ticket]}))
        self._lock = threading.Lock()

    def turn(self) -> Turn:
        """A context manager for the time of one operation."""
        return Turn(self)

    def enter(self) -> int:
        """Wait for a token; `leave` returns it."""
        if ticket := self._tokens.pop():
            return ticket
        with self._lock:
            if ticket := self._tokens.take(time.monotonic()):
                return ticket
            waiter = Waiter()
            self._tokens.wait(waiter)
        waiter.lock.acquire()
        return waiter.ticket

    def leave(self, ticket: int) -> None:
        """Return the token of an operation."""
        if self._tokens.push(ticket):
            with self._lock:
                self._tokens.settle(time.monotonic())

    def granted(self, ticket: int, until_s: float | None, width: int) -> None:
        """Accept a token from gpud."""
        with self._lock:
            self._tokens.granted(ticket, _moment_s(until_s), width, time.monotonic())

    def due(self, until_s: float | None) -> None:
        """Set the time at which gpud wants all tokens back; None: later."""
        with self._lock:
            self._tokens.due(_moment_s(until_s), time.monotonic())

    def look(self) -> float | None:
        """Return tokens that are idle for too long; returns the seconds to the next look."""
        with self._lock:
            now_s = time.monotonic()
            self._tokens.look(now_s)
            next_s = self._tokens.next_look_s(now_s)
        return None if next_s is None else max(0.0, next_s - now_s)


class Loads:
    """The use of this worker's devices by other leases, asked of gpud. Thread-safe."""

    def __init__(self, send: Callable[[Arguments], None]) -> None:
        """`send`: one packet to gpud, from any thread."""
        self._send = send
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._answers: queue.SimpleQueue[tuple[int, Sequence[Sequence[float]]]]
        self._answers = queue.SimpleQueue()

    def ask(self) -> dict[str, Sequence[float]]:
        """[free, slowdown] by device; empty when gpud does not answer, because the lease ends."""
        with self._lock:
            number = next(self._numbers)
            self._send({"load": number})
            until_s = time.monotonic() + _LOADS_S
            with contextlib.suppress(queue.Empty):
                while True:
                    answer, loads = self._answers.get(timeout=max(0.0, until_s - time.monotonic()))
                    if answer == number:
                        return {str(index): load for index, *load in loads}
        return {}

    def answered(self, number: int, loads: Sequence[Sequence[float]]) -> None:
        """Accept an answer of gpud."""
        self._answers.put((number, loads))


def _moment_s(until_s: float | None) -> float:
    return math.inf if until_s is None else until_s


class Turn:
    """The time of one operation on the device."""

    __slots__ = ("_gate", "_ticket")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        self._ticket = self._gate.enter()

    def __exit__(self, *_: object) -> None:
        self._gate.leave(self._ticket)
