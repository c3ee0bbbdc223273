"""The metrics of a GPU host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from corekit.metrics import catalogue
from corekit.metrics.exposition import family
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
    yield from family(catalogue.HOST_INSTALLED, [(own, len(entries))])
    yield from family(
        catalogue.HOST_PHASES, [((*own, phase.value), phases[phase]) for phase in Phase]
    )
    yield from family(catalogue.HOST_STUCK, [(own, sum(entry.stuck for entry in entries))])
    warm = sum(len(found) for found in table.warm.residents().values())
    yield from family(catalogue.HOST_WARM, [(own, warm)])
    yield from family(catalogue.HOST_SESSIONS, [(own, gateway.sessions)])
    ends = sorted(parts.sessions.lease_ends.items())
    yield from family(catalogue.HOST_LEASE_ENDS, [((*own, name), count) for name, count in ends])
    refusals = sorted(gateway.refusals.items())
    yield from family(catalogue.HOST_REFUSALS, [((*own, name), count) for name, count in refusals])
    yield from family(catalogue.HOST_REFUSED_SECRETS, [(own, gateway.refused_secrets)])
