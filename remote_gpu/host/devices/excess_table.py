"""The leases that use more of a card's memory than they have, by readings of its driver. Pure.

A worker checks its lease's quota before each allocation of its own. Libraries, programs and servers
allocate by themselves, and only the driver knows how much.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.monitor.health import HELD_MIB_MIN

#: Readings in a row: a library may free its work areas a moment later.
READINGS_MIN = 2


class OnExcess(StrEnum):
    """The effect of too much memory in use."""

    END = "end"  #: the lease ends
    WARN = "warn"  #: gpud logs it
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUse:
    """One lease's processes on one card at one reading."""

    lease: LeaseId
    device: DeviceId
    memory_mib: int  #: of its share
    context_mib: int = 0  #: that one context takes; 0 = unknown
    used_mib: tuple[int | None, ...]  #: of each process; None: not reported

    @property
    def allowed_mib(self) -> int:
        """The share, and for each process a context and the code of libraries in it."""
        return self.memory_mib + len(self.used_mib) * max(self.context_mib, HELD_MIB_MIN)

    @property
    def sum_mib(self) -> int:
        """The memory of the processes that have a figure."""
        return sum(used for used in self.used_mib if used is not None)

    @property
    def detail(self) -> str:
        """The reason that the lease gets, if this is too much."""
        return (
            f"it used {self.sum_mib} MiB of {self.device}, as its driver reports: more than its"
            f" {self.memory_mib} MiB and {self.allowed_mib - self.memory_mib} MiB for contexts;"
            " request more memory_mib"
        )


class ExcessTable:
    """The excesses of one host's leases, over readings."""

    def __init__(self, readings_min: int = READINGS_MIN) -> None:
        self._readings_min = readings_min
        self._readings: dict[tuple[LeaseId, DeviceId], int] = {}  # in a row with an excess

    def read(self, uses: Iterable[CardUse]) -> list[CardUse]:
        """The uses of too much memory that this reading confirms, each once until it is over.

        A use without all figures neither confirms nor ends one. A lease without processes on a card
        has none there.
        """
        before, self._readings = self._readings, {}
        found = []
        for use in uses:
            key = (use.lease, use.device)
            count = before.get(key, 0)
            if use.sum_mib > use.allowed_mib:
                count += 1
                if count == self._readings_min:
                    found.append(use)
            elif None not in use.used_mib:
                count = 0
            if count:
                self._readings[key] = count
        return found
