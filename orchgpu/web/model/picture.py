"""The whole picture: fleet, queue, jobs and parameters, and the changes that browsers get. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corekit.ids import LeaseId
from corekit.values import Value
from gpu_scheduler.model import Lease, Record
from gpu_scheduler.protocol.answers import HostView, QueueAnswer, QueuedView
from orchgpu.jobs.summary import summary_of
from orchgpu.web.model.batches import Batches
from orchgpu.web.model.fleet import Fleet
from orchgpu.web.model.jobs import Jobs


class Overview(Value):
    """The counters of the first view."""

    hosts: int
    hosts_by_state: dict[str, int]
    devices: int
    devices_by_state: dict[str, int]
    leases: int
    waiting: int
    jobs: int
    jobs_by_state: dict[str, int]
    memory_mib: int
    memory_used_mib: int
    compute_used_ratio: float
    utilisation_ratio: float | None  #: of the devices that report it
    connected: bool  #: False: the scheduler does not answer, and the picture is old
    as_of_s: float  #: wall clock of the newest answer


class Picture:
    """One system, as the console knows it."""

    def __init__(self, run: str) -> None:
        self.fleet = Fleet()
        self.jobs = Jobs()
        self.queue: Sequence[QueuedView] = ()
        self.left_out = 0  #: waiting requests after those of `queue`
        self.batches = Batches(run)
        self.connected = False
        self.as_of_s = 0.0

    @property
    def waiting(self) -> int:
        return len(self.queue) + self.left_out

    # ------------------------------------------------------------------ changes

    def set_connected(self, connected: bool) -> None:
        if connected != self.connected:
            self.connected = connected
            self.batches.note("scheduler", "", {"connected": connected})

    def put_hosts(self, views: Sequence[HostView], now_s: float) -> None:
        for view in views:
            for device in self.fleet.put_host(view, now_s):
                self.batches.note("device", device, {"host": view.host, "device": device})
            self.as_of_s = now_s

    def forget_host(self, host: str) -> None:
        if self.fleet.forget_host(host):
            self.batches.note("host", host, {"host": host, "state": None})

    def put_leases(
        self, leases: Sequence[Lease], ends_in_s: Mapping[LeaseId, float], now_s: float
    ) -> None:
        """Live leases as they are now, with their latest ends."""
        for lease in leases:
            left_s = ends_in_s.get(lease.id)
            if self.fleet.put_lease(lease, None if left_s is None else now_s + left_s):
                self._lease_changed(lease, lease.state.value)

    def end_lease(self, lease: str) -> None:
        old = self.fleet.end_lease(lease)
        if old is not None:
            self._lease_changed(old, "ENDED")

    def _lease_changed(self, lease: Lease, state: str) -> None:
        fields = {"lease": lease.id, "attempt": lease.attempt, "job": lease.holder, "state": state}
        self.batches.note("lease", lease.id, {**fields, "tenant": lease.tenant})
        for share in lease.shares:
            change = {"host": share.host, "device": share.device}
            self.batches.note("device", share.device, change)

    def put_record(self, record: Record) -> None:
        if self.jobs.put(summary_of(record)):
            self.batches.note("job", record.holder, {"job": record.holder})

    def forget_job(self, job: str) -> None:
        """The scheduler keeps no record of the job any more."""
        if self.jobs.forget(job):
            self.batches.note("job", job, {"job": job, "state": None})

    def put_queue(self, found: QueueAnswer) -> None:
        if (found.queue, found.left_out) != (tuple(self.queue), self.left_out):
            self.queue, self.left_out = found.queue, found.left_out
            self.batches.note("queue", "", {"waiting": self.waiting})

    def parameter_changed(self, name: str, value: object) -> None:
        kind = "policy" if name == "policy" else "parameters"
        self.batches.note(kind, name, {"name": name, "value": value})

    # ------------------------------------------------------------------ views

    def overview(self) -> Overview:
        fleet = self.fleet.counts()
        devices, measured = fleet.get("devices", 0), fleet.get("measured", 0)
        compute = fleet.get("compute_used_permille", 0) / 1000
        used = fleet.get("utilisation_pct", 0) / 100
        return Overview(
            hosts=fleet.get("hosts", 0),
            hosts_by_state=_states(fleet, "host_"),
            devices=devices,
            devices_by_state=_states(fleet, "device_"),
            leases=len(self.fleet.leases),
            waiting=self.waiting,
            jobs=len(self.jobs),
            jobs_by_state=self.jobs.counts(),
            memory_mib=fleet.get("memory_mib", 0),
            memory_used_mib=fleet.get("memory_used_mib", 0),
            compute_used_ratio=compute / devices if devices else 0.0,
            utilisation_ratio=used / measured if measured else None,
            connected=self.connected,
            as_of_s=self.as_of_s,
        )


def _states(counts: dict[str, int], prefix: str) -> dict[str, int]:
    return {
        name.removeprefix(prefix): count
        for name, count in counts.items()
        if name.startswith(prefix)
    }
