"""Timers as data, armed by key and popped by time. Rearming a key replaces its deadline."""

from __future__ import annotations

import heapq
from enum import StrEnum


class TimerKind(StrEnum):
    HOST = "host"  #: silence of a host
    DRAIN = "drain"  #: notice to the leases of a host that drains itself
    FORGET = "forget"  #: removal of an ephemeral host that is gone
    SESSION = "session"  #: silence of a session
    LEASE = "lease"  #: accept, reserved TTL, connect_by, or length
    WAIT = "wait"  #: max_wait_s or the deadline of a request
    DEVICE = "device"  #: clean reports of a recovering device
    POLICY = "policy"  #: end of a pause of a deciding policy
    ADVANCE = "advance"  #: a lease ends soon: another may be granted ahead
    FLOORS = "floors"  #: check of warm floors
    RECORD = "record"  #: retention of an ended record


Key = tuple[TimerKind, str]


class Timers:
    """A heap with lazy deletion; cleaned when more than half of it is out of date."""

    def __init__(self) -> None:
        self._armed: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []

    def arm(self, kind: TimerKind, name: str, at_s: float) -> None:
        self._armed[kind, name] = at_s
        heapq.heappush(self._heap, (at_s, (kind, name)))
        if len(self._heap) > 64 + 2 * len(self._armed):
            self._heap = [(at, key) for key, at in self._armed.items()]
            heapq.heapify(self._heap)

    def cancel(self, kind: TimerKind, name: str) -> None:
        self._armed.pop((kind, name), None)

    def next_s(self) -> float | None:
        """The earliest deadline."""
        heap = self._heap
        while heap and self._armed.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now_s: float) -> Key | None:
        """Disarm and return the earliest key whose deadline has come."""
        next_s = self.next_s()
        if next_s is None or next_s > now_s:
            return None
        _, key = heapq.heappop(self._heap)
        del self._armed[key]
        return key
