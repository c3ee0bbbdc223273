"""A small world for decisions about a fleet: pools that deliver or not, hosts that join or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.model import DeviceKind, HostState, Request, Sharing
from orchgpu.fleet.core.decide import decide
from orchgpu.fleet.core.model import (
    Action,
    Decision,
    Demand,
    Drain,
    Host,
    Memory,
    Offer,
    Offers,
    Rules,
    Start,
    Stop,
    View,
    Withdraw,
)
from orchgpu.fleet.program import groups_of

#: The first moment: the middle of a month and of an hour.
BEGIN_S = 1_763_208_000.0
WHOLE = Request(kinds=(DeviceKind.CUDA,), sharing=Sharing.EXCLUSIVE)


def offer(name: str = "a10g", **fields: Any) -> Offer:
    given = {"memory_mib": 24_000, "usd_per_h": 1.0, "max": 4, "idle_s": 300.0, "start_s": 60.0}
    return Offer(name=name, **{"kind": DeviceKind.CUDA, "model": "A10G", **given, **fields})


def demand(
    count: int, oldest_s: float = 10.0, run_s: float = 60.0, request: Request = WHOLE
) -> Demand:
    return Demand(request=request, count=count, oldest_s=oldest_s, run_s=run_s)


@dataclass
class Machine:
    """One host of the world."""

    id: str
    group: str  #: at the port
    launched_s: float
    joins: bool = True
    state: HostState | None = None
    away_until_s: float | None = None  #: it comes back then
    ends_s: float | None = None  #: of the job that it runs


@dataclass
class Job:
    since_s: float
    run_s: float


@dataclass
class FleetWorld:
    """Steps of `step_s`; every step the fleet decides, and its actions are done at once.

    As at a port, hosts and orders belong to groups: the fleet sees those that it lists.
    """

    offers: tuple[Offer, ...]
    rules: Rules = field(default_factory=Rules)
    step_s: float = 5.0
    start_s: float = 60.0  #: from launch to registration
    now_s: float = BEGIN_S
    memory: Memory = field(default_factory=Memory)
    machines: dict[str, Machine] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    queue: list[Job] = field(default_factory=list)
    refusing: set[str] = field(default_factory=set)  #: groups that deliver nothing
    deaf: set[str] = field(default_factory=set)  #: groups whose hosts never join
    prices: dict[str, float] = field(default_factory=dict)  #: USD/h of a host, by group
    paid_usd: float = 0.0  #: since the fleet has its memory
    done: int = 0
    log: list[Action] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    _number: int = 0

    def submit(self, count: int, run_s: float = 60.0) -> None:
        self.queue += [Job(self.now_s, run_s) for _ in range(count)]

    def view(self) -> View:
        waiting: tuple[Demand, ...] = ()
        if self.queue:
            run_s = sum(job.run_s for job in self.queue) / len(self.queue)
            oldest_s = max(self.now_s - job.since_s for job in self.queue)
            waiting = (demand(len(self.queue), oldest_s, run_s),)
        pools = groups_of(self._offers(), self.memory)
        hosts = tuple(
            Host(
                id=one.id,
                pool=pools[one.group],
                state=one.state,
                leases=one.ends_s is not None,
                launched_s=one.launched_s,
            )
            for one in self.machines.values()
            if one.group in pools
        )
        sizes = {pool: self.sizes.get(group, 0) for group, pool in pools.items()}
        return View(demand=waiting, hosts=hosts, sizes=sizes)

    def _offers(self) -> Offers:
        return Offers(offers=self.offers, rules=self.rules)

    def step(self) -> Decision:
        """Time passes, then the fleet decides."""
        self.now_s += self.step_s
        self._deliver()
        self._work()
        self._pay()
        decision = decide(self.view(), self._offers(), self.memory, self.now_s)
        self.memory = decision.memory
        self.decisions.append(decision)
        for action in decision.actions:
            self.do(action)
        return decision

    def run(self, for_s: float) -> list[Action]:
        """The actions of the steps of this time."""
        begin = len(self.log)
        for _ in range(round(for_s / self.step_s)):
            self.step()
        return self.log[begin:]

    def count(self, group: str | None = None) -> int:
        return sum(group in (None, one.group) for one in self.machines.values())

    def ordered(self, group: str) -> int:
        """Hosts that a group has or shall have."""
        return max(self.sizes.get(group, 0), self.count(group))

    def usd_per_h(self) -> float:
        """Price of all hosts that are there or ordered, by the prices at which they were bought."""
        groups = {*self.sizes, *(one.group for one in self.machines.values())}
        prices = {**self.prices, **{one.at_port: one.usd_per_h for one in self.offers}}
        return sum(prices[group] * self.ordered(group) for group in groups)

    def forget(self) -> None:
        """A restart without memory; the groups of removed offers would stay unknown."""
        known = {one.at_port for one in self.offers}
        if all(self.sizes[group] == self.count(group) == 0 for group in {*self.sizes} - known):
            self.memory, self.paid_usd = Memory(), 0.0

    def leave(self, machine: Machine, state: HostState | None, until_s: float | None) -> None:
        """The scheduler does not reach a host for a while; a silent one keeps its lease."""
        machine.state, machine.away_until_s = state, until_s
        if state is not HostState.STALE:
            machine.ends_s = None

    def do(self, action: Action) -> None:
        self.log.append(action)
        groups = {pool: group for group, pool in groups_of(self._offers(), self.memory).items()}
        match action:
            case Start(offer=pool, size=size):
                self.sizes[groups[pool]] = max(size, self.sizes.get(groups[pool], 0))
            case Withdraw(offer=pool):
                self.sizes[groups[pool]] = self.count(groups[pool])
            case Drain(host=host):
                self.machines[host].state = HostState.DRAINED
            case Stop(host=host):
                machine = self.machines.pop(host)
                assert machine.ends_s is None, "a host with a live lease was stopped"
                self.sizes[machine.group] -= 1

    def _pay(self) -> None:
        self.prices |= {one.at_port: one.usd_per_h for one in self.offers}
        if self.memory.at_s is not None:
            per_s = sum(self.prices[one.group] for one in self.machines.values()) / 3_600.0
            self.paid_usd += per_s * (self.now_s - self.memory.at_s)

    def _deliver(self) -> None:
        for group, size in self.sizes.items():
            if group not in self.refusing:
                for _ in range(size - self.count(group)):
                    self._number += 1
                    name = f"{group}-{self._number}"
                    joins = group not in self.deaf
                    self.machines[name] = Machine(name, group, self.now_s, joins)
        for one in self.machines.values():
            if one.away_until_s is not None:
                if self.now_s >= one.away_until_s:
                    one.state, one.away_until_s = HostState.UP, None
            elif one.state is None and one.joins and self.now_s - one.launched_s >= self.start_s:
                one.state = HostState.UP

    def _work(self) -> None:
        for one in self.machines.values():
            if one.ends_s is not None and one.ends_s <= self.now_s:
                one.ends_s, self.done = None, self.done + 1
            if one.ends_s is None and one.state is HostState.UP and self.queue:
                one.ends_s = self.now_s + self.queue.pop(0).run_s
