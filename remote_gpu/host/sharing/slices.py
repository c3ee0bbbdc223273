"""Time slices of one device, as a pure table: guarantees, elastic limits, idle time shared.

A lease gets *tokens*, one for each operation that it may run at a time, and keeps them from call to
call: as long as no other lease wants the device, otherwise until the end of its *slice*, a moment
of the monotonic clock. Until then it computes without a message (`remote_gpu.worker.turns`). Tokens
are given by start-time fair queueing (Goyal, Vin, Cheng 1996; with depth: Jin, Chase, Kaur 2004):
the virtual time of a lease advances by the time that it holds them over its guarantee, and the
lease with the least is next. A lease that overruns one slice gets less in the next ones; its idle
time goes to the others in proportion to their guarantees.

* A slice lasts `SLICE_S`, and longer while its lease is behind the waiting one: beside a lease of
  one tenth, a lease of nine tenths runs 90 ms in one piece.
* A lease that becomes active again goes first, at once: the holder must return its tokens after its
  present launch. Idleness earns no credit and loses no lag: a lease keeps its lag behind the mean
  (as in Stoica, Abdel-Wahab 1995, and Linux' EEVDF). Otherwise a lease of nine tenths would lose up
  to 80 ms whenever its network delays a call.
* A lease that does not return its tokens within `GRACE_S` is paused (its process is stopped) until
  its next slice.
* A lease with a limit below 100 % pauses after each slice, as long as the limit demands.
* Calls of a device that cannot be interrupted run to their end; tokens change hands between calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from corekit.ids import LeaseId

#: Length of one holder's slice while others wait. A handover takes 0.2 ms (two processes and gpud
#: wake up) to 1 ms (cold caches): 2 to 10 % of this; eight tenants take 80 ms for one round.
SLICE_S = 0.010
#: For the launch that runs at a slice's end; a longer one is stopped, which costs 0.02 ms.
GRACE_S = 0.002
#: A lease that returned its tokens at its slice's end is idle if no call follows in this time.
BACK_S = 0.002
#: Ends that differ by less are the same: the next slices correct the difference.
TOLERANCE_S = 0.002
#: Tokens of one lease, requested or held, where the device has fewer: our worker requests no more
#: than the device has.
ASKED_MAX = 64
#: Weight of leases without a guarantee: together little beside any guarantee.
BEST_EFFORT_PCT = 1.0


@dataclass(frozen=True, slots=True)
class Begin:
    """Give a lease one more token."""

    lease: LeaseId
    ticket: int  #: ticket of the lease's request
    until_s: float | None  #: all its tokens are due then; None: on demand


@dataclass(frozen=True, slots=True)
class Until:
    """Change the moment at which the tokens of a lease are due; a past one means at once."""

    lease: LeaseId
    until_s: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop the worker of a lease."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume the worker of a lease."""

    lease: LeaseId


Change: TypeAlias = "Begin | Until | Pause | Resume"


class DeviceLoad(NamedTuple):
    """The use of a device by the other leases, as a lease that chooses among its devices sees it.

    A token that is kept without a call counts as used: the device last served another lease.
    """

    free: bool  #: a token is to be had without any other lease's
    slowdown: float  #: how many times longer a call takes than alone, while all of them compute


@dataclass(slots=True)
class _Lease:
    weight: float
    rate: float  #: device seconds per second that its limit allows
    virtual_s: float = 0.0
    waiting: deque[int] = field(default_factory=deque)
    running: dict[int, float] = field(default_factory=dict)  #: ticket → charged up to this moment
    paused: list[int] = field(default_factory=list)  #: tickets; all or none of a lease's are
    slice_s: float = 0.0  #: start of the present slice
    slice_virtual_s: float = 0.0  #: virtual time at that start
    until_s: float | None = None  #: end of the slice, as the worker knows it
    eager: bool = False  #: active again after idleness, with less virtual time than the holder
    back_by_s: float = 0.0  #: the next call is expected by then
    allowed_s: float = 0.0  #: the limit allows no computing before then
    owed_s: float = 0.0  #: lag in virtual time, when it was last active
    used_s: float = 0.0  #: token seconds so far

    @property
    def calls(self) -> int:
        """Its tokens, requested or held."""
        return len(self.waiting) + len(self.running) + len(self.paused)

    @property
    def active(self) -> bool:
        """True while it computes or waits for a token."""
        return bool(self.waiting or self.running or self.paused)

    @property
    def runnable(self) -> bool:
        """True while it has a call to begin or to resume."""
        return bool(self.waiting or self.paused)


class TimeSlices:
    """The time slices of one device. `now_s` is monotonic."""

    def __init__(self, width: int = 1, *, interruptible: bool = True) -> None:
        """`width`: tokens at the same time, as many as the device has cores or queues.
        `interruptible`: a holder that is overdue is paused."""
        self.width = width
        self._interruptible = interruptible
        self._leases: dict[LeaseId, _Lease] = {}
        self._running = 0
        self._virtual_s = 0.0  # of the newest slice: idle time earns no credit
        self._wake_s: float | None = None

    def join(self, lease: LeaseId, guarantee_pct: float, limit_pct: float) -> None:
        """Add a lease, or change the share of a known one; then `wake` is due."""
        weight = max(guarantee_pct, BEST_EFFORT_PCT)
        rate = self.width * limit_pct / 100
        known = self._leases.get(lease)
        if known is None:
            self._leases[lease] = _Lease(weight, rate, self._virtual_s)
        else:
            known.weight, known.rate = weight, rate

    def leave(self, lease: LeaseId, now_s: float) -> list[Change]:
        """Remove a lease whose process ended, with its tokens. Idempotent."""
        gone = self._leases.pop(lease, None)
        if gone is not None:
            self._running -= len(gone.running)
        return self._dispatch(now_s)

    def ask(self, lease: LeaseId, ticket: int, now_s: float) -> list[Change]:
        """Request a token for a call; returns the changes, its own `Begin` perhaps among them.

        Raises ValueError for a request that our worker never makes, before anything is changed.
        """
        entry = self._leases[lease]
        self._check(entry, ticket)
        self._advance(now_s)
        if not entry.active:
            entry.eager = entry.virtual_s < self._virtual_s
            entry.virtual_s = max(entry.virtual_s, self._place_s(entry))
            entry.back_by_s = 0.0
        entry.waiting.append(ticket)
        return self._dispatch(now_s)

    def done(self, lease: LeaseId, ticket: int, now_s: float) -> list[Change]:
        """Return a token, or withdraw its request. An unknown ticket changes nothing."""
        entry = self._leases.get(lease)
        if entry is None:
            return []
        changes: list[Change] = []
        if ticket in entry.running:
            self._charge(entry, now_s)
            del entry.running[ticket]
            self._running -= 1
            if entry.until_s is not None and now_s >= entry.until_s:
                entry.back_by_s = now_s + BACK_S
        elif ticket in entry.paused:  # it ended before the pause
            entry.paused.remove(ticket)
            if not entry.paused:
                changes.append(Resume(lease))
        elif ticket in entry.waiting:
            entry.waiting.remove(ticket)
        if not entry.active:
            entry.owed_s = self._owed_s(entry, now_s)
        return changes + self._dispatch(now_s)

    def used_s(self, lease: LeaseId, now_s: float) -> float:
        """The seconds for which a lease has held tokens, pauses excluded; of several at once the
        sum."""
        self._advance(now_s)
        return self._leases[lease].used_s

    def load(self, lease: LeaseId) -> DeviceLoad:
        """The load by leases other than this one. Raises KeyError for an unknown one."""
        own = self._leases[lease]
        others = [entry for entry in self._leases.values() if entry is not own and entry.active]
        if sum(entry.calls for entry in others) < self.width:
            return DeviceLoad(free=True, slowdown=1.0)
        weight = sum(entry.weight for entry in others)
        return DeviceLoad(free=False, slowdown=1.0 + weight / own.weight)

    def charge(self, lease: LeaseId, used_s: float, now_s: float) -> list[Change]:
        """Charge a lease for device time that a batch process used for it.

        An idle lease's account begins at the present virtual time, so earlier idleness does not pay
        for it.
        """
        entry = self._leases.get(lease)
        if entry is None:
            return []
        self._advance(now_s)
        if not entry.active:
            entry.virtual_s = max(entry.virtual_s, self._virtual_s)
        entry.virtual_s += used_s / entry.weight
        entry.owed_s = max(0.0, entry.owed_s - used_s / entry.weight)
        if entry.rate < self.width:
            entry.allowed_s = max(entry.allowed_s, now_s) + used_s / entry.rate
        return self._dispatch(now_s)

    def wake(self, now_s: float) -> list[Change]:
        """Update at `next_wake_s`."""
        return self._dispatch(now_s)

    @property
    def running(self) -> int:
        """Tokens that leases hold."""
        return self._running

    def next_wake_s(self) -> float | None:
        """The next moment at which something may change without a call."""
        return self._wake_s

    def _check(self, entry: _Lease, ticket: object) -> None:
        """Check a ticket: gpud counts those of all leases, so a wrong one would harm the others."""
        if type(ticket) is not int:
            raise ValueError("a ticket is not an integer")
        known = entry.calls
        if ticket in entry.running or ticket in entry.waiting or ticket in entry.paused:
            raise ValueError("a ticket is requested twice")
        if known >= max(ASKED_MAX, self.width):
            raise ValueError(f"{known} tokens are requested of a device that has {self.width}")

    def _place_s(self, back: _Lease) -> float:
        """The virtual time at which a lease has the lag that it had when it became idle."""
        weight, fair_s = self._fair(back)
        if not weight:
            return self._virtual_s
        # the lease moves the mean itself
        return fair_s - back.owed_s * (weight + back.weight) / weight

    def _owed_s(self, gone: _Lease, now_s: float) -> float:
        """The lag of a lease that becomes idle behind the mean of all active ones and itself."""
        for entry in self._leases.values():
            self._charge(entry, now_s)
        weight, fair_s = self._fair(gone)
        return max(0.0, (fair_s - gone.virtual_s) * weight / (weight + gone.weight))

    def _fair(self, left_out: _Lease) -> tuple[float, float]:
        """The weight of the other active leases, and their mean virtual time."""
        others = [
            entry for entry in self._leases.values() if entry.active and entry is not left_out
        ]
        weight = sum(entry.weight for entry in others)
        mean_s = sum(entry.weight * entry.virtual_s for entry in others) / weight if weight else 0.0
        return weight, mean_s

    def _advance(self, now_s: float) -> None:
        """Charge all accounts up to now. A holder without a demand has used its slice already."""
        for entry in self._leases.values():
            self._charge(entry, now_s)
            if entry.running and entry.until_s is None and now_s >= entry.slice_s + SLICE_S:
                entry.slice_s, entry.slice_virtual_s = now_s - SLICE_S, entry.virtual_s
                self._virtual_s = max(self._virtual_s, entry.virtual_s)

    def _charge(self, entry: _Lease, now_s: float) -> None:
        """Charge one account up to now, and set the pause that its limit demands."""
        for ticket, since_s in entry.running.items():
            entry.running[ticket] = now_s
            entry.virtual_s += (now_s - since_s) / entry.weight
            entry.used_s += now_s - since_s
            if entry.rate < self.width:
                entry.allowed_s = max(entry.allowed_s, since_s) + (now_s - since_s) / entry.rate

    def _dispatch(self, now_s: float) -> list[Change]:
        self._advance(now_s)
        changes = self._pause(now_s)
        begun: list[tuple[LeaseId, int | None]] = []
        while self._running < self.width and (lease := self._next(now_s)) is not None:
            begun.append((lease, self._begin(self._leases[lease], now_s)))
        for lease in dict.fromkeys(lease for lease, _ in begun):
            self._leases[lease].until_s = self._first_end_s(self._leases[lease], now_s)
        changed = self._move_ends(now_s)
        for lease, ticket in begun:
            until_s = self._leases[lease].until_s
            if ticket is None:
                changes += [Until(lease, until_s), Resume(lease)]
            else:
                changes.append(Begin(lease, ticket, until_s))
        fresh = {lease for lease, _ in begun}
        changes += [change for change in changed if change.lease not in fresh]
        self._wake_s = self._next_change_s(now_s)
        return changes

    def _begin(self, entry: _Lease, now_s: float) -> int | None:
        """Resume all paused calls (None), else begin the oldest waiting one."""
        if not entry.running:
            entry.slice_s, entry.slice_virtual_s = now_s, entry.virtual_s
            self._virtual_s = max(self._virtual_s, entry.virtual_s)
            entry.eager = False
        if entry.paused:
            entry.running = dict.fromkeys(entry.paused, now_s)
            entry.paused = []
            self._running += len(entry.running)
            return None
        ticket = entry.waiting.popleft()
        entry.running[ticket] = now_s
        self._running += 1
        return ticket

    def _first_end_s(self, entry: _Lease, now_s: float) -> float | None:
        """The end of a slice that begins; None when no other lease is active or about to be."""
        others = (other for other in self._leases.values() if other is not entry)
        if any(other.back_by_s > now_s or other.allowed_s > now_s for other in others):
            return entry.slice_s + SLICE_S
        return None

    def _move_ends(self, now_s: float) -> list[Until]:
        """Move the ends of slices for the leases that wait now; an end that still fits stays."""
        moved: list[Until] = []
        for lease, entry, end_s in self._ends(now_s):
            known_s = entry.until_s
            if known_s is None:
                differs = True
            elif known_s <= now_s:  # its tokens are due already
                differs = end_s > now_s + TOLERANCE_S
            else:
                differs = abs(end_s - known_s) > TOLERANCE_S
            if differs:
                entry.until_s = end_s
                moved.append(Until(lease, end_s))
        return moved

    def _ends(self, now_s: float) -> Iterator[tuple[LeaseId, _Lease, float]]:
        """The end for each holder that must give back, the furthest ahead first."""
        holders = [(lease, entry) for lease, entry in self._leases.items() if entry.running]
        holders.sort(key=lambda holder: -holder[1].virtual_s)
        waiters = sorted(
            (entry for entry in self._ready(now_s) if not entry.running),
            key=lambda entry: (entry.virtual_s, not entry.eager),
        )
        for number, (lease, entry) in enumerate(holders):
            ends_s = [_end_s(entry, waiter, now_s) for waiter in waiters[number : number + 1]]
            if entry.rate < self.width:
                ends_s.append(entry.slice_s + SLICE_S)
            if ends_s:
                yield lease, entry, min(ends_s)

    def _pause(self, now_s: float) -> list[Change]:
        changes: list[Change] = []
        if not self._interruptible:
            return changes
        for lease, entry in self._leases.items():
            if not entry.running or entry.until_s is None or now_s < entry.until_s + GRACE_S:
                continue
            if entry.allowed_s > now_s or self._should_yield(entry, now_s):
                self._running -= len(entry.running)
                entry.paused = list(entry.running)
                entry.running = {}
                changes.append(Pause(lease))
        return changes

    def _should_yield(self, entry: _Lease, now_s: float) -> bool:
        if self._running < self.width:
            return False
        return any(
            other.virtual_s < entry.virtual_s for other in self._ready(now_s) if not other.running
        )

    def _ready(self, now_s: float) -> list[_Lease]:
        return [e for e in self._leases.values() if e.runnable and e.allowed_s <= now_s]

    def _next(self, now_s: float) -> LeaseId | None:
        """The lease with the next slice; None when no lease is runnable."""
        ready = [
            (entry.virtual_s, not entry.eager, number, lease)
            for number, (lease, entry) in enumerate(self._leases.items())
            if entry.runnable and entry.allowed_s <= now_s
        ]
        return min(ready)[3] if ready else None

    def _next_change_s(self, now_s: float) -> float | None:
        entries = self._leases.values()
        waited_for = any(not entry.running for entry in self._ready(now_s))
        moments = [
            max(entry.until_s + GRACE_S, now_s + TOLERANCE_S)
            for entry in entries
            if self._interruptible and entry.running and entry.until_s is not None
            if waited_for or entry.rate < self.width
        ]
        moments += [e.allowed_s for e in entries if e.runnable and e.allowed_s > now_s]
        return min(moments, default=None)


def _end_s(holder: _Lease, waiter: _Lease, now_s: float) -> float:
    """The moment at which the holder is ahead of the waiter, but not before its slice ends."""
    ahead_s = now_s + (waiter.virtual_s - holder.virtual_s) * holder.weight / len(holder.running)
    if waiter.eager and waiter.virtual_s <= holder.slice_virtual_s:
        return max(now_s, ahead_s)
    return max(holder.slice_s + SLICE_S, ahead_s)
