"""Metrics of ssgmd, and their Prometheus text (exposition format 0.0.4).

The usage of a GPU, as far as hosts report it, has the names and labels of NVIDIA's dcgm-exporter,
so that its dashboards work. Allocations have names of our own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from operator import attrgetter

from gpu_scheduler.core.admission.usage_counts import UsageCounts
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.inventory.residents import Residents
from gpu_scheduler.core.leases.learned_times import LearnedTimes
from gpu_scheduler.core.state import State
from gpu_scheduler.daemon.access.connection_admission import ConnectionAdmission
from gpu_scheduler.daemon.journal.port import SchedulerJournal
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


def prometheus_lines(
    metrics: Metrics, journal: SchedulerJournal, standing: Standing
) -> Iterator[str]:
    """All metrics, each with help and type; line by line, as there may be 100,000 lines."""
    yield from _requests(metrics)
    yield from _inventory(standing)
    yield from _usage_counts(standing.counts.usage_counts)
    yield from _workloads(standing.counts, names=standing.names_workloads)
    yield from _one("leader", "1: it grants; 0: a standby", 1)
    yield from _journal(metrics, journal)
    yield from _devices(standing.hosts)
    yield from _dcgm(standing.hosts)
    yield from _leases(standing.leases[:LEASES_MAX])


def _requests(metrics: Metrics) -> Iterator[str]:
    counters = (
        ("requests_total", "Requests by op", "op", metrics.requests),
        ("errors_total", "Errors by code", "code", metrics.errors),
        ("outcomes_total", "Answers to requests for devices", "outcome", metrics.outcomes),
        ("lease_ends_total", "Ended leases by reason", "reason", metrics.lease_ends),
        ("limited_total", "Requests refused by a limit", "limit", metrics.limited),
    )
    for name, text, label, counter in counters:
        yield from _family(name, text, label, counter.items())
    yield from _one("pushes_total", "Pushes to sessions and hosts", metrics.pushes)
    yield from _one("connections", "Open socket connections", metrics.connections)
    admission = metrics.admission
    unauthenticated = 0 if admission is None else admission.unauthenticated
    buffered = 0 if admission is None else admission.buffered_bytes
    yield from _one(
        "unauthenticated_connections", "Connections before their hello", unauthenticated
    )
    text = "Bytes of unfinished lines buffered for socket connections"
    yield from _one("buffered_bytes", text, buffered)


def _inventory(standing: Standing) -> Iterator[str]:
    hosts = standing.hosts
    devices = [view for host in hosts for view in host.devices]
    leases = Counter(lease.state.value for lease in standing.leases)
    yield from _family("leases", "Live leases by state", "state", leases.items())
    states = Counter(host.state.value for host in hosts)
    yield from _family("hosts", "Hosts by state", "state", states.items())
    draining = sum(host.draining is not None for host in hosts if host.state is HostState.DRAINED)
    yield from _one("hosts_draining", "Hosts that drain themselves", draining)
    forgotten = standing.counts.inventory.hosts_forgotten
    yield from _one("hosts_forgotten_total", "Ephemeral hosts that were forgotten", forgotten)
    yield from _one("waiting_requests", "Requests in the queue", standing.waiting)
    yield from _one("devices", "Known devices", len(devices))
    memory_mib = sum(view.device.memory_mib for view in devices)
    yield from _one("memory_mib", "Memory that may be allocated", memory_mib)
    free_mib = sum(view.memory_free_mib for view in devices)
    yield from _one("memory_free_mib", "Memory not allocated", free_mib)


def standby_lines(status: StandbyStatus) -> Iterator[str]:
    """The metrics of a standby."""
    yield from _one("leader", "1: it grants; 0: a standby", 0)
    yield from _one("epoch", "Epoch of the leader", status.epoch)
    yield from _one("standby_lag_seconds", "Age of the applied state, at most", status.lag_s)
    yield from _one("standby_log_item", "Newest item of the log that was read", status.item)


def _journal(metrics: Metrics, journal: SchedulerJournal) -> Iterator[str]:
    figures, room = journal.figures, int(journal.has_room)
    yield from _one("epoch", "Epoch; rises at each start", metrics.epoch)
    engine = [(figures.engine, 1)]
    yield from _family("journal_engine", "Engine of the journal, as a label", "engine", engine)
    yield from _one("journal_bytes", "Size of the journal", journal.size)
    yield from _one("journal_has_room", "0: it cannot be written, grants are refused", room)
    yield from _one("journal_syncs_total", "Groups synced", figures.syncs)
    yield from _one("journal_sync_seconds_total", "Time spent in syncs", figures.sync_s)
    yield from _one("journal_entries_total", "Entries written", figures.entries)
    yield from _one("journal_retries_total", "Writes to a log that were repeated", figures.retries)
    yield from _one("journal_written_bytes_total", "Bytes written", figures.bytes)
    yield from _one("journal_compactions_total", "Snapshots taken", figures.compactions)


def _usage_counts(usage_counts: UsageCounts) -> Iterator[str]:
    """The counts that the limits on waiting requests and records apply to."""
    total, keys = usage_counts.total, usage_counts.keys.items()
    records = {"live": total.live, "ended": len(total.ended)}.items()
    yield from _family("records", "Job records of live and of ended jobs", "state", records)
    waiting = ((name, tally.waiting) for name, tally in keys)
    yield from _family("key_waiting_requests", "Requests in the queue by key", "key", waiting)
    made = ((name, tally.records) for name, tally in keys)
    yield from _family("key_records", "Job records by the key that made them", "key", made)


def _labels_of_start(tenant: str, workload: str, start: str, *, names: bool) -> dict[str, str]:
    """The labels of a counter: the workload's name, or its published key if names are hidden."""
    shown = workload if names else workload_key(tenant, workload)
    return {"tenant": tenant, "workload": shown, "start": start}


#: Workloads with counters of their own: those with the most starts. Each has two, so a scrape has
#: 200 of these lines at most, however many workloads there are.
WORKLOADS_MAX = 100


def _workloads(counts: CoreCounts, *, names: bool) -> Iterator[str]:
    """Cold and warm starts of workloads, and evictions of warm workers."""
    starts = counts.learned_times.starts()
    most = nlargest(WORKLOADS_MAX, starts.items(), key=lambda one: (sum(one[1]), one[0]))
    yield from _samples(
        "ssgmd_workload_starts_total",
        "Starts without loading (warm) and with it (cold), of workloads that load",
        (
            (_labels_of_start(tenant, workload, start, names=names), number)
            for (tenant, workload), numbers in sorted(most)
            for start, number in zip(("cold", "warm"), numbers, strict=True)
        ),
        kind="counter",
    )
    yield from _one("evictions_total", "Evicted warm workers", counts.residents.evicted)
    yield from _one(
        "evicted_mib_total",
        "Device memory of evicted warm workers",
        counts.residents.evicted_mib,
    )
    yield from _one(
        "loaded_mib_total",
        "Models that the workers of ended leases loaded",
        counts.residents.loaded_mib,
    )


Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float]]

#: Live leases with metrics of their own; more would overload scrapers.
LEASES_MAX = 10_000


def _devices(hosts: Iterable[answers.HostView]) -> Iterator[str]:
    """Allocation and health of each device."""
    views = [(_of(host, view), view) for host in hosts for view in host.devices]
    yield from _samples(
        "ssgmd_device_memory_mib",
        "Memory of the device that may be allocated",
        ((labels, view.device.memory_mib) for labels, view in views),
    )
    yield from _samples(
        "ssgmd_device_memory_free_mib",
        "Memory of the device not allocated",
        ((labels, view.memory_free_mib) for labels, view in views),
    )
    yield from _samples(
        "ssgmd_device_leases",
        "Live leases on the device",
        ((labels, len(view.leases)) for labels, view in views),
    )
    yield from _samples(
        "ssgmd_device_residents",
        "Warm workers on the device without a lease",
        ((labels, len(view.residents)) for labels, view in views),
    )
    yield from _samples(
        "ssgmd_device_resident_mib",
        "Memory of the device that evicting its warm workers would free",
        ((labels, view.resident_mib) for labels, view in views),
    )
    yield from _samples(
        "ssgmd_device_health",
        "1 for the current health of the device",
        (
            ({**labels, "health": health.value}, int(view.device.health is health))
            for labels, view in views
            for health in Health
        ),
    )


def _of(host: answers.HostView, view: answers.DeviceView) -> Labels:
    device = view.device
    return {
        "host": host.host,
        "device": device.id,
        "kind": device.kind.value,
        "model": device.model,
    }


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
    yield from _samples(
        "DCGM_FI_DEV_GPU_UTIL",
        "GPU utilization (in %).",
        ((labels, usage.utilisation_pct) for labels, usage in used),
    )
    yield from _samples(
        "DCGM_FI_DEV_FB_USED",
        "Framebuffer memory used (in MiB).",
        ((labels, usage.memory_used_mib) for labels, usage in used),
    )
    yield from _samples(
        "DCGM_FI_DEV_FB_FREE",
        "Framebuffer memory free (in MiB).",
        ((labels, max(0, all_mib - usage.memory_used_mib)) for labels, all_mib, usage in seen),
    )
    yield from _samples(
        "DCGM_FI_DEV_GPU_TEMP",
        "GPU temperature (in C).",
        ((labels, of.temperature_c) for labels, of in used if of.temperature_c is not None),
    )
    yield from _samples(
        "DCGM_FI_DEV_POWER_USAGE",
        "Power draw (in W).",
        ((labels, of.power_w) for labels, of in used if of.power_w is not None),
    )


def _as_dcgm(host: answers.HostView, view: answers.DeviceView) -> Labels:
    device = view.device
    return {
        "gpu": str(device.index),
        "UUID": device.id,
        "device": f"nvidia{device.index}",
        "modelName": device.model,
        "Hostname": host.host,
    }


def _leases(leases: tuple[Lease, ...]) -> Iterator[str]:
    """The share of each live lease in each of its devices."""
    for name, text, figure in _OF_SHARES:
        shares = ((lease, share) for lease in leases for share in lease.shares)
        samples = ((_of_lease(lease, share), figure(share)) for lease, share in shares)
        yield from _samples(name, text, samples)


_OF_SHARES: tuple[tuple[str, str, Callable[[Share], int]], ...] = (
    ("ssgmd_lease_memory_mib", "Memory allocated to the lease", attrgetter("memory_mib")),
    (
        "ssgmd_lease_compute_guarantee_pct",
        "Compute guaranteed to the lease",
        attrgetter("compute_guarantee_pct"),
    ),
    (
        "ssgmd_lease_compute_limit_pct",
        "Compute limit of the lease",
        attrgetter("compute_limit_pct"),
    ),
)


def _of_lease(lease: Lease, share: Share) -> Labels:
    return {
        "lease": lease.id,
        "tenant": lease.tenant,
        "state": lease.state.value,
        "holder": lease.holder or "",
        "host": share.host,
        "device": share.device,
    }


def _samples(name: str, text: str, samples: Samples, kind: str = "gauge") -> Iterator[str]:
    """A metric with several labels."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        inner = ",".join(f'{label}="{_escaped(word)}"' for label, word in labels.items())
        yield f"{name}{{{inner}}} {value}"


def _escaped(word: str) -> str:
    if word.isalnum():  # most are
        return word
    return word.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _head(name: str, text: str) -> Iterator[str]:
    yield f"# HELP ssgmd_{name} {text}"
    yield f"# TYPE ssgmd_{name} {'counter' if name.endswith('_total') else 'gauge'}"


def _one(name: str, text: str, value: float) -> Iterator[str]:
    yield from _head(name, text)
    yield f"ssgmd_{name} {value}"


def _family(name: str, text: str, label: str, values: Iterable[tuple[str, int]]) -> Iterator[str]:
    yield from _head(name, text)
    for key, value in sorted(values):
        yield f'ssgmd_{name}{{{label}="{key}"}} {value}'
