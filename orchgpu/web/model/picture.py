"""The whole picture: fleet, queue, jobs and parameters, and the changes that browsers get. Pure.

Changes come in numbered batches, the newest of them kept, so that a browser resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corekit.ids import LeaseId
from corekit.ring import Ring
from corekit.values import Value, replace
from gpu_scheduler.floors import FloorView
from gpu_scheduler.model import Lease, Record
from gpu_scheduler.protocol.answers import HostView, QueueAnswer, QueuedView
from gpu_scheduler.protocol.pools import FleetView, PoolView
from orchgpu.jobs.summary import summary_of
from orchgpu.web.model.fleet import Fleet, PoolEntry
from orchgpu.web.model.jobs import Jobs

#: Batches that are kept: two minutes at four a second.
KEPT_MAX = 480
#: More changes in one batch are not listed: the page loads its views again.
CHANGES_MAX = 500

#: One change: `event` names the kind, the other keys are those of the changed thing.
Change = Mapping[str, object]


class Batch(Value):
    """Changes that browsers get together."""

    number: int
    changes: Sequence[Change]
    overflow: bool = False  #: there were more than `CHANGES_MAX`


class Batches:
    """The newest batches of one run of the server."""

    def __init__(self, run: str) -> None:
        self._run = run  #: distinguishes the numbers of this run from those of others
        self._ring: Ring[Batch] = Ring(KEPT_MAX)
        self._open: dict[tuple[str, str], Change] = {}
        self._overflow = False

    @property
    def number(self) -> int:
        """The number of the newest batch; 0 before the first."""
        return self._ring.last

    @property
    def pending(self) -> bool:
        return bool(self._open) or self._overflow

    def note(self, kind: str, name: str, change: Change) -> None:
        """Add a change to the open batch; it replaces an earlier one of the same thing."""
        self._open.pop((kind, name), None)
        if len(self._open) >= CHANGES_MAX:
            self._overflow = True
        else:
            self._open[(kind, name)] = {"event": kind, **change}

    def close(self) -> Batch | None:
        """The open batch, which is kept; None: nothing changed."""
        if not self.pending:
            return None
        batch = Batch(
            number=self.number + 1, changes=tuple(self._open.values()), overflow=self._overflow
        )
        self._ring.append(batch)
        self._open, self._overflow = {}, False
        return batch

    def id_of(self, number: int) -> str:
        """The id of an event of the stream, which a browser returns as `Last-Event-ID`."""
        return f"{self._run}-{number}"

    def resumable(self, last_id: str) -> int | None:
        """The number after which a browser continues; None: it misses batches, or its id is wrong.

        A number of this run stays usable until the batch after it makes room for newer ones.
        """
        run, _, text = last_id.rpartition("-")
        if run != self._run or not text.isdecimal() or int(text) > self.number:
            return None
        return None if self._ring.lost_after(int(text)) else int(text)

    def after(self, number: int) -> Batch | None:
        """The batch after that number, or one that has `overflow` where it is lost; None: none."""
        if self._ring.lost_after(number):
            return Batch(number=self.number, changes=(), overflow=True)
        return self._ring.next_after(number)


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


class Pools(Value):
    """The pools of hosts that come and go, and what an operator should know."""

    pools: tuple[PoolEntry, ...]
    notices: tuple[str, ...]
    floors: tuple[FloorView, ...] = ()  #: warm floors, as many as are shown
    floors_left_out: int = 0


class Picture:
    """One system, as the console knows it."""

    def __init__(self, run: str) -> None:
        self.fleet = Fleet()
        self.jobs = Jobs()
        self.queue: Sequence[QueuedView] = ()
        self.left_out = 0  #: waiting requests after those of `queue`
        self._pools: FleetView | None = None
        self._pools_at_s = 0.0  #: wall clock of that view
        self._floors: tuple[tuple[FloorView, ...], int] = (), 0
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

    def put_pools(self, found: FleetView | None, now_s: float) -> None:
        """The pools of hosts that come and go; a change of ages alone is not noted."""
        before, self._pools, self._pools_at_s = self._pools, found, now_s
        if _without_ages(before) != _without_ages(found):
            self.batches.note("pool", "", {})

    def put_floors(self, found: tuple[FloorView, ...], left_out: int) -> None:
        """The warm floors, and the number of those that are left out."""
        if self._floors != (found, left_out):
            self._floors = found, left_out
            self.batches.note("pool", "", {})

    def parameter_changed(self, name: str, value: object) -> None:
        kind = "policy" if name == "policy" else "parameters"
        self.batches.note(kind, name, {"name": name, "value": value})

    # ------------------------------------------------------------------ views

    def pools(self) -> Pools:
        found = self._pools or FleetView(pools=())
        entries = tuple(_pool(one, self._pools_at_s) for one in found.pools)
        floors, left_out = self._floors
        return Pools(pools=entries, notices=found.notices, floors=floors, floors_left_out=left_out)

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


def _pool(one: PoolView, at_s: float) -> PoolEntry:
    in_s = one.expected_in_s
    return PoolEntry(
        pool=one.name,
        model=one.model,
        hosts=one.hosts,
        states=one.states,
        size=one.size,
        min=one.min,
        max=one.max,
        usd_per_h=one.usd_per_h,
        spot=one.spot,
        start_s=one.start_s,
        expected_s=None if in_s is None else at_s + in_s,
        closed=one.closed,
    )


def _without_ages(found: FleetView | None) -> object:
    pools = () if found is None else found.pools
    return [replace(one, started_ago_s=None, ordered_ago_s=None) for one in pools]
