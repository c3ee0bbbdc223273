"""The report of a fleet to the scheduler: its pools as it sees them. Pure."""

from __future__ import annotations

from corekit.units import format_duration
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.pools import HOSTS_MAX, POOLS_MAX, SENTENCE_CHARS_MAX, PoolView
from orchgpu.fleet.core.model import Decision, NoticeCode, Offers, View
from orchgpu.fleet.core.pools import Pool, pools_of
from orchgpu.fleet.texts import host_states, notice_text


def report_of(view: View, offers: Offers, decision: Decision, now_s: float) -> ops.ReportFleet:
    """The report of what was seen and decided at this time (wall clock)."""
    pools = pools_of(view, offers, decision.memory, now_s)
    known = [pool for pool in pools.values() if pool.committed or not pool.retired]
    return ops.ReportFleet(
        pools=tuple(_view(pool, view, decision, now_s) for pool in known[:POOLS_MAX]),
        notices=tuple(
            notice_text(one)[:SENTENCE_CHARS_MAX] for one in decision.notices[:POOLS_MAX]
        ),
    )


def _view(pool: Pool, view: View, decision: Decision, now_s: float) -> PoolView:
    offer, hosts = pool.offer, decision.memory.hosts
    started = [hosts[host.id].since_s for host in pool.starting]
    asked_s = pool.memory.asked_s if pool.missing else None
    return PoolView(
        name=offer.name,
        kind=offer.kind,
        model=offer.model,
        devices=offer.devices,
        memory_mib=offer.memory_mib,
        usd_per_h=offer.usd_per_h,
        spot=offer.spot,
        min=offer.min,
        max=offer.max,
        size=min(pool.size, HOSTS_MAX),
        states=dict(sorted(host_states(view, offer.name).items())),
        start_s=pool.start_s,
        started_ago_s=max(0.0, now_s - min(started)) if started else None,
        ordered_ago_s=None if asked_s is None else max(0.0, now_s - asked_s),
        closed=_closed(pool, decision, now_s),
    )


def _closed(pool: Pool, decision: Decision, now_s: float) -> str:
    """The reason why the pool starts no host now; "" = it may.

    Every tenant may read it: the guards are in the notices, which only operators read.
    """
    if pool.skipped(now_s):
        left = format_duration(pool.memory.skip_until_s - now_s)
        return f"it does not deliver, and is left out for {left}"
    for notice in decision.notices:
        if notice.code is NoticeCode.MONTH_FULL:
            return "its fleet may spend no more this month"
        if notice.code is NoticeCode.HOUR_FULL and notice.values["offer"] == pool.offer.name:
            return "its fleet may spend no more per hour"
    if pool.committed >= pool.offer.max:
        return f"its max of {pool.offer.max} is reached"
    return ""
