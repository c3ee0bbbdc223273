"""A provider of machines for a simulated fleet: it refuses, is late, takes machines away, and their
hosts may never join."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from corekit.aio.clock import LoopClock
from corekit.aio.supervise import Nursery
from orchgpu.fleet.core.model import Offer
from orchgpu.fleet.ports.memory import MemoryFleet
from orchgpu.fleet.ports.port import PortGroup
from simulator.faults.checkers import Checker, Violation
from simulator.faults.fleet_scenario import FleetScenario
from simulator.faults.host import SimHost
from simulator.faults.memory_cloud import Faults

#: From the notice of a host that ends to its end.
NOTICE_S = 30.0
#: Longest time in which several fleets take back what they ordered at once: hosts join, and drain.
TOO_DEAR_S = 300.0
_LOOK_S = 0.5
NO_CAPACITY = "no capacity"


@dataclass(slots=True)
class Machine:
    """One machine; its host begins after its boot, or never."""

    name: str
    group: str
    host: SimHost | None = None
    ending: bool = False
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)


@dataclass
class SimProvider:
    """`FleetPort` with machines that take their time."""

    scenario: FleetScenario
    clock: LoopClock
    checker: Checker
    nursery: Nursery
    stream: random.Random
    new_host: Callable[[str, int, int], SimHost]  #: by name, devices and their memory
    memory: MemoryFleet = field(init=False)
    machines: dict[str, Machine] = field(default_factory=dict)  #: that are there, by name
    deaf: Counter[str] = field(default_factory=Counter)  #: groups whose hosts never join, for now
    counts: Counter[str] = field(default_factory=Counter)  #: what happened to machines
    _held: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        groups = dict.fromkeys(one.at_port for one in self.scenario.every_offer)
        self.memory = MemoryFleet(self.clock.wall_s, tuple(groups))
        rate = self.scenario.provider_fault_rate
        self._faults = Faults(rate=rate, delay_s_max=0.1, stream=self.stream)

    @property
    def groups(self) -> Sequence[str]:
        return self.memory.groups

    def ordered(self) -> dict[str, int]:
        """The hosts that each group shall have; without empty groups."""
        return {group: size for group, size in self.memory.sizes.items() if size}

    def committed(self) -> dict[str, int]:
        """Hosts that each group has or shall have."""
        hosts = self.memory.hosts
        return {g: max(self.memory.sizes.get(g, 0), len(hosts.get(g, ()))) for g in self.groups}

    def living(self) -> tuple[Machine, ...]:
        """The machines that are not being ended."""
        return tuple(one for one in self.machines.values() if not one.ending)

    # ------------------------------------------------------------------ the port

    async def list(self, groups: Sequence[str]) -> tuple[PortGroup, ...]:
        return await self._faults.around(lambda: self.memory.list(groups))

    async def grow(self, group: str, size: int) -> None:
        async def grow() -> None:
            await self.memory.grow(group, size)
            now_s = self.clock.monotonic_s()
            await self._deliver()
            self._check(self.checker.fleet.grown(now_s, group, self.committed()))
            self.check_cost()

        await self._faults.around(grow)

    def check_cost(self) -> None:
        """Keep a violation when the hosts cost too much; several fleets may exceed it shortly."""
        within_s = 0.0 if self.scenario.programs == 1 else TOO_DEAR_S
        now_s = self.clock.monotonic_s()
        self._check(self.checker.fleet.paid(now_s, self.committed(), within_s))

    async def withdraw(self, group: str) -> None:
        await self._faults.around(lambda: self.memory.withdraw(group))

    async def stop(self, group: str, host: str) -> None:
        del group  # a name is of one machine

        async def stop() -> None:
            machine = self.machines.get(host)
            if machine is not None and not machine.ending:
                self._check(self.checker.fleet.stopped(host))
                self.counts["stopped"] += 1
                machine.ending = True
                self.nursery.start(self._end(machine), "end of a machine")

        await self._faults.around(stop)

    async def close(self) -> None:
        """Do nothing: no connection is held."""

    def _check(self, broken: Sequence[str]) -> None:
        """Keep a violation: a fleet contains the errors of its actions."""
        if broken and self.checker.violation is None:
            self.checker.violation = Violation(f"at {self.clock.monotonic_s():.1f} s: {broken}")

    # ------------------------------------------------------------------ machines

    async def _deliver(self) -> None:
        """Let what is ordered come, unless it is held back."""
        for group in await self.memory.list(self.groups):
            for host in group.hosts:
                if host.id not in self.machines:
                    self.counts["launched"] += 1
                    self.machines[host.id] = machine = Machine(host.id, group.name)
                    machine.tasks["boot"] = self._started(self._boot(machine), "boot")

    def _started(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        return self.nursery.start(work, name)

    async def _boot(self, machine: Machine) -> None:
        offer = self._offer_of(machine.group)
        await asyncio.sleep(offer.start_s * self.stream.uniform(0.3, 1.5))
        if self.deaf[machine.group]:
            self.counts["never joined"] += 1
            return
        host = machine.host = self.new_host(machine.name, offer.devices, offer.memory_mib)
        machine.tasks["report"] = self._started(host.report(), "report")
        machine.tasks["pushes"] = self._started(host.apply_pushes(), "apply_pushes")

    def _offer_of(self, group: str) -> Offer:
        return next(one for one in self.scenario.every_offer if one.at_port == group)

    async def _end(self, machine: Machine) -> None:
        """SIGTERM: the host drains itself; the provider lists it until its machine is off."""
        await self._drained(machine)
        await asyncio.sleep(self.stream.uniform(0.0, self.scenario.end_s_max))
        self._vanish(machine)
        await self.memory.stop(machine.group, machine.name)

    async def _drained(self, machine: Machine) -> None:
        """Let the host drain itself, until its last lease has ended, or for its notice."""
        if machine.host is None:
            return
        leaving = self.nursery.start(machine.host.leave(NOTICE_S), "leave")
        while not machine.host.is_away:  # noqa: ASYNC110 - a machine that is shut down
            await asyncio.sleep(_LOOK_S)
        leaving.cancel()

    def _vanish(self, machine: Machine) -> None:
        del self.machines[machine.name]
        for task in machine.tasks.values():
            task.cancel()
        if machine.host is not None:
            machine.host.vanish()

    # ------------------------------------------------------------------ faults

    async def take(self, machine: Machine, *, notice: bool, same_size: bool) -> None:
        """End a machine as the provider's own decision, with or without a notice to its host.

        `same_size`: the group starts another one in its place.
        """
        machine.ending = True
        self.counts["noticed" if notice else "taken"] += 1
        if notice:
            await self._drained(machine)
        self._vanish(machine)
        await self.memory.stop(machine.group, machine.name)
        self.memory.sizes[machine.group] += same_size
        await self._deliver()

    async def hold_back(self, group: str, reason: str, lasts_s: float) -> None:
        """Deliver no machine of a group for a time; the reason is "" where none is stated."""
        self._held[group, reason] += 1
        self.memory.refusing[group] = reason
        await asyncio.sleep(lasts_s)
        self._held[group, reason] -= 1
        if not self._held[group, ""] + self._held[group, NO_CAPACITY]:
            del self.memory.refusing[group]
            await self._deliver()

    async def make_deaf(self, group: str, lasts_s: float) -> None:
        """Let no new host of a group join for a time."""
        self.deaf[group] += 1
        await asyncio.sleep(lasts_s)
        self.deaf[group] -= 1
