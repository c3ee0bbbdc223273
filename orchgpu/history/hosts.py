"""Hosts that come and go over time, with their cost, waiting requests and leases. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from corekit.values import Value
from orchgpu.history.measures import Span, clipped, per_step_s

_HOUR_S = 3600.0


class PoolRow(Value):
    """A time for which a pool had this many hosts."""

    pool: str
    since_s: float
    until_s: float
    hosts: int
    usd_per_h: float


class PoolUse(Value):
    """One pool in a window."""

    pool: str
    hosts_max: int  #: at the same time
    host_s: float  #: of all its hosts together
    usd: float


class HostUse(Value):
    """All pools in a window; the series have means of each step."""

    pools: tuple[PoolUse, ...]  #: by name
    hosts: tuple[float, ...]
    waiting: tuple[float, ...]  #: requests of jobs
    leases: tuple[float, ...]

    @property
    def usd(self) -> float:
        return sum(pool.usd for pool in self.pools)


def host_use(
    rows: Iterable[PoolRow],
    waiting: Iterable[Span],
    leases: Iterable[Span],
    edges_s: Sequence[float],
    window: Span,
) -> HostUse:
    """Pools, waiting requests and leases in a window, whose steps have these edges."""
    found: dict[str, list[tuple[PoolRow, Span]]] = {}
    for row in rows:
        if (part := clipped((row.since_s, row.until_s), window)) is not None:
            found.setdefault(row.pool, []).append((row, part))
    by_number: dict[int, list[Span]] = {}
    for row, part in (one for parts in found.values() for one in parts):
        by_number.setdefault(row.hosts, []).append(part)
    hosts = [0.0] * (len(edges_s) - 1)
    for number, parts in by_number.items():
        means = _means(parts, edges_s, window)
        hosts = [have + number * mean for have, mean in zip(hosts, means, strict=True)]
    return HostUse(
        pools=tuple(_pool_use(pool, found[pool]) for pool in sorted(found)),
        hosts=tuple(hosts),
        waiting=_means(waiting, edges_s, window),
        leases=_means(leases, edges_s, window),
    )


def _pool_use(pool: str, parts: Sequence[tuple[PoolRow, Span]]) -> PoolUse:
    host_s = [(row, row.hosts * (end_s - start_s)) for row, (start_s, end_s) in parts]
    return PoolUse(
        pool=pool,
        hosts_max=max(row.hosts for row, _ in parts),
        host_s=sum(seconds for _, seconds in host_s),
        usd=sum(seconds * row.usd_per_h / _HOUR_S for row, seconds in host_s),
    )


def _means(spans: Iterable[Span], edges_s: Sequence[float], window: Span) -> tuple[float, ...]:
    """The mean number of spans at the same time, in the part of each step that is in the window."""
    inside = [part for one in spans if (part := clipped(one, window)) is not None]
    lengths_s = [min(end_s, window[1]) - begin_s for begin_s, end_s in pairwise(edges_s)]
    sums_s = per_step_s(inside, edges_s)
    return tuple(s / length_s for s, length_s in zip(sums_s, lengths_s, strict=True))
