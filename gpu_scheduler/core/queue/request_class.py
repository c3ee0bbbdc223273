"""What waiting requests need, told apart so that one verdict serves many of them.

Requests that differ in memory only are one *request_class*, as devices that differ in free memory only are
one family (inventory.py): within it, what fits is monotonic in memory. `FirstByMemory` answers for one request_class
which request is first in order among those that want no more than so much memory.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any

from corekit.values import replace
from gpu_scheduler.core.placement.fits import DeviceState, fits
from gpu_scheduler.model import LeaseLifetime, Request, Sharing
from gpu_scheduler.protocol.changes import Waiting

#: Where a request stands: rank, waiting since, attempt. The lower one goes first.
QueueKey = tuple[float, float, str]

#: Words that order, guide or end a request; every other one decides what it fits.
_GUIDES = (
    "memory_mib",
    "compute_limit_pct",
    "priority",
    "tenant",
    "warm_key",
    "max_wait_s",
    "deadline_s",
    "lease_s",
)
_needs = attrgetter(*(name for name in Request.__struct_fields__ if name not in _GUIDES))

#: Lengths are told apart in steps of a fourth of an octave: 19 % at most are added to one.
_STEPS_PER_OCTAVE = 4

MEMORY_MIB_MAX = 2**31 - 1  #: of a request
_DIGIT_BITS = 2  #: wider digits need fewer nodes, but a longer look at each
_LEVELS = 16  #: of so many bits each: all memory sizes
_FEW = 16  #: sizes that are searched through sooner than a tree of them is kept
_FIRST = itemgetter(0)
_LEVEL_BITS = 5  #: of a node's key: enough for the number of its level


@dataclass(eq=False, slots=True)
class RequestClass:
    """All waiting requests that fit the same devices, but for their memory."""

    key: tuple[Any, ...]  #: equal for requests of one request_class, see `class_key`
    request: Request  #: one of them, without memory
    hold: LeaseLifetime
    length_s: float | None  #: none of them needs its lease for longer; None = not known
    first_by_class: int = 0  #: of requests in the queue

    def max_mib(self, device_state: DeviceState, attempt: str | None) -> int:
        """The most memory one of them may want of a device of this device_state; −1 = it takes none.

        `attempt` is whose kept devices they may use.
        """
        if fits(self.request, device_state, attempt) is not None:
            return -1
        exclusive = self.request.sharing is Sharing.EXCLUSIVE
        return device_state.memory_mib if exclusive else device_state.free_mib


def class_key(waiting: Waiting) -> tuple[Any, ...]:
    """What a request needs besides memory, and for how long."""
    return (rounded_length_s(waiting), waiting.hold, *_needs(waiting.request))


def request_class_of(waiting: Waiting) -> RequestClass:
    """A new request_class of this request."""
    request = replace(waiting.request, memory_mib=0)
    return RequestClass(class_key(waiting), request, waiting.hold, rounded_length_s(waiting))


def rounded_length_s(waiting: Waiting) -> float | None:
    """The length of its lease, rounded up to the next step."""
    if waiting.lease_s is None:
        return None
    steps = math.ceil(math.log2(waiting.lease_s) * _STEPS_PER_OCTAVE)
    return max(waiting.lease_s, math.exp2(steps / _STEPS_PER_OCTAVE))


@dataclass(slots=True)
class FirstByMemory:
    """The first of every line of one request_class, by memory; of many sizes a tree over the digits."""

    _leaves: dict[int, list[QueueKey]] = field(
        default_factory=dict
    )  #: several tenants may be there
    #: Node and level → least place below; empty while there were never more than `_FEW` sizes.
    _least: dict[int, QueueKey] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._leaves)

    @property
    def least(self) -> QueueKey:
        """The first of all."""
        return self._least[_LEVELS] if self._least else min(map(_FIRST, self._leaves.values()))

    def first(self, memory_mib: int, after: QueueKey | None = None) -> QueueKey | None:
        """The first of those that want at most this much; only of those after a place, if given."""
        if memory_mib < 0 or not self._leaves:
            return None
        if after is not None:  # seldom: all are searched at
            sizes = (places for m, places in self._leaves.items() if m <= memory_mib)
            return min((one for all_ in sizes for one in all_ if one > after), default=None)
        if memory_mib >= MEMORY_MIB_MAX:
            return self.least
        least = self._least
        if not least:
            return min(
                (all_[0] for m, all_ in self._leaves.items() if m <= memory_mib), default=None
            )
        best = least.get(memory_mib << _LEVEL_BITS)
        node = memory_mib
        for level in range(_LEVELS):
            for below in range(node >> _DIGIT_BITS << _DIGIT_BITS, node):
                place = least.get(below << _LEVEL_BITS | level)
                if place is not None and (best is None or place < best):
                    best = place
            node >>= _DIGIT_BITS
        return best

    def swap(self, memory_mib: int, old: QueueKey | None, new: QueueKey | None) -> None:
        """A line of that much memory has another head; None = it was, or is, empty."""
        leaf = self._leaves.setdefault(memory_mib, [])
        if old is not None:
            del leaf[bisect_left(leaf, old)]
        if new is not None:
            insort(leaf, new)
        if not leaf:
            del self._leaves[memory_mib]
        if self._least:
            self._settle(memory_mib, leaf[0] if leaf else None)
        elif len(self._leaves) > _FEW:
            for node, places in self._leaves.items():
                self._settle(node, places[0])

    def _settle(self, node: int, place: QueueKey | None) -> None:
        """What is least at a leaf, and so above it as far as that changes anything."""
        least = self._least
        for level in range(_LEVELS + 1):
            key = node << _LEVEL_BITS | level
            old = least.get(key)
            if place == old:
                return
            if place is None:
                del least[key]
            else:
                least[key] = place
            node >>= _DIGIT_BITS
            above = least.get(node << _LEVEL_BITS | level + 1)
            if place is None or (above is not None and above < place):
                if above != old:
                    return  # another child is least there
                place = self._least_child(node, level)

    def _least_child(self, parent: int, level: int) -> QueueKey | None:
        """Of the children of a node, which are at `level`."""
        least, best = self._least, None
        first = parent << _DIGIT_BITS
        for child in range(first, first + (1 << _DIGIT_BITS)):
            place = least.get(child << _LEVEL_BITS | level)
            if place is not None and (best is None or place < best):
                best = place
        return best
