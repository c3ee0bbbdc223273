"""Warm floors: what sessions declare, and the devices that keep them. Not durable.

Sessions repeat their floors, and hosts report their workers, so that a new scheduler finds both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from corekit.ids import DeviceId, HostId, SessionId
from gpu_scheduler.floors import FloorView, HostFloor, WarmFloor

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
        self._refused: dict[SessionId, tuple[FloorView, ...]] = {}
        self.slots: Mapping[FloorKey, tuple[Slot, ...]] = {}
        #: The floor at which the search for places continues soon; None = it has been through all.
        self.resumes_at: FloorKey | None = None
        self.pushed: dict[HostId, tuple[HostFloor, ...]] = {}  #: what hosts were sent last
        #: The memory of slots, beside that of leases, as the newest check has placed them.
        self.slots_mib: Mapping[DeviceId, int] = {}

    def declare(
        self,
        session: SessionId,
        floors: tuple[WarmFloor, ...],
        refused: tuple[FloorView, ...] = (),
    ) -> bool:
        """Replace the floors of a session, and those that its key may not declare; False: the
        floors have not changed."""
        changed = self._declared.pop(session, ()) != floors
        self._refused.pop(session, None)
        if floors:
            self._declared[session] = floors
        if refused:
            self._refused[session] = refused
        return changed

    def sessions(self) -> Iterable[SessionId]:
        """The sessions that declare some, or were refused them."""
        return {**self._declared, **self._refused}

    def refused(self) -> tuple[FloorView, ...]:
        """The floors that no session may declare that has tried, by name."""
        wanted = self.wanted() if self._refused else {}
        every = (one for session in sorted(self._refused) for one in self._refused[session])
        found = {(one.tenant, one.workload): one for one in every}
        return tuple(found[key] for key in sorted(found) if key not in wanted)

    def wanted(self) -> dict[FloorKey, WarmFloor]:
        """The highest floor of each workload, by name; of equal ones that of the first session."""
        found: dict[FloorKey, WarmFloor] = {}
        for session in sorted(self._declared):
            for floor in self._declared[session]:
                key = floor.request.tenant, floor.request.workload or ""
                if key not in found or floor.workers_min > found[key].workers_min:
                    found[key] = floor
        return dict(sorted(found.items()))
