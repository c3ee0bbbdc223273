"""Equivalence classes of waiting requests, so that one evaluation holds for many of them.

Requests that differ in memory only are one `RequestClass`: within it, the fit is monotonic in
memory. `FirstByMemory` finds, in one class, the first request for at most a given amount of memory.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter

from corekit.values import replace
from gpu_scheduler.core.inventory.devices import DeviceState, fits
from gpu_scheduler.model import MEMORY_MIB_MAX, LeaseLifetime, Request, Sharing
from gpu_scheduler.protocol.changes import Waiting

#: The order of service: rank, waiting since, number of its arrival, attempt. A lower one is first.
QueueKey = tuple[float, float, int, str]

#: Fields that do not decide on which devices a request fits.
_NOT_FEASIBILITY = (
    "memory_mib",
    "compute_limit_pct",
    "priority",
    "tenant",
    "warm_key",
    "workload",
    "preemptible",
    "batch",
    "max_wait_s",
    "deadline_s",
    "lease_s",
)
_requirements = attrgetter(*(n for n in Request.__struct_fields__ if n not in _NOT_FEASIBILITY))

#: Lengths are rounded up to steps of a quarter of an octave: by at most 19 %.
_STEPS_PER_OCTAVE = 4

_DIGIT_BITS = 2  #: bits per level; wider digits mean fewer nodes with more children each
_LEVELS = 16  #: levels that cover all memory sizes
_FEW = 16  #: sizes up to which a linear search is faster than a tree
_FIRST = itemgetter(0)
_LEVEL_BITS = 5  #: bits of a node slot that hold the number of its level


@dataclass(eq=False, slots=True)
class RequestClass:
    """Waiting requests that would fit the same devices if they asked for equal memory."""

    key: tuple[object, ...]  #: see `class_key`
    request: Request  #: one of these requests, with memory 0
    hold: LeaseLifetime
    length_s: float | None  #: the longest lease of these requests; None = unknown
    groups: int = 0  #: number of request groups in the queue

    def max_mib(self, device_state: DeviceState, attempt: str | None) -> int:
        """The most memory of a request of this class that fits the device state; −1 = none fits.

        Devices that are reserved for `attempt` count as usable.
        """
        if fits(self.request, device_state, attempt) is not None:
            return -1
        exclusive = self.request.sharing is Sharing.EXCLUSIVE
        return device_state.memory_mib if exclusive else device_state.free_mib


def class_key(waiting: Waiting) -> tuple[object, ...]:
    """The requirements of a request except memory, with its length."""
    return (rounded_length_s(waiting), waiting.hold, *_requirements(waiting.request))


def request_class_of(waiting: Waiting) -> RequestClass:
    """A new class for this request."""
    request = replace(waiting.request, memory_mib=0)
    return RequestClass(class_key(waiting), request, waiting.hold, rounded_length_s(waiting))


def rounded_length_s(waiting: Waiting) -> float | None:
    """The length of the requested lease, rounded up to the next step."""
    if waiting.lease_s is None:
        return None
    steps = math.ceil(math.log2(waiting.lease_s) * _STEPS_PER_OCTAVE)
    return max(waiting.lease_s, math.exp2(steps / _STEPS_PER_OCTAVE))


@dataclass(slots=True)
class FirstByMemory:
    """The first request of each group of one class, by memory; many sizes form a digit tree."""

    #: Memory → first keys of the groups of several tenants.
    _leaves: dict[int, list[QueueKey]] = field(default_factory=dict)
    #: Node and level → minimum below; empty until there have been more than `_FEW` sizes.
    _minima: dict[int, QueueKey] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._leaves)

    @property
    def minimum(self) -> QueueKey:
        """The first key of all."""
        return self._minima[_LEVELS] if self._minima else min(map(_FIRST, self._leaves.values()))

    def first(self, memory_mib: int, after: QueueKey | None = None) -> QueueKey | None:
        """The first key with at most this much memory, after a given key if there is one."""
        if memory_mib < 0 or not self._leaves:
            return None
        if after is not None:  # rare: a linear search
            sizes = (keys for m, keys in self._leaves.items() if m <= memory_mib)
            return min((one for all_ in sizes for one in all_ if one > after), default=None)
        if memory_mib >= MEMORY_MIB_MAX:
            return self.minimum
        least = self._minima
        if not least:
            return min(
                (all_[0] for m, all_ in self._leaves.items() if m <= memory_mib), default=None
            )
        best = least.get(memory_mib << _LEVEL_BITS)
        node = memory_mib
        for level in range(_LEVELS):
            for below in range(node >> _DIGIT_BITS << _DIGIT_BITS, node):
                key = least.get(below << _LEVEL_BITS | level)
                if key is not None and (best is None or key < best):
                    best = key
            node >>= _DIGIT_BITS
        return best

    def replace_first(self, memory_mib: int, old: QueueKey | None, new: QueueKey | None) -> None:
        """Replace the first key of a group with this memory; None = the group was, or is, empty."""
        leaf = self._leaves.setdefault(memory_mib, [])
        if old is not None:
            del leaf[bisect_left(leaf, old)]
        if new is not None:
            insort(leaf, new)
        if not leaf:
            del self._leaves[memory_mib]
        if self._minima:
            self._update_path(memory_mib, leaf[0] if leaf else None)
        elif len(self._leaves) > _FEW:
            for node, keys in self._leaves.items():
                self._update_path(node, keys[0])

    def _update_path(self, node: int, key: QueueKey | None) -> None:
        """Update the minimum of a leaf, and of the nodes above it as far as they change."""
        least = self._minima
        for level in range(_LEVELS + 1):
            slot = node << _LEVEL_BITS | level
            old = least.get(slot)
            if key == old:
                return
            if key is None:
                del least[slot]
            else:
                least[slot] = key
            node >>= _DIGIT_BITS
            above = least.get(node << _LEVEL_BITS | level + 1)
            if key is None or (above is not None and above < key):
                if above != old:
                    return  # another child has the minimum
                key = self._least_child(node, level)

    def _least_child(self, parent: int, level: int) -> QueueKey | None:
        least, best = self._minima, None
        first = parent << _DIGIT_BITS
        for child in range(first, first + (1 << _DIGIT_BITS)):
            key = least.get(child << _LEVEL_BITS | level)
            if key is not None and (best is None or key < best):
                best = key
        return best
