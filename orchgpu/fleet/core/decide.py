"""The decision about a fleet: what is seen and remembered in; actions and memory out. Pure.

    a host   asked for → started → joined (UP) → idle for idle_s → drained → empty → stopped

A host is stopped only when it has no lease and gets none: drained, lost, or never joined. Sizes are
absolute and hosts are named, so two replicas that see the same do the same, and an action that is
repeated changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from corekit.values import replace
from gpu_scheduler.model import HostState
from orchgpu.fleet.core.model import (
    Action,
    Decision,
    Drain,
    Host,
    HostMemory,
    Memory,
    Notice,
    NoticeCode,
    Offers,
    Reason,
    Start,
    Stop,
    Values,
    View,
    Withdraw,
)
from orchgpu.fleet.core.policies import FLOORS
from orchgpu.fleet.core.pools import (
    Pool,
    counted_hour,
    is_lost,
    pools_of,
    remembered,
)
from orchgpu.fleet.core.sizing import Need, need_of

#: Part of a guard above which it is warned of.
NEAR = 0.8
#: A host that has not ended this long after its stop is stopped again.
STOP_AGAIN_S = 30.0
#: Hosts in a row that never join, after which their offer is left out for a while.
FAILURES_MAX = 2


def decide(view: View, offers: Offers, memory: Memory, now_s: float) -> Decision:
    """One decision. Call it again with its memory, every few seconds."""
    return _Deciding(view, offers, remembered(view, offers, memory, now_s), now_s).decision()


class _Deciding:
    """The working state of one decision."""

    def __init__(self, view: View, offers: Offers, memory: Memory, now_s: float) -> None:
        self._offers, self._rules, self._now_s = offers, offers.rules, now_s
        self._memory, self._view = memory, view
        self._hosts = dict(memory.hosts)
        self._pools = pools_of(view, offers, memory, now_s)
        self._notices: list[Notice] = []

    def decision(self) -> Decision:
        rules, memory = self._rules, self._memory
        month_full = (
            rules.usd_per_month_max is not None and memory.spent_usd >= rules.usd_per_month_max
        )
        withdrawn = list(self._undelivered())
        need = need_of(self._view.demand, self._pools, rules, self._now_s)
        for pool in self._pools.values():
            self._count_activity(pool, need)
        floors = {n: 0 if month_full else self._floor(p) for n, p in self._pools.items()}
        wanted = {n: self._growth(p, need, floors[n]) for n, p in self._pools.items()}
        self._count_too_dear()
        ends = [action for n, p in self._pools.items() for action in self._ends(p, need, floors[n])]
        gone = {one.offer for one in withdrawn}
        starts = list(self._starts({} if month_full else wanted, need, floors, gone))
        others = gone | {one.offer for one in starts}
        unneeded = self._not_needed(need, floors, others, month_full=month_full)
        self._notice(need, month_full=month_full)
        pools = {
            name: replace(pool.memory, group=pool.offer.at_port, usd_per_h=pool.offer.usd_per_h)
            for name, pool in self._pools.items()
            if not pool.retired or pool.committed or name in gone  # its group is needed for that
        }
        return Decision(
            actions=(*withdrawn, *unneeded, *ends, *starts),
            notices=tuple(self._notices),
            memory=replace(memory, hosts=self._hosts, pools=pools),
        )

    # ------------------------------------------------------------------ orders that do not come

    def _undelivered(self) -> Iterator[Withdraw]:
        """Leave an offer out whose hosts did not come in time, and take its order back."""
        for name, pool in self._pools.items():
            asked_s = pool.memory.asked_s
            if not pool.missing:
                pool.memory = replace(pool.memory, asked_s=None)
                continue
            asked_s = self._now_s if asked_s is None else min(asked_s, self._now_s)
            waited_s = self._now_s - asked_s
            if pool.refused or waited_s >= pool.late_s or pool.retired:
                values: Values = {
                    "missing": pool.missing,
                    "waited_s": waited_s,
                    "refusal": pool.refused,
                }
                self._skip(pool)
                yield Withdraw(offer=name, reason=Reason.NOT_DELIVERED, values=values)
                pool.size = len(pool.hosts)
                asked_s = None
            pool.memory = replace(pool.memory, asked_s=asked_s)

    def _skip(self, pool: Pool) -> None:
        until_s = self._now_s + self._rules.skip_s
        pool.memory = replace(pool.memory, skip_until_s=until_s, failures=0)

    # ------------------------------------------------------------------ how many

    def _count_activity(self, pool: Pool, need: Need) -> None:
        """Remember that the pool has work, and how many hosts work."""
        name = pool.offer.name
        waiting = need.hosts_to_start(name) + need.hosts_in_use(name) + need.hosts_awaited(name)
        if pool.busy or waiting:
            pool.memory = replace(pool.memory, active_s=self._now_s)
        at_work = min(pool.offer.max, len(pool.busy) + need.hosts_to_start(name))
        pool.memory = counted_hour(pool.memory, at_work, self._now_s)

    def _floor(self, pool: Pool) -> int:
        """Hosts that the pool has without waiting requests."""
        offer, active_s = pool.offer, pool.memory.active_s
        buffer = 0
        if active_s is not None and self._now_s - active_s < offer.idle_s:
            buffer = len(pool.busy) + offer.buffer
        floor = FLOORS[self._rules.policy](offer, pool.memory, self._now_s, pool.start_s)
        return min(offer.max, max(offer.min, buffer, floor))

    def _growth(self, pool: Pool, need: Need, floor: int) -> int:
        """Hosts to be started, within `max`."""
        if pool.skipped(self._now_s):
            return 0
        here = pool.present + pool.coming
        more = max(need.hosts_to_start(pool.offer.name), floor - here, 0)
        return min(more, max(0, pool.offer.max - pool.committed))

    # ------------------------------------------------------------------ more hosts

    def _starts(
        self, wanted: dict[str, int], need: Need, floors: dict[str, int], gone: set[str]
    ) -> Iterator[Start]:
        """Starts within the guard of dollars per hour, those of the cheapest hosts first."""
        cheapest = sorted(wanted, key=lambda name: (self._pools[name].offer.usd_per_h, name))
        spending = sum(p.committed * p.offer.usd_per_h for p in self._pools.values())
        for name in cheapest:
            pool, most = self._pools[name], self._rules.usd_per_hour_max
            more = 0 if name in gone else wanted[name]
            price = pool.offer.usd_per_h
            if most is not None and price > 0:
                allowed = max(0, math.floor((most - spending) / price + 1e-9))
                if allowed < more:
                    values: Values = {
                        "offer": name,
                        "wanted": more,
                        "allowed": allowed,
                        "max": most,
                    }
                    self._notices.append(Notice(code=NoticeCode.HOUR_FULL, values=values))
                more = min(more, allowed)
            if more:
                spending += more * price
                yield self._start(pool, more, need, floors[name])
        self._hour_near(spending)

    def _start(self, pool: Pool, more: int, need: Need, floor: int) -> Start:
        name, offer = pool.offer.name, pool.offer
        waiting = need.hosts_to_start(name)
        if waiting >= more:
            reason = Reason.DEMAND
        elif floor <= offer.min:
            reason = Reason.MINIMUM
        elif floor <= len(pool.busy) + offer.buffer:
            reason = Reason.BUFFER
        else:
            reason = Reason.POLICY
        if not pool.missing:
            pool.memory = replace(pool.memory, asked_s=self._now_s)
        values: Values = {"more": more, "needed": waiting, "floor": floor, "start_s": pool.start_s}
        return Start(offer=name, size=pool.committed + more, reason=reason, values=values)

    def _not_needed(
        self, need: Need, floors: dict[str, int], others: set[str], *, month_full: bool
    ) -> Iterator[Withdraw]:
        """Orders for hosts that have not come, and that nothing waits for or that are too dear."""
        for name, pool in self._pools.items():
            if not pool.missing or name in others:
                continue
            enough = pool.present + len(pool.starting) >= floors[name]
            above = pool.committed > pool.offer.max or pool.too_dear
            if month_full or above or (enough and not need.hosts_awaited(name)):
                pool.memory = replace(pool.memory, asked_s=None)
                reason = self._surplus_reason(pool) if above else Reason.NOT_NEEDED
                values: Values = {"missing": pool.missing, **self._limits(pool)}
                yield Withdraw(offer=name, reason=reason, values=values)

    # ------------------------------------------------------------------ fewer hosts

    def _ends(self, pool: Pool, need: Need, floor: int) -> Iterator[Action]:
        for host in pool.hosts:
            known = self._hosts[host.id]
            reason = None if host.leases else self._stop_reason(pool, host, known)
            if reason is not None and self._may_stop_again(known):
                values: Values = {"pool": pool.offer.name, "age_s": self._now_s - known.since_s}
                yield Stop(host=host.id, reason=reason, values=values)
                self._hosts[host.id] = replace(known, draining=True, stopped_s=self._now_s)
        yield from self._drains(pool, need, floor)

    def _may_stop_again(self, known: HostMemory) -> bool:
        """True unless it was just stopped: a machine takes a while to end."""
        return known.stopped_s is None or self._now_s - known.stopped_s >= STOP_AGAIN_S

    def _stop_reason(self, pool: Pool, host: Host, known: HostMemory) -> Reason | None:
        """Why a host without a lease may be ended at once; None: it may get leases."""
        if known.away_since_s is not None:
            return Reason.LOST if is_lost(known, self._now_s) else None
        if host.state is None:
            if not pool.is_late(known, self._now_s) and not known.draining:
                return None
            if not known.draining:
                self._failed(pool)
            return Reason.NEVER_JOINED
        if host.state is HostState.DRAINED:
            return Reason.DRAINED if known.draining or self._idle_long(pool, known) else None
        return None

    def _idle_long(self, pool: Pool, known: HostMemory) -> bool:
        return self._passed(known.idle_since_s, pool.offer.idle_s)

    def _passed(self, since_s: float | None, seconds: float) -> bool:
        return since_s is not None and self._now_s - since_s >= seconds

    def _failed(self, pool: Pool) -> None:
        pool.memory = replace(pool.memory, failures=pool.memory.failures + 1)
        if pool.memory.failures >= FAILURES_MAX:
            self._skip(pool)

    def _drains(self, pool: Pool, need: Need, floor: int) -> Iterator[Drain]:
        """The hosts that have been idle for longest, down to what is needed; those above a limit
        whatever they do: their leases run to their end."""
        above = max(0, pool.usable - pool.offer.max, pool.too_dear - pool.coming)
        keep = max(floor, need.hosts_in_use(pool.offer.name))
        idle = sorted(pool.idle, key=lambda one: (self._hosts[one.id].idle_since_s or 0.0, one.id))
        busy = sorted(pool.busy, key=lambda one: (one.leases, one.id))
        long = [one for one in idle[above:] if self._idle_long(pool, self._hosts[one.id])]
        for host in [*idle, *busy][:above]:
            yield self._drain(pool, host, self._surplus_reason(pool))
        for host in long[: max(0, pool.usable - above - keep)]:
            yield self._drain(pool, host, Reason.IDLE)

    def _drain(self, pool: Pool, host: Host, reason: Reason) -> Drain:
        known = self._hosts[host.id]
        self._hosts[host.id] = replace(known, draining=True)
        idle_s = self._now_s - (known.idle_since_s or self._now_s)
        values: Values = {"pool": pool.offer.name, "idle_s": idle_s, **self._limits(pool)}
        return Drain(host=host.id, reason=reason, values=values)

    def _surplus_reason(self, pool: Pool) -> Reason:
        if pool.retired:
            return Reason.RETIRED
        return Reason.TOO_DEAR if pool.too_dear else Reason.ABOVE_MAX

    def _limits(self, pool: Pool) -> Values:
        return {"max": pool.offer.max, "usd_per_h_max": self._rules.usd_per_hour_max or 0.0}

    def _count_too_dear(self) -> None:
        """Count the hosts above the guard, the dearest first.

        The guard was lowered, or two fleets that saw different moments ordered at once.
        """
        pools = [pool for pool in self._pools.values() if not pool.retired and pool.offer.usd_per_h]
        if self._rules.usd_per_hour_max is None:
            return
        above = sum(pool.staying * pool.offer.usd_per_h for pool in pools)
        above -= self._rules.usd_per_hour_max
        for pool in sorted(pools, key=lambda one: (-one.offer.usd_per_h, one.offer.name)):
            count = math.ceil(above / pool.offer.usd_per_h - 1e-9)
            pool.too_dear = max(0, min(pool.staying, count))
            above -= pool.too_dear * pool.offer.usd_per_h

    # ------------------------------------------------------------------ notices

    def _hour_near(self, spending: float) -> None:
        most = self._rules.usd_per_hour_max
        if most is not None and most > 0 and spending >= NEAR * most:
            values: Values = {"usd_per_h": spending, "max": most}
            self._notices.append(Notice(code=NoticeCode.HOUR_NEAR, values=values))

    def _notice(self, need: Need, *, month_full: bool) -> None:
        spent, most = self._memory.spent_usd, self._rules.usd_per_month_max
        if most is not None and (month_full or spent >= NEAR * most):
            code = NoticeCode.MONTH_FULL if month_full else NoticeCode.MONTH_NEAR
            self._notices.append(Notice(code=code, values={"usd": spent, "max": most}))
        for name, pool in self._pools.items():
            if pool.skipped(self._now_s):
                left_s = pool.memory.skip_until_s - self._now_s
                self._notices.append(
                    Notice(code=NoticeCode.SKIPPED, values={"offer": name, "left_s": left_s})
                )
        for code, demands in (
            (NoticeCode.POOL_FULL, need.unserved),
            (NoticeCode.NO_OFFER, need.unfit),
        ):
            if demands:
                waiting = sum(one.count for one in demands)
                self._notices.append(Notice(code=code, values={"waiting": waiting}))
