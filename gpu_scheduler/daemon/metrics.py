"""Figures of one ssgmd, and their Prometheus text (exposition format 0.0.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpu_scheduler.core import actions as do
from gpu_scheduler.daemon.journal import Journal


@dataclass(slots=True)
class Metrics:
    """Counted where it happens; everything else is read when somebody asks."""

    requests: Counter[str] = field(default_factory=Counter)  #: by op
    errors: Counter[str] = field(default_factory=Counter)  #: by code
    outcomes: Counter[str] = field(default_factory=Counter)  #: of attempts and reserves
    lease_ends: Counter[str] = field(default_factory=Counter)  #: by reason
    pushes: int = 0
    connections: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What stands now, as the core answered."""

    inventory: do.InventoryAnswer
    leases: do.LeasesAnswer
    queue: do.QueueAnswer


def prometheus_text(metrics: Metrics, journal: Journal, standing: Standing) -> str:
    """All figures, each with its help and type."""
    hosts = standing.inventory.hosts
    devices = [view for host in hosts for view in host.devices]
    figures = journal.figures
    lines = [
        *_family("requests_total", "counter", "Requests by op", "op", metrics.requests.items()),
        *_family("errors_total", "counter", "Errors by code", "code", metrics.errors.items()),
        *_family("outcomes_total", "counter", "Answers to requests for devices", "outcome",
                 metrics.outcomes.items()),
        *_family("lease_ends_total", "counter", "Ended leases by reason", "reason",
                 metrics.lease_ends.items()),
        *_family("leases", "gauge", "Live leases by state", "state",
                 Counter(lease.state.value for lease in standing.leases.leases).items()),
        *_family("hosts", "gauge", "Hosts by state", "state",
                 Counter(host.state.value for host in hosts).items()),
        *_one("pushes_total", "counter", "Pushes sent", metrics.pushes),
        *_one("connections", "gauge", "Open socket connections", metrics.connections),
        *_one("waiting_requests", "gauge", "Requests in the queue", len(standing.queue.queue)),
        *_one("devices", "gauge", "Known devices", len(devices)),
        *_one("memory_mib", "gauge", "Memory that may be promised",
              sum(view.device.memory_mib for view in devices)),
        *_one("memory_free_mib", "gauge", "Memory not promised",
              sum(view.memory_free_mib for view in devices)),
        *_one("epoch", "gauge", "Rises at each start", metrics.epoch),
        *_one("journal_bytes", "gauge", "Journal in use", journal.size),
        *_one("journal_has_room", "gauge", "0: grants are refused", int(journal.has_room)),
        *_one("journal_syncs_total", "counter", "Groups synced", figures.syncs),
        *_one("journal_sync_seconds_total", "counter", "Time spent in syncs", figures.sync_s),
        *_one("journal_entries_total", "counter", "Entries written", figures.entries),
        *_one("journal_compactions_total", "counter", "Snapshots taken", figures.compactions),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP ssgmd_{name} {text}"
    yield f"# TYPE ssgmd_{name} {kind}"


def _one(name: str, kind: str, text: str, value: float) -> Iterator[str]:
    yield from _head(name, kind, text)
    yield f"ssgmd_{name} {value}"


def _family(
    name: str, kind: str, text: str, label: str, values: Iterable[tuple[str, int]]
) -> Iterator[str]:
    yield from _head(name, kind, text)
    for key, value in sorted(values):
        yield f'ssgmd_{name}{{{label}="{key}"}} {value}'
