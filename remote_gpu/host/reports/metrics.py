"""The metrics of a GPU host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from corekit.metrics import family
from gpu_scheduler.monitor.link import HostLink
from remote_gpu.host.leases.table import LeasePhase
from remote_gpu.host.parts import Parts


def host_lines(link: HostLink, parts: Parts) -> Iterator[str]:
    """All metrics of one host, read at each scrape."""
    gateway, table = parts.gateway, parts.leases.table
    own = (link.host,)
    yield from link.metrics_lines()
    entries = list(table)
    phases = Counter(entry.phase for entry in entries)
    counts = {
        "gpud_leases": len(entries),
        "gpud_leases_stuck": sum(entry.stuck for entry in entries),
        "gpud_warm_workers": sum(len(found) for found in table.warm.residents().values()),
        "gpud_sessions": gateway.sessions,
        "gpud_refused_secrets_total": gateway.refused_secrets,
        "gpud_data_bytes": sum(parts.data.held().values()),
        "gpud_data_fetched_bytes_total": parts.data.fetched_bytes,
        "gpud_data_evicted_total": parts.data.evicted,
    }
    by_name = {
        "gpud_lease_phases": {phase.value: phases[phase] for phase in LeasePhase},
        "gpud_loads_ahead_total": parts.warm.loads.ends,
        "gpud_lease_ends_total": parts.sessions.lease_ends,
        "gpud_refusals_total": gateway.refusals,
    }
    for metric, count in counts.items():
        yield from family(metric, [(own, count)])
    for metric, named in by_name.items():
        yield from family(metric, [((*own, name), count) for name, count in sorted(named.items())])
