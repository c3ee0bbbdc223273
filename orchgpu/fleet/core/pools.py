"""The present state of each pool, and the update of what is remembered. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from corekit.values import replace
from gpu_scheduler.model import DeviceKind, HostState
from orchgpu.fleet.core.model import (
    HOSTS_MAX,
    STARTS_MAX,
    Host,
    HostMemory,
    Memory,
    Offer,
    Offers,
    PoolMemory,
    View,
)

#: A host or an order that takes this many start times does not come any more.
LATE_STARTS = 3
#: But never before this: a busy machine may take many times a short start time.
LATE_S_MIN = 60.0
#: A host is lost or unknown for this long before it is ended and replaced: when a network or the
#: scheduler was away for a moment, all hosts come back.
LOST_S = 60.0
#: Decisions that are further apart than this have a pause between them, because scheduler, provider
#: or fleet was away: hosts could not join or come back. Of a pause that follows another one this
#: much counts nevertheless, so that hosts end also where every look is late.
PAUSE_S = 30.0
#: Weight of the newest day in the averages of the forecast.
_DAY_WEIGHT = 0.5
_HOUR_S = 3600.0


@dataclass(slots=True)
class Pool:
    """One offer with its hosts, while a decision is made."""

    offer: Offer
    memory: PoolMemory
    size: int  #: asked of the port; with hosts that have not come
    start_s: float  #: learned, else that of the offer
    refused: str = ""  #: by the port, now
    hosts: list[Host] = field(default_factory=list)
    busy: list[Host] = field(default_factory=list)  #: UP with leases
    idle: list[Host] = field(default_factory=list)  #: UP without
    starting: list[Host] = field(default_factory=list)  #: not known to the scheduler yet
    away: list[Host] = field(default_factory=list)  #: silent, and expected to come back
    retired: bool = False  #: no offer of the file has it
    too_dear: int = 0  #: hosts above the guard of dollars per hour

    @property
    def committed(self) -> int:
        """Hosts that are paid for, or may be at any time."""
        return max(self.size, len(self.hosts))

    @property
    def missing(self) -> int:
        """Hosts that the port was asked for and that have not come."""
        return max(0, self.size - len(self.hosts))

    @property
    def coming(self) -> int:
        """Hosts that are expected to join."""
        return len(self.starting) + self.missing

    @property
    def usable(self) -> int:
        return len(self.busy) + len(self.idle)

    @property
    def present(self) -> int:
        """Hosts that serve requests now or in a moment."""
        return self.usable + len(self.away)

    @property
    def staying(self) -> int:
        """Hosts that are there or come, and that are not being ended."""
        return min(self.offer.max, self.present + self.coming)

    @property
    def late_s(self) -> float:
        """Age at which a host that has not joined, or an order, is given up."""
        return max(LATE_S_MIN, LATE_STARTS * self.start_s)

    def is_late(self, host: HostMemory, now_s: float) -> bool:
        return now_s - host.since_s - host.missed_s >= self.late_s

    def skipped(self, now_s: float) -> bool:
        return now_s < self.memory.skip_until_s


def pools_of(view: View, offers: Offers, memory: Memory, now_s: float) -> dict[str, Pool]:
    """The pools of all offers, and of hosts whose offer was removed."""
    known = {offer.name: offer for offer in offers.offers}
    names = dict.fromkeys([*known, *(host.pool for host in view.hosts), *view.sizes])
    pools: dict[str, Pool] = {}
    for name in names:
        offer, remembered = known.get(name), memory.pools.get(name, PoolMemory())
        pools[name] = Pool(
            offer=offer or _retired(name, remembered),
            memory=remembered,
            size=min(HOSTS_MAX, view.sizes.get(name, 0)),
            start_s=0.0,
            refused=view.refusals.get(name, ""),
            retired=offer is None,
        )
        pools[name].start_s = learned_start_s(remembered, pools[name].offer)
    for host in view.hosts:
        _place(pools[host.pool], host, memory.hosts, now_s)
    return pools


def _retired(name: str, kept: PoolMemory) -> Offer:
    """The rest of an offer that was removed: where its hosts are, and what they cost."""
    group, usd_per_h = kept.group, kept.usd_per_h
    return Offer(
        name=name, kind=DeviceKind.CPU, memory_mib=1, max=0, group=group, usd_per_h=usd_per_h
    )


def learned_start_s(memory: PoolMemory, offer: Offer) -> float:
    """The median of the newest observed starts, else what the offer states."""
    return statistics.median(memory.starts_s) if memory.starts_s else offer.start_s


def _place(pool: Pool, host: Host, known: Mapping[str, HostMemory], now_s: float) -> None:
    pool.hosts.append(host)
    if host.state is HostState.UP and not host.leaving:
        (pool.busy if host.leases else pool.idle).append(host)
    elif _comes_back(host, known.get(host.id), now_s):
        pool.away.append(host)
    elif host.state is None and not _is_overdue(pool, known.get(host.id), now_s):
        pool.starting.append(host)


def _comes_back(host: Host, known: HostMemory | None, now_s: float) -> bool:
    if host.leaving or (known is not None and known.draining):
        return False
    if host.state is HostState.STALE:
        return True
    return known is not None and known.away_since_s is not None and not is_lost(known, now_s)


def is_lost(host: HostMemory, now_s: float) -> bool:
    """True when a host has been away for so long that it is not expected any more."""
    since_s = host.idle_since_s if host.draining else host.away_since_s
    return since_s is not None and now_s - since_s - host.missed_s >= LOST_S


def _is_overdue(pool: Pool, known: HostMemory | None, now_s: float) -> bool:
    if known is not None and (known.joined or known.draining):
        return True
    return known is not None and pool.is_late(known, now_s)


# ---------------------------------------------------------------------- what is remembered


def with_moved(memory: Memory, offers: Offers) -> Memory:
    """The memory in which the hosts in the former group of an offer are a pool of their own.

    No offer has its name, so they are ended like those of a removed offer.
    """
    pools = dict(memory.pools)
    for offer in offers.offers:
        kept = pools.get(offer.name)
        if kept is not None and kept.group not in ("", offer.at_port):
            pools[f"{offer.name}@{kept.group}"] = kept
            pools[offer.name] = replace(kept, group=offer.at_port, asked_s=None)
    return replace(memory, pools=pools)


def remembered(view: View, offers: Offers, memory: Memory, now_s: float) -> Memory:
    """The memory with what is seen now: hosts, learned starts, and money spent."""
    memory = with_moved(memory, offers)
    prices = {name: pool.usd_per_h for name, pool in memory.pools.items()}
    prices |= {offer.name: offer.usd_per_h for offer in offers.offers}
    passed_s = math.inf if memory.at_s is None else max(0.0, now_s - memory.at_s)
    paused, missed_s = passed_s > PAUSE_S, 0.0
    if paused:
        missed_s = passed_s - PAUSE_S if memory.paused else passed_s
    hosts: dict[str, HostMemory] = {}
    pools = dict(memory.pools)
    for host in view.hosts:
        before = memory.hosts.get(host.id)
        hosts[host.id] = after = _of_host(host, before, now_s, missed_s)
        if after.joined and (before is None or not before.joined) and before is not None:
            _learn_start(pools, host.pool, now_s - after.since_s)
    month = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m")
    spent = memory.spent_usd if memory.month == month else 0.0
    per_s = sum(prices.get(host.pool, 0.0) for host in view.hosts) / _HOUR_S
    return Memory(
        hosts=hosts,
        pools=pools,
        month=month,
        spent_usd=spent if memory.at_s is None else spent + per_s * passed_s,
        at_s=now_s,
        paused=paused,
    )


def _of_host(host: Host, before: HostMemory | None, now_s: float, missed_s: float) -> HostMemory:
    if before is None:
        launched_s = now_s if host.launched_s is None else min(now_s, host.launched_s)
        before = HostMemory(since_s=launched_s)
    idle = host.leases == 0 and (host.state is not None or before.joined)
    away = host.state is HostState.LOST or (host.state is None and before.joined)
    since_s = min(before.since_s, now_s)
    away_since_s = _since(before.away_since_s, now_s) if away else None
    counts_s = since_s if away_since_s is None else away_since_s
    return replace(
        before,
        since_s=since_s,
        missed_s=min(before.missed_s + missed_s, now_s - counts_s),
        joined=before.joined or host.state is not None,
        idle_since_s=_since(before.idle_since_s, now_s) if idle else None,
        away_since_s=away_since_s,
    )


def _since(before_s: float | None, now_s: float) -> float:
    return now_s if before_s is None else min(before_s, now_s)


def _learn_start(pools: dict[str, PoolMemory], pool: str, took_s: float) -> None:
    before = pools.get(pool, PoolMemory())
    starts_s = (*before.starts_s, max(0.1, took_s))[-STARTS_MAX:]
    pools[pool] = replace(before, starts_s=starts_s, failures=0)


def counted_hour(memory: PoolMemory, at_work: int, now_s: float) -> PoolMemory:
    """Count the hosts at work in this hour; a finished one joins the average of its hour of day."""
    hour = int(now_s // _HOUR_S)
    if memory.hour < 0:
        return replace(memory, hour=hour, peak=at_work)
    if hour == memory.hour:
        return memory if at_work <= memory.peak else replace(memory, peak=at_work)
    hours = list(memory.hours or (0.0,) * 24)
    _average(hours, memory.hour % 24, memory.peak)
    for missed in range(max(memory.hour + 1, hour - 23), hour):
        _average(hours, missed % 24, 0)
    return replace(memory, hours=tuple(hours), hour=hour, peak=at_work)


def _average(hours: list[float], at: int, peak: int) -> None:
    """Average with the days before; the days before the first one count as empty."""
    hours[at] += _DAY_WEIGHT * (peak - hours[at])
