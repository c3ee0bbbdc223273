"""Metrics of ssgmd, and their Prometheus text (exposition format 0.0.4).

The usage of a GPU, as far as hosts report it, has the names and labels of NVIDIA's dcgm-exporter,
so that its dashboards work. Allocations have names of our own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from operator import attrgetter

from corekit.metrics import LabelValues, counts, family, single
from gpu_scheduler.core.admission.usage_counts import UsageCounts
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.inventory.residents import Residents
from gpu_scheduler.core.queue.bookings import promise_counts
from gpu_scheduler.core.state.learned_times import LearnedTimes
from gpu_scheduler.core.state.state import State
from gpu_scheduler.daemon.access.connection_admission import ConnectionAdmission
from gpu_scheduler.daemon.journal.journal import Journal
from gpu_scheduler.daemon.standby.follower import StandbyStatus
from gpu_scheduler.model import DeviceKind, Health, HostState, Lease, Share
from gpu_scheduler.protocol import answers
from gpu_scheduler.warm import workload_key


@dataclass(slots=True)
class Metrics:
    """Counters; everything else is read at each scrape."""

    requests: Counter[str] = field(default_factory=Counter)  #: by op
    errors: Counter[str] = field(default_factory=Counter)  #: by code
    outcomes: Counter[str] = field(default_factory=Counter)  #: of attempts and reserves
    lease_ends: Counter[str] = field(default_factory=Counter)  #: by reason
    limited: Counter[str] = field(default_factory=Counter)  #: refused requests by `Limit`
    pushes: int = 0
    connections: int = 0
    epoch: int = 0
    admission: ConnectionAdmission | None = None  #: of both endpoints, once they listen


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreCounts:
    """Counts that the core keeps, read at each scrape."""

    usage_counts: UsageCounts = field(default_factory=UsageCounts)  #: of each key
    learned_times: LearnedTimes = field(default_factory=LearnedTimes)
    residents: Residents = field(default_factory=Residents)
    inventory: Inventory = field(default_factory=Inventory)
    #: By outcome, of the policy in force.
    promises: Callable[[], Mapping[str, int]] = dict
    ahead: Counter[str] = field(default_factory=Counter)  #: of leases granted ahead, by event

    @classmethod
    def of(cls, state: State) -> CoreCounts:
        """The counts of this state, which stay its own."""
        return cls(
            usage_counts=state.usage_counts,
            learned_times=state.learned_times,
            residents=state.inventory.residents,
            inventory=state.inventory,
            promises=partial(promise_counts, state),
            ahead=state.ahead_counts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The current state, as the core answered."""

    hosts: tuple[answers.HostView, ...]
    leases: tuple[Lease, ...]
    waiting: int  #: requests in the queue
    counts: CoreCounts = field(default_factory=CoreCounts)
    #: Every reader may know the names of workloads: no keys are required.
    names_workloads: bool = False


def prometheus_lines(metrics: Metrics, journal: Journal, standing: Standing) -> Iterator[str]:
    """All metrics, each with help and type; line by line, as there may be 100,000 lines."""
    yield from _requests(metrics)
    yield from _inventory(standing)
    yield from _usage_counts(standing.counts.usage_counts)
    yield from counts("ssgmd_advance_grants_total", standing.counts.ahead)
    yield from counts("ssgmd_promises_total", Counter(standing.counts.promises()))
    yield from _workloads(standing.counts, names=standing.names_workloads)
    yield from single("ssgmd_leader", 1)
    yield from _journal(metrics, journal)
    yield from _devices(standing.hosts)
    yield from _dcgm(standing.hosts)
    yield from _leases(standing.leases[:LEASES_MAX])


def _requests(metrics: Metrics) -> Iterator[str]:
    yield from counts("ssgmd_requests_total", metrics.requests)
    yield from counts("ssgmd_errors_total", metrics.errors)
    yield from counts("ssgmd_outcomes_total", metrics.outcomes)
    yield from counts("ssgmd_lease_ends_total", metrics.lease_ends)
    yield from counts("ssgmd_limited_total", metrics.limited)
    yield from single("ssgmd_pushes_total", metrics.pushes)
    yield from single("ssgmd_connections", metrics.connections)
    admission = metrics.admission
    unauthenticated = 0 if admission is None else admission.unauthenticated
    buffered = 0 if admission is None else admission.buffered_bytes
    yield from single("ssgmd_unauthenticated_connections", unauthenticated)
    yield from single("ssgmd_buffered_bytes", buffered)


def _inventory(standing: Standing) -> Iterator[str]:
    hosts = standing.hosts
    devices = [view for host in hosts for view in host.devices]
    yield from counts("ssgmd_leases", Counter(lease.state.value for lease in standing.leases))
    yield from single("ssgmd_advance_leases", sum(bool(lease.after) for lease in standing.leases))
    yield from counts("ssgmd_host_leases", _leases_by_host(standing))
    yield from counts("ssgmd_hosts", Counter(host.state.value for host in hosts))
    draining = sum(host.draining is not None for host in hosts if host.state is HostState.DRAINED)
    yield from single("ssgmd_hosts_draining", draining)
    yield from single("ssgmd_hosts_forgotten_total", standing.counts.inventory.hosts_forgotten)
    yield from single("ssgmd_waiting_requests", standing.waiting)
    yield from single("ssgmd_devices", len(devices))
    yield from single("ssgmd_memory_mib", sum(view.device.memory_mib for view in devices))
    yield from single("ssgmd_memory_free_mib", sum(view.memory_free_mib for view in devices))


def _leases_by_host(standing: Standing) -> Counter[str]:
    """Live leases of every known host, each once however many shares it has there."""
    found: Counter[str] = Counter({host.host: 0 for host in standing.hosts})
    for lease in standing.leases:
        found.update(dict.fromkeys((share.host for share in lease.shares), 1))
    return found


def standby_lines(status: StandbyStatus) -> Iterator[str]:
    """The metrics of a standby."""
    yield from single("ssgmd_leader", 0)
    yield from single("ssgmd_epoch", status.epoch)
    yield from single("ssgmd_standby_lag_seconds", status.lag_s)
    yield from single("ssgmd_standby_log_item", status.item)


def _journal(metrics: Metrics, journal: Journal) -> Iterator[str]:
    figures, room = journal.figures, int(journal.has_room)
    yield from single("ssgmd_epoch", metrics.epoch)
    yield from family("ssgmd_journal_engine", [((figures.engine,), 1)])
    yield from single("ssgmd_journal_bytes", journal.size)
    yield from single("ssgmd_journal_has_room", room)
    yield from single("ssgmd_journal_syncs_total", figures.syncs)
    yield from single("ssgmd_journal_sync_seconds_total", figures.sync_s)
    yield from single("ssgmd_journal_entries_total", figures.entries)
    yield from single("ssgmd_journal_retries_total", figures.retries)
    yield from single("ssgmd_journal_written_bytes_total", figures.bytes)
    yield from single("ssgmd_journal_compactions_total", figures.compactions)


def _usage_counts(usage_counts: UsageCounts) -> Iterator[str]:
    total, keys = usage_counts.total, usage_counts.keys.items()
    records = [(("ended",), len(total.ended)), (("live",), total.live)]
    yield from family("ssgmd_records", records)
    waiting = sorted(((name,), tally.waiting) for name, tally in keys)
    yield from family("ssgmd_key_waiting_requests", waiting)
    made = sorted(((name,), tally.records) for name, tally in keys)
    yield from family("ssgmd_key_records", made)


#: Workloads with counters of their own: those with the most starts. Each has two, so a scrape has
#: 200 of these lines at most, however many workloads there are.
WORKLOADS_MAX = 100


def _workloads(counts: CoreCounts, *, names: bool) -> Iterator[str]:
    starts = counts.learned_times.starts()
    most = nlargest(WORKLOADS_MAX, starts.items(), key=lambda one: (sum(one[1]), one[0]))
    yield from family(
        "ssgmd_workload_starts_total",
        (
            (
                (tenant, workload if names else workload_key(tenant, workload), start),
                number,
            )
            for (tenant, workload), numbers in sorted(most)
            for start, number in zip(("cold", "warm"), numbers, strict=True)
        ),
    )
    yield from single("ssgmd_evictions_total", counts.residents.evicted)
    yield from single("ssgmd_evicted_mib_total", counts.residents.evicted_mib)
    yield from single("ssgmd_loaded_mib_total", counts.residents.loaded_mib)


#: Live leases with metrics of their own; more would overload scrapers.
LEASES_MAX = 10_000


def _devices(hosts: Iterable[answers.HostView]) -> Iterator[str]:
    views = [(_of(host, view), view) for host in hosts for view in host.devices]
    for metric, figure in _OF_DEVICES:
        yield from family(metric, ((labels, figure(view)) for labels, view in views))
    yield from family(
        "ssgmd_device_health",
        (
            ((*labels, health.value), int(view.device.health is health))
            for labels, view in views
            for health in Health
        ),
    )


_OF_DEVICES: tuple[tuple[str, Callable[[answers.DeviceView], int]], ...] = (
    ("ssgmd_device_memory_mib", attrgetter("device.memory_mib")),
    ("ssgmd_device_memory_free_mib", attrgetter("memory_free_mib")),
    ("ssgmd_device_leases", lambda view: len(view.leases)),
    ("ssgmd_device_residents", lambda view: len(view.residents)),
    ("ssgmd_device_resident_mib", attrgetter("resident_mib")),
)


def _of(host: answers.HostView, view: answers.DeviceView) -> LabelValues:
    device = view.device
    return (host.host, device.id, device.kind.value, device.model)


def _dcgm(hosts: Iterable[answers.HostView]) -> Iterator[str]:
    """Usage of CUDA devices under the names of dcgm-exporter, without hosts that are silent."""
    seen = [
        (_as_dcgm(host, view), view.device.memory_mib, view.usage)
        for host in hosts
        if host.state not in (HostState.STALE, HostState.LOST)
        for view in host.devices
        if view.usage is not None and view.device.kind is DeviceKind.CUDA
    ]
    used = [(labels, usage) for labels, _, usage in seen]
    yield from family(
        "DCGM_FI_DEV_GPU_UTIL", ((labels, usage.utilisation_pct) for labels, usage in used)
    )
    yield from family(
        "DCGM_FI_DEV_FB_USED", ((labels, usage.memory_used_mib) for labels, usage in used)
    )
    yield from family(
        "DCGM_FI_DEV_FB_FREE",
        ((labels, max(0, all_mib - usage.memory_used_mib)) for labels, all_mib, usage in seen),
    )
    yield from family(
        "DCGM_FI_DEV_GPU_TEMP",
        ((labels, of.temperature_c) for labels, of in used if of.temperature_c is not None),
    )
    yield from family(
        "DCGM_FI_DEV_POWER_USAGE",
        ((labels, of.power_w) for labels, of in used if of.power_w is not None),
    )


def _as_dcgm(host: answers.HostView, view: answers.DeviceView) -> LabelValues:
    device = view.device
    index = str(device.index)
    return (index, device.id, f"nvidia{index}", device.model, host.host)


def _leases(leases: tuple[Lease, ...]) -> Iterator[str]:
    for metric, figure in _OF_SHARES:
        shares = ((lease, share) for lease in leases for share in lease.shares)
        yield from family(
            metric, ((_of_lease(lease, share), figure(share)) for lease, share in shares)
        )


_OF_SHARES: tuple[tuple[str, Callable[[Share], int]], ...] = (
    ("ssgmd_lease_memory_mib", attrgetter("memory_mib")),
    ("ssgmd_lease_compute_guarantee_pct", attrgetter("compute_guarantee_pct")),
    ("ssgmd_lease_compute_limit_pct", attrgetter("compute_limit_pct")),
)


def _of_lease(lease: Lease, share: Share) -> LabelValues:
    state, holder = lease.state.value, lease.holder or ""
    return (lease.id, lease.tenant, state, holder, share.host, share.device)
