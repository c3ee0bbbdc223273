"""Jobs of a simulated run, and their leases."""

from __future__ import annotations

from dataclasses import dataclass

from corekit.ids import DeviceId, HostId, LeaseId
from gpu_scheduler.model import Resident
from simulator.workloads.model import Arrival, Workload, timing_on


@dataclass(slots=True, kw_only=True)
class Job:
    """One request, its outcome and its times."""

    attempt: str
    arrival: Arrival
    workload: Workload
    tenant: str
    asked_s: float
    outcome: str = "waiting"  #: done | busy | impossible | ended | waiting | running
    granted_s: float | None = None
    opened_s: float | None = None  #: its session
    grants: int = 0
    withdrawn: int = 0  #: leases ahead that ended before they had their shares
    held_s: float = 0.0  #: for which leases of it had their devices
    function_wait_s: float = 0.0  #: its functions waited this long for their shares
    loading_s: float = 0.0  #: in its session
    loaded_ahead_s: float = 0.0  #: before it, while another lease had its device
    execution_s: float = 0.0
    ended_s: float | None = None
    devices: tuple[DeviceId, ...] = ()
    cold: int = 0  #: devices on which it loaded its workload

    @property
    def waited_s(self) -> float:
        assert self.opened_s is not None, f"{self.attempt} was never served"
        return self.opened_s - self.asked_s

    def set_times(self, model: str, kind: str) -> None:
        """Draw its times on a device; it loads if it is cold."""
        execution = timing_on(self.workload.execution, model, kind)
        stated_s = self.arrival.execution_s
        drawn_s = execution.duration_s(self.arrival.execution_normal)
        self.execution_s = self.workload.slowdown * (drawn_s if stated_s is None else stated_s)
        if self.cold:
            loading = timing_on(self.workload.loading, model, kind)
            self.loading_s = loading.duration_s(self.arrival.loading_normal)


@dataclass(slots=True)
class Running:
    """A lease in use, and the warm worker that each of its devices gave it; None = it is ahead."""

    job: Job
    lease: LeaseId
    host: HostId
    warm: dict[DeviceId, Resident | None] | None
    held_from_s: float | None = None  #: it has its shares since then
    knocked_s: float | None = None  #: its session waits since then
    opened: bool = False
    ends_s: float = 0.0  #: once it is open
    joined: bool = False  #: the batch of another one

    def count_held(self, now_s: float) -> None:
        """Add the time for which the lease had its shares to that of its job."""
        if self.held_from_s is not None:
            self.job.held_s += now_s - self.held_from_s
