"""The faults of a scenario, at their times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from gpu_scheduler.model import Health
from simulator.faults.fleet_scenario import FLEET_FAULTS
from simulator.faults.host import SimHost
from simulator.faults.scenario import DRAIN_S
from simulator.faults.services import Deployed

if TYPE_CHECKING:
    from simulator.faults.world import World

#: Functions that a fault deploys again: without a device, and the one whose request it gets.
PLAIN, WORK = "plain", "work"


class Injector:
    """Causes the faults of one world, and repairs them."""

    def __init__(self, world: World, functions: Deployed) -> None:
        self._world, self._functions = world, functions

    async def run(self) -> None:
        """All faults, in the order of their times."""
        world = self._world
        for fault in world.scenario.faults:
            await asyncio.sleep(max(0.0, fault.at_s - world.clock.monotonic_s()))
            world.checker.note("fault", fault.kind, fault.at_s)
            if fault.kind not in FLEET_FAULTS:
                await self._inject(fault.kind, fault.target, fault.lasts_s)
            elif world.fleet is not None:
                work = world.fleet.inject(fault.kind, fault.target, fault.lasts_s)
                world.nursery.start(work, fault.kind)

    async def _inject(self, kind: str, target: int, lasts_s: float) -> None:
        world = self._world
        match kind:
            case "kill orchestrator" if world.replicas:
                await world.kill_replica(target % len(world.replicas))
                self._later(lasts_s, world.start_replica(self._functions))
            case "stop orchestrator" if world.replicas:
                world.nursery.start(world.stop_replica(target % len(world.replicas)), "stop")
                self._later(lasts_s, world.start_replica(self._functions))
            case "silence orchestrator" if world.replicas:
                requester = world.replicas[target % len(world.replicas)].requester
                world.checker.jobs.silent.add(requester.session)
                world.nursery.start(requester.be_silent(lasts_s), "silence")
            case "kill scheduler" if world.scheduler.up:
                world.scheduler.kill()
                self._later(lasts_s, _call(world.scheduler.start))
            case "redeploy":
                self._functions.redeploy(PLAIN, WORK)
            case "host leaves" if world.lasting:
                host = world.lasting[target % len(world.lasting)]
                world.nursery.start(host.leave(DRAIN_S), "leave")
                self._later(DRAIN_S + lasts_s, _call(host.come_back))
            case _ if hosts := world.living():
                self._to_host(kind, hosts[target % len(hosts)], target, lasts_s)

    def _to_host(self, kind: str, host: SimHost, target: int, lasts_s: float) -> None:
        match kind:
            case "stop host":
                host.stop()
                self._later(lasts_s, _call(host.resume))
            case "restart host":
                host.restart()
            case "suspect device" | "bad device":
                health = Health.BAD if kind == "bad device" else Health.SUSPECT
                device = host.degrade(target, health)
                self._later(lasts_s, _call(lambda: host.recover(device)))

    def _later(self, pause_s: float, work: Coroutine[object, None, None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(pause_s)
            await work

        self._world.nursery.start(wait(), "repair")


async def _call(work: Callable[[], object]) -> None:
    work()
