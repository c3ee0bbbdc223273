"""The metrics of a GPU host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from corekit.metrics import family
from gpu_scheduler.monitor.link import HostLink
from remote_gpu.host.leases.table import Phase
from remote_gpu.host.parts import Parts


def host_lines(link: HostLink, parts: Parts) -> Iterator[str]:
    """All metrics of one host, read at each scrape."""
    gateway, table = parts.gateway, parts.leases.table
    own = (link.host,)
    yield from link.metrics_lines()
    entries = list(table)
    phases = Counter(entry.phase for entry in entries)
    yield from family("gpud_leases", [(own, len(entries))])
    yield from family(
        "gpud_lease_phases", [((*own, phase.value), phases[phase]) for phase in Phase]
    )
    yield from family("gpud_leases_stuck", [(own, sum(entry.stuck for entry in entries))])
    warm = sum(len(found) for found in table.warm.residents().values())
    yield from family("gpud_warm_workers", [(own, warm)])
    yield from family("gpud_sessions", [(own, gateway.sessions)])
    ends = sorted(parts.sessions.lease_ends.items())
    yield from family("gpud_lease_ends_total", [((*own, name), count) for name, count in ends])
    refusals = sorted(gateway.refusals.items())
    yield from family("gpud_refusals_total", [((*own, name), count) for name, count in refusals])
    yield from family("gpud_refused_secrets_total", [(own, gateway.refused_secrets)])
