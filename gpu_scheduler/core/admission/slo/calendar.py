"""The calendar of one device: the leases and the bookings that use it, and the gaps between them.

Times are of the wall clock: a restart of the scheduler moves no booking.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import NamedTuple

from corekit.ids import DeviceId

#: Times that differ by less are equal: beyond the resolution of a wall clock as a float.
SAME_S = 1e-5


class Need(NamedTuple):
    """The part of a device that a step uses."""

    memory_mib: int
    permille: int  #: of its compute
    exclusive: bool = False


class Use(NamedTuple):
    """One lease or booking of a device."""

    start_s: float
    end_s: float  #: the device is free again; infinite = not known
    need: Need
    workload: str | None = None  #: published key of its workload
    #: It counts on a warm worker of its workload, which no other use may evict.
    warm: bool = False


class Keeping(NamedTuple):
    """The limits within which a device keeps warm workers."""

    workers_max: int
    idle_s_max: float
    memory_mib_max: int


_START, _WARM = attrgetter("start_s"), attrgetter("warm")


@dataclass(slots=True)
class Calendar:
    """One device. Uses are in the order of their start."""

    device: DeviceId
    memory_mib: int
    permille: int
    keeping: Keeping
    uses: list[Use] = field(default_factory=list)
    #: Memory of the warm workers that it has now, by published key of the workload.
    residents: dict[str, int] = field(default_factory=dict)

    def add(self, use: Use) -> None:
        """Add a use at its place."""
        insort(self.uses, use, key=_START)

    def prolong(self, workload: str | None, start_s: float, until_s: float) -> None:
        """Move the end of the members of a batch, which begin at one moment."""
        self.uses = [
            use._replace(end_s=until_s)
            if use.workload == workload and abs(use.start_s - start_s) < SAME_S
            else use
            for use in self.uses
        ]

    def copy(self) -> Calendar:
        """The same uses, in a list of its own."""
        return Calendar(
            self.device,
            self.memory_mib,
            self.permille,
            self.keeping,
            self.uses.copy(),
            self.residents,
        )

    def conflict_s(self, need: Need, start_s: float, end_s: float) -> float | None:
        """None when `need` fits during this time, else the next moment at which more is free."""
        beside = [
            use
            for use in self.uses
            if use.end_s > start_s + SAME_S and use.start_s < end_s - SAME_S
        ]
        if not beside:
            return None if self._holds(need, ()) else inf
        for moment in (start_s, *(use.start_s for use in beside if use.start_s > start_s)):
            at_once = [one for one in beside if one.start_s <= moment + SAME_S < one.end_s]
            if not self._holds(need, at_once):
                return min((one.end_s for one in at_once), default=inf)
        return None

    def _holds(self, need: Need, uses: tuple[Use, ...] | list[Use]) -> bool:
        if not uses:
            return need.memory_mib <= self.memory_mib and need.permille <= self.permille
        if need.exclusive or any(use.need.exclusive for use in uses):
            return False
        memory = need.memory_mib + sum(use.need.memory_mib for use in uses)
        permille = need.permille + sum(use.need.permille for use in uses)
        return memory <= self.memory_mib and permille <= self.permille

    def earliest_s(self, need: Need, ready_s: float, length_s: float) -> float:
        """The first start from `ready_s` on at which `need` fits for this long; may be infinite.

        Uses that exclude it, as those of whole devices do, are passed in their order; the first
        other one in the way needs the search over all that are there at once.
        """
        memory_mib, permille = self.memory_mib - need.memory_mib, self.permille - need.permille
        if memory_mib < 0 or permille < 0:
            return inf
        start_s = ready_s
        for begin_s, end_s, other, _, _ in self.uses:
            if begin_s >= start_s + length_s - SAME_S:
                break
            if end_s > start_s + SAME_S:
                if not (
                    other.permille > permille
                    or other.memory_mib > memory_mib
                    or other.exclusive
                    or need.exclusive
                ):
                    return self._beside_s(need, ready_s, length_s)
                start_s = end_s
        return start_s

    def _beside_s(self, need: Need, ready_s: float, length_s: float) -> float:
        start_s = ready_s
        while (free_s := self.conflict_s(need, start_s, start_s + length_s)) is not None:
            if free_s == inf:
                return inf
            start_s = free_s
        return start_s

    def gap_s(self, start_s: float, now_s: float) -> float:
        """The idle time of the device before a start, from now on."""
        last_s = now_s
        for begin_s, end_s, _, _, _ in self.uses:
            if begin_s > start_s + SAME_S:
                break
            if last_s < end_s <= start_s + SAME_S:
                last_s = end_s
        return max(0.0, start_s - last_s)

    # ------------------------------------------------------------------ warm workers

    def keeps(self, workload: str | None, memory_mib: int) -> bool:
        """True when a further use evicts no worker that a booking counts on."""
        if not any(map(_WARM, self.uses)):
            return True
        return self._fit_together(workload, memory_mib)

    def warm_at(self, workload: str | None, memory_mib: int, start_s: float, now_s: float) -> bool:
        """True when a worker of the workload is there, and idle, at that moment.

        It is when the last use of the workload ends shortly before, and everything that the device
        will have loaded fits at once, so that nothing is evicted.
        """
        if workload is None or not self._fit_together(workload, memory_mib):
            return False
        own = [use for use in self.uses if use.workload == workload]
        if any(use.start_s < start_s - SAME_S < use.end_s - 2 * SAME_S for use in own):
            return False  # its worker is in use
        ends_s = [use.end_s for use in own if use.end_s <= start_s + SAME_S]
        if ends_s:
            return start_s - max(ends_s) < self.keeping.idle_s_max
        return workload in self.residents and start_s - now_s <= _RESIDENT_S

    def _fit_together(self, workload: str | None, memory_mib: int) -> bool:
        loaded = dict(self.residents)
        for use in self.uses:
            if use.workload is not None:
                loaded[use.workload] = max(loaded.get(use.workload, 0), use.need.memory_mib)
        if workload is not None:
            loaded[workload] = max(loaded.get(workload, 0), memory_mib)
        # those without a workload are not kept, but memory of theirs evicts others
        total = sum(loaded.values()) + (memory_mib if workload is None else 0)
        total += sum(use.need.memory_mib for use in self.uses if use.workload is None)
        keeping = self.keeping
        return len(loaded) <= keeping.workers_max and total <= min(
            keeping.memory_mib_max, self.memory_mib
        )


#: A worker that is idle now may reach its idle limit soon: it is counted on for this long.
_RESIDENT_S = 1.0
