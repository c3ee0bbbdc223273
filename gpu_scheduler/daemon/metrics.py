"""Metrics of ssgmd, and their Prometheus text (exposition format 0.0.4).

The usage of a GPU, as far as hosts report it, has the names and labels of NVIDIA's dcgm-exporter,
so that its dashboards work. Allocations have names of our own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from operator import attrgetter

from corekit.metrics import catalogue
from corekit.metrics.exposition import LabelValues, counts, family, single
from corekit.metrics.metric import Metric
from gpu_scheduler.core.admission.usage_counts import UsageCounts
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.inventory.residents import Residents
from gpu_scheduler.core.leases.learned_times import LearnedTimes
from gpu_scheduler.core.state import State
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

    @classmethod
    def of(cls, state: State) -> CoreCounts:
        """The counts of this state, which stay its own."""
        return cls(
            usage_counts=state.usage_counts,
            learned_times=state.learned_times,
            residents=state.inventory.residents,
            inventory=state.inventory,
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
    yield from _workloads(standing.counts, names=standing.names_workloads)
    yield from single(catalogue.LEADER, 1)
    yield from _journal(metrics, journal)
    yield from _devices(standing.hosts)
    yield from _dcgm(standing.hosts)
    yield from _leases(standing.leases[:LEASES_MAX])


def _requests(metrics: Metrics) -> Iterator[str]:
    yield from counts(catalogue.REQUESTS, metrics.requests)
    yield from counts(catalogue.ERRORS, metrics.errors)
    yield from counts(catalogue.OUTCOMES, metrics.outcomes)
    yield from counts(catalogue.LEASE_ENDS, metrics.lease_ends)
    yield from counts(catalogue.LIMITED, metrics.limited)
    yield from single(catalogue.PUSHES, metrics.pushes)
    yield from single(catalogue.CONNECTIONS, metrics.connections)
    admission = metrics.admission
    unauthenticated = 0 if admission is None else admission.unauthenticated
    buffered = 0 if admission is None else admission.buffered_bytes
    yield from single(catalogue.UNAUTHENTICATED, unauthenticated)
    yield from single(catalogue.BUFFERED, buffered)


def _inventory(standing: Standing) -> Iterator[str]:
    hosts = standing.hosts
    devices = [view for host in hosts for view in host.devices]
    yield from counts(catalogue.LEASES, Counter(lease.state.value for lease in standing.leases))
    yield from counts(catalogue.HOST_LEASES, _leases_by_host(standing))
    yield from counts(catalogue.HOSTS, Counter(host.state.value for host in hosts))
    draining = sum(host.draining is not None for host in hosts if host.state is HostState.DRAINED)
    yield from single(catalogue.HOSTS_DRAINING, draining)
    yield from single(catalogue.HOSTS_FORGOTTEN, standing.counts.inventory.hosts_forgotten)
    yield from single(catalogue.WAITING, standing.waiting)
    yield from single(catalogue.DEVICES, len(devices))
    yield from single(catalogue.MEMORY, sum(view.device.memory_mib for view in devices))
    yield from single(catalogue.MEMORY_FREE, sum(view.memory_free_mib for view in devices))


def _leases_by_host(standing: Standing) -> Counter[str]:
    """Live leases of every known host, each once however many shares it has there."""
    found: Counter[str] = Counter({host.host: 0 for host in standing.hosts})
    for lease in standing.leases:
        found.update(dict.fromkeys((share.host for share in lease.shares), 1))
    return found


def standby_lines(status: StandbyStatus) -> Iterator[str]:
    """The metrics of a standby."""
    yield from single(catalogue.LEADER, 0)
    yield from single(catalogue.EPOCH, status.epoch)
    yield from single(catalogue.STANDBY_LAG, status.lag_s)
    yield from single(catalogue.STANDBY_ITEM, status.item)


def _journal(metrics: Metrics, journal: Journal) -> Iterator[str]:
    figures, room = journal.figures, int(journal.has_room)
    yield from single(catalogue.EPOCH, metrics.epoch)
    yield from family(catalogue.JOURNAL_ENGINE, [((figures.engine,), 1)])
    yield from single(catalogue.JOURNAL_BYTES, journal.size)
    yield from single(catalogue.JOURNAL_HAS_ROOM, room)
    yield from single(catalogue.JOURNAL_SYNCS, figures.syncs)
    yield from single(catalogue.JOURNAL_SYNC_TIME, figures.sync_s)
    yield from single(catalogue.JOURNAL_ENTRIES, figures.entries)
    yield from single(catalogue.JOURNAL_RETRIES, figures.retries)
    yield from single(catalogue.JOURNAL_WRITTEN, figures.bytes)
    yield from single(catalogue.JOURNAL_COMPACTIONS, figures.compactions)


def _usage_counts(usage_counts: UsageCounts) -> Iterator[str]:
    """The counts that the limits on waiting requests and records apply to."""
    total, keys = usage_counts.total, usage_counts.keys.items()
    records = [(("ended",), len(total.ended)), (("live",), total.live)]
    yield from family(catalogue.RECORDS, records)
    waiting = sorted(((name,), tally.waiting) for name, tally in keys)
    yield from family(catalogue.KEY_WAITING, waiting)
    made = sorted(((name,), tally.records) for name, tally in keys)
    yield from family(catalogue.KEY_RECORDS, made)


#: Workloads with counters of their own: those with the most starts. Each has two, so a scrape has
#: 200 of these lines at most, however many workloads there are.
WORKLOADS_MAX = 100


def _workloads(counts: CoreCounts, *, names: bool) -> Iterator[str]:
    """Cold and warm starts of workloads, and evictions of warm workers."""
    starts = counts.learned_times.starts()
    most = nlargest(WORKLOADS_MAX, starts.items(), key=lambda one: (sum(one[1]), one[0]))
    yield from family(
        catalogue.WORKLOAD_STARTS,
        (
            (
                (tenant, workload if names else workload_key(tenant, workload), start),
                number,
            )
            for (tenant, workload), numbers in sorted(most)
            for start, number in zip(("cold", "warm"), numbers, strict=True)
        ),
    )
    yield from single(catalogue.EVICTIONS, counts.residents.evicted)
    yield from single(catalogue.EVICTED, counts.residents.evicted_mib)
    yield from single(catalogue.LOADED, counts.residents.loaded_mib)


#: Live leases with metrics of their own; more would overload scrapers.
LEASES_MAX = 10_000


def _devices(hosts: Iterable[answers.HostView]) -> Iterator[str]:
    """Allocation and health of each device."""
    views = [(_of(host, view), view) for host in hosts for view in host.devices]
    for metric, figure in _OF_DEVICES:
        yield from family(metric, ((labels, figure(view)) for labels, view in views))
    yield from family(
        catalogue.DEVICE_HEALTH,
        (
            ((*labels, health.value), int(view.device.health is health))
            for labels, view in views
            for health in Health
        ),
    )


_OF_DEVICES: tuple[tuple[Metric, Callable[[answers.DeviceView], int]], ...] = (
    (catalogue.DEVICE_MEMORY, attrgetter("device.memory_mib")),
    (catalogue.DEVICE_MEMORY_FREE, attrgetter("memory_free_mib")),
    (catalogue.DEVICE_LEASES, lambda view: len(view.leases)),
    (catalogue.DEVICE_RESIDENTS, lambda view: len(view.residents)),
    (catalogue.DEVICE_RESIDENT_MEMORY, attrgetter("resident_mib")),
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
        catalogue.DCGM_UTILISATION, ((labels, usage.utilisation_pct) for labels, usage in used)
    )
    yield from family(
        catalogue.DCGM_USED, ((labels, usage.memory_used_mib) for labels, usage in used)
    )
    yield from family(
        catalogue.DCGM_FREE,
        ((labels, max(0, all_mib - usage.memory_used_mib)) for labels, all_mib, usage in seen),
    )
    yield from family(
        catalogue.DCGM_TEMPERATURE,
        ((labels, of.temperature_c) for labels, of in used if of.temperature_c is not None),
    )
    yield from family(
        catalogue.DCGM_POWER,
        ((labels, of.power_w) for labels, of in used if of.power_w is not None),
    )


def _as_dcgm(host: answers.HostView, view: answers.DeviceView) -> LabelValues:
    device = view.device
    index = str(device.index)
    return (index, device.id, f"nvidia{index}", device.model, host.host)


def _leases(leases: tuple[Lease, ...]) -> Iterator[str]:
    """The share of each live lease in each of its devices."""
    for metric, figure in _OF_SHARES:
        shares = ((lease, share) for lease in leases for share in lease.shares)
        yield from family(
            metric, ((_of_lease(lease, share), figure(share)) for lease, share in shares)
        )


_OF_SHARES: tuple[tuple[Metric, Callable[[Share], int]], ...] = (
    (catalogue.LEASE_MEMORY, attrgetter("memory_mib")),
    (catalogue.LEASE_GUARANTEE, attrgetter("compute_guarantee_pct")),
    (catalogue.LEASE_LIMIT, attrgetter("compute_limit_pct")),
)


def _of_lease(lease: Lease, share: Share) -> LabelValues:
    state, holder = lease.state.value, lease.holder or ""
    return (lease.id, lease.tenant, state, holder, share.host, share.device)
