"""A lane's turn on its device: with a token of gpud's, which the worker keeps from call to call.

gpud gives tokens (`remote_gpu.host.sharing`), one for each operation at a time; they are kept until
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
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from remote_gpu.worker.arguments import Arguments

#: A round trip within a data centre and some work of the caller's. It counts as the lease's own
#: time. One of 90 % that lost the device to a foreign slice at each pause would have half of it.
LINGER_S = 0.004
#: Of pauses between calls, smoothed: who is usually later than this is not waited for.
_QUICK_S = LINGER_S / 2
#: A longer pause counts as this one: a single late call is forgiven, two in a row are not.
_PAUSE_S_MAX = 2 * LINGER_S
_SMOOTHING = 1 / 8  #: weight of the newest pause
#: Of what is known, with each call whose token was not kept: a pause shows its own length only
#: while nobody else computes, so every dozen calls one is kept.
_FORGETTING = 1 / 32


@dataclass(slots=True, eq=False)
class Waiter:
    """Somebody that waits for a token: until `ticket` is set and `lock` free."""

    lock: threading.Lock = field(default_factory=threading.Lock)  #: cheaper than an Event
    ticket: int = 0


class Tokens:
    """The tokens of one device in one worker, as a table without a clock.

    `send` is called with "ask" or "done" and a ticket. `pop` and `push` may be called by any thread
    at any time (a list's pop and append are one step each); the rest is for one thread at a time.
    """

    def __init__(self, send: Callable[[str, int], None]) -> None:
        self._send = send
        self._tickets = itertools.count(1)
        self._width = 1  # as gpud says with each token: asking for more is in vain
        self._idle: list[int] = []
        self._held = 0  # idle and used
        self._asked = 0
        self._waiting: deque[Waiter] = deque()
        self._until_s = math.inf  # all tokens are due
        self._left_s: float | None = None  # since when none is used, while others wait
        self._pause_s = 0.0

    def pop(self) -> int:
        """A token, as long as nobody else wants the device; or 0, then `take` one."""
        if self._idle and self._until_s == math.inf:
            return self._pop()
        return 0

    def push(self, ticket: int) -> bool:
        """An operation is over. True: somebody wants its token, `settle` that."""
        self._idle.append(ticket)  # before the question: who begins to want one looks here after it
        return self._until_s < math.inf or bool(self._waiting)

    def take(self, now_s: float) -> int:
        """A token that is at hand, or 0; then `wait` for one."""
        if self._left_s is not None:
            self._learn(min(now_s - self._left_s, _PAUSE_S_MAX))
            self._left_s = None
        if now_s >= self._until_s:
            self._give_back()
        return self._pop()

    def wait(self, waiter: Waiter) -> None:
        """It goes when there is a token for it."""
        waiter.lock.acquire()
        self._waiting.append(waiter)
        self._go()

    def settle(self, now_s: float) -> None:
        """An operation is over: the next waiter's turn, or kept, or given back."""
        if now_s >= self._until_s:
            self._give_back()
        self._go()
        if self._until_s < math.inf and self._idle and len(self._idle) == self._held:
            self._left_s = now_s
            if self._pause_s > _QUICK_S:
                self._pause_s *= 1 - _FORGETTING
                self._give_back()

    def granted(self, ticket: int, until_s: float, width: int, now_s: float) -> None:
        """gpud gives one; all are due at `until_s`."""
        self._asked -= 1
        self._held += 1
        self._width = width
        self._idle.append(ticket)
        self.due(until_s, now_s)

    def due(self, until_s: float, now_s: float) -> None:
        """gpud wants all tokens back at another moment, maybe now."""
        self._until_s = until_s
        self._go()
        if until_s == math.inf:
            self._left_s = None
        elif self._left_s is None and self._idle and len(self._idle) == self._held:
            self._left_s = now_s
        self.look(now_s)

    def look(self, now_s: float) -> None:
        """Give back what is idle for too long; to be called at `next_look_s`."""
        if self._idle and now_s >= self._idle_end_s():
            if self._left_s is not None and now_s >= self._left_s + LINGER_S:
                self._learn(_PAUSE_S_MAX)
            self._give_back()

    def next_look_s(self, now_s: float) -> float | None:
        """When something may have to be given back without a call."""
        if self._until_s == math.inf or not self._held:
            return None
        if self._idle:
            return self._idle_end_s()
        return min(now_s + LINGER_S, self._until_s if now_s < self._until_s else math.inf)

    def _idle_end_s(self) -> float:
        if self._left_s is None:  # others of this lease compute, or nobody waits
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
        """Let waiters go; for the others ask for tokens, as many as the device has at all."""
        while self._waiting and (ticket := self._pop()):
            waiter = self._waiting.popleft()
            waiter.ticket = ticket
            waiter.lock.release()
        while self._asked < min(len(self._waiting), self._width - self._held):
            self._asked += 1
            self._send("ask", next(self._tickets))

    def _give_back(self) -> None:
        """What is idle. A pause is not measured while others may delay its end."""
        self._left_s = None
        while ticket := self._pop():
            self._held -= 1
            self._send("done", ticket)


class Gate:
    """The gate of one device in one worker; lanes use it from their threads."""

    def __init__(self, device: int, send: Callable[[Arguments], None]) -> None:
        """`send`: one packet to gpud, from any thread."""
        self._tokens = Tokens(lambda word, ticket: send({word: [device, ticket]}))
        self._lock = threading.Lock()

    def turn(self) -> Turn:
        """To compute within."""
        return Turn(self)

    def enter(self) -> int:
        """Wait for a token; `leave` with it."""
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
        """The operation is over."""
        if self._tokens.push(ticket):
            with self._lock:
                self._tokens.settle(time.monotonic())

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
