"""Warm floors: what sessions declare, and the devices that keep them. Not durable.

Sessions repeat their floors, and hosts report their workers, so that a new scheduler finds both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from corekit.ids import DeviceId, HostId, SessionId
from gpu_scheduler.floors import HostFloor, WarmFloor

#: Tenant and workload.
FloorKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Slot:
    """One worker of a floor."""

    device: DeviceId
    seen_s: float  #: monotonic: it was placed there, or a worker was there


class Floors:
    """The floors of all sessions, and their slots."""

    def __init__(self) -> None:
        self._declared: dict[SessionId, tuple[WarmFloor, ...]] = {}
        self.slots: Mapping[FloorKey, tuple[Slot, ...]] = {}
        #: The floor at which the search for places continues soon; None = it has been through all.
        self.resumes_at: FloorKey | None = None
        self.pushed: dict[HostId, tuple[HostFloor, ...]] = {}  #: what hosts were sent last

    def declare(self, session: SessionId, floors: tuple[WarmFloor, ...]) -> bool:
        """Replace the floors of a session; False: nothing has changed."""
        changed = self._declared.pop(session, ()) != floors
        if floors:
            self._declared[session] = floors
        return changed

    def wanted(self) -> dict[FloorKey, WarmFloor]:
        """The highest floor of each workload, by name; of equal ones that of the first session."""
        found: dict[FloorKey, WarmFloor] = {}
        for session in sorted(self._declared):
            for floor in self._declared[session]:
                key = floor.request.tenant, floor.request.workload or ""
                if key not in found or floor.workers_min > found[key].workers_min:
                    found[key] = floor
        return dict(sorted(found.items()))
