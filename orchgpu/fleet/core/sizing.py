"""The number of hosts that each pool needs for the waiting requests. Pure.

Work is counted in seconds of a host. Each demand is poured into the hosts that come or are there,
then into hosts that could be started, those with the cheapest run first. The order of demands does
not depend on their amounts, so more demand never makes a pool smaller.

A demand that has waited for longer than a start and its work should take is *late*: the hosts that
are up do not serve it (their leases are long), so it gets hosts of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchgpu.fleet.core.fitting import host_seconds, lanes
from orchgpu.fleet.core.model import Demand, Rules
from orchgpu.fleet.core.pools import Pool

_EPSILON = 1e-6


@dataclass(slots=True)
class Need:
    """Waiting work in each pool, in hosts."""

    present: dict[str, float] = field(default_factory=dict)  #: on hosts that are up
    coming: dict[str, float] = field(default_factory=dict)  #: on hosts that start
    growth: dict[str, float] = field(default_factory=dict)  #: on hosts to be started
    unserved: list[Demand] = field(default_factory=list)  #: beyond all pools that fit
    unfit: list[Demand] = field(default_factory=list)  #: no offer fits

    def hosts_to_start(self, pool: str) -> int:
        return math.ceil(self.growth.get(pool, 0.0) - _EPSILON)

    def hosts_in_use(self, pool: str) -> int:
        """Hosts that are up and that waiting requests need."""
        return math.ceil(self.present.get(pool, 0.0) - _EPSILON)

    def hosts_awaited(self, pool: str) -> int:
        """Hosts that start and that waiting requests need."""
        return math.ceil(self.coming.get(pool, 0.0) - _EPSILON)


def need_of(
    demand: tuple[Demand, ...], pools: Mapping[str, Pool], rules: Rules, now_s: float
) -> Need:
    """Pour all demands into the pools."""
    need = Need()
    for one in sorted(demand, key=_static_key):
        if one.oldest_s >= rules.patience_s and one.count > 0:
            _pour(one, pools, rules, now_s, need)
    return need


def _static_key(demand: Demand) -> str:
    return repr(demand.request)


def horizon_s(pool: Pool, rules: Rules) -> float:
    """The time in which the waiting work of a pool is to be done."""
    return rules.target_wait_s + pool.start_s


def is_late(demand: Demand, pool: Pool, rules: Rules) -> bool:
    return demand.oldest_s > horizon_s(pool, rules) + pool.start_s


def _pour(
    demand: Demand, pools: Mapping[str, Pool], rules: Rules, now_s: float, need: Need
) -> None:
    fitting = [pool for pool in pools.values() if not pool.retired and lanes_of(demand, pool)]
    if not fitting:
        need.unfit.append(demand)
        return
    fitting.sort(key=lambda pool: (_run_cost(demand, pool), pool.offer.name))
    left = 1.0  # of the demand
    for pool in fitting:  # before those that are up: an order is not taken back while work waits
        left = _into(need.coming, pool, pool.coming, demand, left, rules)
    for pool in fitting:
        up = 0 if is_late(demand, pool, rules) else pool.present
        left = _into(need.present, pool, up, demand, left, rules)
    for pool in fitting:
        room = 0 if pool.skipped(now_s) else max(0, pool.offer.max - pool.committed)
        left = _into(need.growth, pool, room, demand, left, rules)
    if left > _EPSILON:
        need.unserved.append(demand)


def lanes_of(demand: Demand, pool: Pool) -> float:
    return lanes(demand.request, pool.offer)


def _run_cost(demand: Demand, pool: Pool) -> float:
    run_s = demand.runs_s.get(pool.offer.model, demand.run_s)
    return pool.offer.usd_per_h * run_s / lanes_of(demand, pool)


def _into(
    filled: dict[str, float], pool: Pool, hosts: int, demand: Demand, left: float, rules: Rules
) -> float:
    """Pour what is left into this many hosts; returns the part of the demand that is left then."""
    if left <= 0.0:
        return 0.0
    name = pool.offer.name
    whole = host_seconds(demand, pool.offer, horizon_s(pool, rules)) / horizon_s(pool, rules)
    taken = min(whole * left, max(0.0, hosts - filled.get(name, 0.0)))
    filled[name] = filled.get(name, 0.0) + taken
    return max(0.0, left - taken / whole)
