"""Whose turn it is on a device, as a pure table: guarantees, elastic limits, idle time lent.

A *turn* is one operation, or one run of a graph. Turns are given by start-time fair queueing
(Goyal, Vin, Cheng 1996; with depth: Jin, Chase, Kaur 2004): the virtual time of a lease advances by
its use over its guarantee, and the least goes next; so what one lease leaves idle goes to the rest
in proportion to their guarantees, and comes back with its next call. A turn longer than a slice is
paused (its process is stopped) when somebody else should go first, and resumed in its turn. No work
waits while the device is idle, but for two cases:

* A caller over the network needs a moment between two calls. When the lease whose turn it would be
  has just been served and its calls follow each other quickly, the device waits for it
  (`ANTICIPATE_S` at most) in place of lending that moment for a whole foreign slice: without this a
  90 % guarantee is worth half a device. The wait counts as used by the one it was for.
* A lease with a limit below 100 % pauses after each slice for as long as the limit says.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from corekit.ids import LeaseId

#: A round trip and some work of the caller's; 2 of 100 ms of utilisation at 10 turns a second.
ANTICIPATE_S = 0.002
#: How long a turn goes on when others wait; stopping and continuing a process costs 0.02 ms.
SLICE_S = 0.010
#: Leases without a guarantee share what is left: together they weigh little beside any guarantee.
BEST_EFFORT_PCT = 1.0


@dataclass(frozen=True, slots=True)
class Begin:
    """A lease may compute now, once."""

    lease: LeaseId
    ticket: int  #: as it was asked for


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop all that a lease computes."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class Resume:
    """Let it go on."""

    lease: LeaseId


Change: TypeAlias = "Begin | Pause | Resume"


@dataclass(slots=True)
class _Lease:
    weight: float
    rate: float  #: device seconds per second that its limit allows
    virtual_s: float = 0.0
    waiting: deque[int] = field(default_factory=deque)
    running: dict[int, float] = field(default_factory=dict)  #: ticket → charged up to this moment
    paused: list[int] = field(default_factory=list)  #: tickets; all or none of a lease's turns are
    slice_s: float = 0.0  #: when its present slice began
    pause_s: float = 0.0  #: between its calls, smoothed
    idle_since_s: float | None = None  #: None: it waits, runs, or was not expected back in time
    awaited_since_s: float | None = None  #: the device is idle for its sake
    allowed_s: float = 0.0  #: its limit lets nothing begin or go on before
    used_s: float = 0.0

    @property
    def wants(self) -> bool:
        """There is something to begin or to resume."""
        return bool(self.waiting or self.paused)


class TimeSlices:
    """See the module. `now_s` is monotonic and never goes back."""

    def __init__(self, width: int = 1, anticipate_s: float = ANTICIPATE_S) -> None:
        """`width`: turns at the same time, as many as the device has cores or queues."""
        self._width = width
        self._anticipate_s = anticipate_s
        self._leases: dict[LeaseId, _Lease] = {}
        self._running = 0
        self._virtual_s = 0.0  # of the turn that began last: idle time is no credit
        self._wake_s: float | None = None

    def join(self, lease: LeaseId, guarantee_pct: int, limit_pct: int) -> None:
        """A lease may ask from now on. Repeating it changes its share."""
        weight = max(float(guarantee_pct), BEST_EFFORT_PCT)
        rate = self._width * limit_pct / 100
        known = self._leases.get(lease)
        if known is None:
            self._leases[lease] = _Lease(weight, rate, self._virtual_s)
        else:
            known.weight, known.rate = weight, rate

    def leave(self, lease: LeaseId, now_s: float) -> list[Change]:
        """Its process ended, and its turns with it. Safe to repeat."""
        gone = self._leases.pop(lease, None)
        if gone is not None:
            self._running -= len(gone.running)
        return self._dispatch(now_s)

    def ask(self, lease: LeaseId, ticket: int, now_s: float) -> list[Change]:
        """A call wants to compute; returns what changes now, maybe its own turn's begin."""
        entry = self._leases[lease]
        self._welcome_back(entry, now_s)
        entry.waiting.append(ticket)
        return self._dispatch(now_s)

    def began(self, lease: LeaseId, ticket: int, now_s: float) -> list[Change]:
        """A turn runs that began when nobody else was there; it may be paused like any other."""
        entry = self._leases[lease]
        self._welcome_back(entry, now_s)
        if not entry.running:
            entry.slice_s = now_s
        entry.running[ticket] = now_s
        self._running += 1
        return self._dispatch(now_s)

    def done(self, lease: LeaseId, ticket: int, now_s: float) -> list[Change]:
        """A turn is over, or its asker has given up. Unknown tickets change nothing."""
        entry = self._leases.get(lease)
        if entry is None:
            return []
        changes: list[Change] = []
        if ticket in entry.running:
            self._charge_turn(entry, ticket, now_s)
            del entry.running[ticket]
            self._running -= 1
        elif ticket in entry.paused:  # it was faster than the pause
            entry.paused.remove(ticket)
            if not entry.paused:
                changes.append(Resume(lease))
        elif ticket in entry.waiting:
            entry.waiting.remove(ticket)
        if not (entry.waiting or entry.running or entry.paused):
            entry.idle_since_s = now_s
        return changes + self._dispatch(now_s)

    def wake(self, now_s: float) -> list[Change]:
        """To be called at `next_wake_s`."""
        return self._dispatch(now_s)

    def next_wake_s(self) -> float | None:
        """When something may change without any call."""
        return self._wake_s

    def is_limited(self, lease: LeaseId) -> bool:
        """It must ask even when it is alone."""
        return self._leases[lease].rate < self._width

    def used_s(self, lease: LeaseId) -> float:
        """Device time of a lease that has not left."""
        return self._leases[lease].used_s

    def _charge_turn(self, entry: _Lease, ticket: int, now_s: float) -> None:
        """Bring a running turn's account up to now, and the pause that its limit asks for."""
        since_s = entry.running[ticket]
        entry.running[ticket] = now_s
        self._charge(entry, now_s - since_s)
        if entry.rate < self._width:
            entry.allowed_s = max(entry.allowed_s, since_s) + (now_s - since_s) / entry.rate

    def _charge(self, entry: _Lease, seconds: float) -> None:
        entry.used_s += seconds
        entry.virtual_s += seconds / entry.weight

    def _welcome_back(self, entry: _Lease, now_s: float) -> None:
        if entry.waiting or entry.running or entry.paused:
            return
        self._expire(entry, now_s)
        if entry.idle_since_s is None:
            entry.pause_s /= 2  # it is trusted again after some quick calls
        else:
            entry.pause_s = (entry.pause_s + now_s - entry.idle_since_s) / 2
            self._end_wait(entry, now_s)
            entry.idle_since_s = None
        entry.virtual_s = max(entry.virtual_s, self._virtual_s)

    def _expire(self, entry: _Lease, now_s: float) -> None:
        """Nobody waits longer than `anticipate_s` for a caller."""
        idle_s = entry.idle_since_s
        if idle_s is not None and now_s >= idle_s + self._anticipate_s:
            self._end_wait(entry, idle_s + self._anticipate_s)
            entry.idle_since_s = None
            entry.pause_s = (entry.pause_s + 4 * self._anticipate_s) / 2

    def _end_wait(self, entry: _Lease, now_s: float) -> None:
        if entry.awaited_since_s is not None:
            self._charge(entry, max(0.0, now_s - entry.awaited_since_s))
            entry.awaited_since_s = None

    def _dispatch(self, now_s: float) -> list[Change]:
        changes: list[Change] = []
        for entry in self._leases.values():
            self._expire(entry, now_s)
        changes += self._pause(now_s)
        while self._running < self._width:
            lease = self._next(now_s)
            if lease is None:
                break
            changes.append(self._begin(lease, now_s))
        self._wake_s = self._next_change_s(now_s)
        return changes

    def _begin(self, lease: LeaseId, now_s: float) -> Change:
        """Resume what was paused, else the oldest call. All turns of a lease go on together."""
        entry = self._leases[lease]
        self._virtual_s = max(self._virtual_s, entry.virtual_s)
        if not entry.running:
            entry.slice_s = now_s
        if entry.paused:
            entry.running = dict.fromkeys(entry.paused, now_s)
            entry.paused = []
            self._running += len(entry.running)
            return Resume(lease)
        ticket = entry.waiting.popleft()
        entry.running[ticket] = now_s
        self._running += 1
        return Begin(lease, ticket)

    def _pause(self, now_s: float) -> list[Change]:
        """Stop whoever has used its slice and is over its limit, or has others before it."""
        changes: list[Change] = []
        for lease, entry in self._leases.items():
            if entry.running and now_s >= entry.slice_s + SLICE_S:
                for ticket in entry.running:
                    self._charge_turn(entry, ticket, now_s)
                if entry.allowed_s > now_s or self._should_yield(entry, now_s):
                    self._running -= len(entry.running)
                    entry.paused = list(entry.running)
                    entry.running = {}
                    changes.append(Pause(lease))
                else:
                    entry.slice_s = now_s
        return changes

    def _should_yield(self, entry: _Lease, now_s: float) -> bool:
        if self._running < self._width:
            return False
        return any(
            other.virtual_s < entry.virtual_s
            for other in self._leases.values()
            if other.wants and not other.running and other.allowed_s <= now_s
        )

    def _next(self, now_s: float) -> LeaseId | None:
        """The lease whose turn it is; None when nobody's, or somebody is awaited."""
        ready = [
            lease
            for lease, entry in self._leases.items()
            if entry.wants and entry.allowed_s <= now_s
        ]
        if not ready:
            return None
        best = min(ready, key=lambda lease: self._leases[lease].virtual_s)
        before_s = self._leases[best].virtual_s
        awaited = [entry for entry in self._leases.values() if self._is_awaited(entry, before_s)]
        if self._running + len(awaited) < self._width:
            return best
        for entry in awaited:
            if entry.awaited_since_s is None:
                entry.awaited_since_s = now_s
        return None

    def _is_awaited(self, entry: _Lease, before_s: float) -> bool:
        """It would go first, and is likely to be here in a moment."""
        quick = entry.idle_since_s is not None and entry.pause_s <= self._anticipate_s / 2
        return quick and entry.virtual_s < before_s and entry.rate >= self._width

    def _next_change_s(self, now_s: float) -> float | None:
        entries = self._leases.values()
        moments = [e.slice_s + SLICE_S for e in entries if e.running and e.rate < self._width]
        if any(entry.wants for entry in entries):
            moments += [e.slice_s + SLICE_S for e in entries if e.running]
            moments += [e.allowed_s for e in entries if e.wants and e.allowed_s > now_s]
            moments += [
                e.idle_since_s + self._anticipate_s
                for e in entries
                if e.awaited_since_s is not None and e.idle_since_s is not None
            ]
        return min(moments, default=None)
