"""The world of an orchestrator without a server: Lambda's pollers start visits; some are killed.

A poller of each queue hands messages to visits, deletes what they finished, and calls one every
minute. Wake-ups of the scheduler are messages.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from corekit.aio.supervise import Nursery
from corekit.errors import AppError
from corekit.ids import IdSource
from corekit.values import replace
from gpu_scheduler.core import actions as do
from orchgpu.core.machine import OrchestratorMachine
from orchgpu.ports import Message
from orchgpu.replica.visit import Arrival, Visit
from simulator.faults.function import render
from simulator.faults.injector import Injector
from simulator.faults.memory_cloud import MemoryQueue, MemoryStarter, MemoryStore
from simulator.faults.scenario import SILENCE, STOP, Scenario, draw
from simulator.faults.services import Deployed
from simulator.faults.world import World

TIMEOUT_S = 60.0  #: of a function
SWEEP_EVERY_S = 60.0
#: Visits that are killed at a random time of their first seconds.
KILLED_RATE, KILLED_S_MAX = 0.1, 2.0


def visiting(seed: int) -> Scenario:
    """The scenario of a seed, without what a visit does not have: runs, floors, and a long life."""
    drawn = draw(seed)
    faults = tuple(fault for fault in drawn.faults if fault.kind not in (SILENCE, STOP))
    return replace(drawn, runs=0, warm_min=0, faults=faults)


class VisitInjector(Injector):
    """All visits are killed where an orchestrator would be."""

    async def _inject(self, kind: str, target: int, lasts_s: float) -> None:
        if kind == "kill orchestrator":
            assert isinstance(self._world, VisitingWorld)
            await self._world.kill_all()
        else:
            await super()._inject(kind, target, lasts_s)


@dataclass
class VisitingWorld(World):
    """Visits in place of replicas."""

    injector: ClassVar[type[Injector]] = VisitInjector
    visits: int = 0
    _pollers: list[Nursery] = field(default_factory=list)
    _visiting: dict[str, Nursery] = field(default_factory=dict)  #: by session

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scheduler.waker = self._wake

    def _wake(self, action: do.Wake) -> None:
        queue = self.cloud.queues.get(action.queue)
        body = json.dumps({"orchgpu": {"wake": {"job": action.holder}}})
        queue.send(self.clock.wall_s(), body)
        self.arrivals.arrived(queue)

    async def start_replica(self, functions: Deployed) -> None:
        """Lambda starts to call for the queues; one poller of each is enough."""
        if self._pollers:
            return
        nursery = Nursery("pollers", strict=True)
        await nursery.__aenter__()
        self._pollers.append(nursery)
        for function in (await functions.functions()).values():
            for url in (function.queue_url, function.completion_url):
                nursery.start_eternal(self._poll(functions, url), url)
        nursery.start_eternal(self._sweep(functions), "sweep")

    async def kill_all(self) -> None:
        for session in list(self._visiting):
            await self._kill(session)

    async def close(self) -> None:
        await self.kill_all()
        for nursery in self._pollers:
            await nursery.close()

    async def _kill(self, session: str) -> None:
        nursery = self._visiting.pop(session, None)
        if nursery is not None:
            self.checker.jobs.ended.add(session)
            await nursery.close()

    async def _poll(self, functions: Deployed, url: str) -> None:
        queue = MemoryQueue(self.cloud, self.arrivals, self.clock)
        while True:
            messages = await queue.receive(
                url, count_max=10, wait_s=20.0, visibility_s=self.budget.visibility_s
            )
            if messages:
                called = self._called(functions, url, messages)
                self._pollers[0].start(called, f"call for {url}")

    async def _sweep(self, functions: Deployed) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            self._pollers[0].start(self._called(functions, "", ()), "sweep")

    async def _called(self, functions: Deployed, url: str, messages: Sequence[Message]) -> None:
        """One call; a visit that dies finishes nothing."""
        name = url.rpartition("/")[2]
        arrivals = [Arrival(queue=name, message=message) for message in messages]
        stay = await self._visit(functions, arrivals)
        if stay is None:
            return
        handles = [one.receipt_handle for one in messages if one.id not in stay]
        await MemoryQueue(self.cloud, self.arrivals, self.clock).delete(url, handles)

    async def _visit(self, functions: Deployed, arrivals: list[Arrival]) -> list[str] | None:
        self.visits += 1
        session = f"visit-{self.visits}"
        nursery = self._visiting[session] = Nursery(session, strict=True)
        await nursery.__aenter__()
        fates = self.stream(f"{session}/fate")
        ended: asyncio.Future[list[str] | None] = asyncio.get_running_loop().create_future()
        work = partial(self._work, session, nursery, functions, arrivals)
        nursery.start(work(), "visit").add_done_callback(partial(_settle, ended))
        try:
            within_s = TIMEOUT_S
            if fates.random() < KILLED_RATE:
                within_s = fates.uniform(0.0, KILLED_S_MAX)
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    return await asyncio.shield(ended)
            return None
        finally:
            if ended.done() and not ended.cancelled() and ended.result() is not None:
                self._visiting.pop(session, None)
                await nursery.close()
            else:
                await self._kill(session)
            ended.cancel()

    async def _work(
        self, session: str, nursery: Nursery, functions: Deployed, arrivals: list[Arrival]
    ) -> list[str] | None:
        requester = self._new_requester(session)
        nursery.start_eternal(requester.beat(), "beat")
        ids = IdSource(f"{self.seed}/{session}")
        cloud, clock = self.cloud, self.clock
        visit = Visit(
            machine=OrchestratorMachine(budget=self.budget, session=session, ids=ids),
            queue=MemoryQueue(cloud, self.arrivals, clock, self.faults(session + "/sqs")),
            store=MemoryStore(cloud, self.bodies, clock, self.faults(session + "/s3")),
            functions=MemoryStarter(cloud, clock, self.faults(session + "/lambda")),
            **self.on_hosts(session),
            scheduler=requester,
            registry=functions,
            render=render,
            clock=clock,
            budget=self.budget,
            nursery=nursery,
            jitter=ids.stream("reconcile"),
        )
        try:
            await visit.begin()
            within_s = TIMEOUT_S - self.budget.drain_s - 1.0
            before = requester.disturbances
            stay = await visit.serve(arrivals, within_s=within_s, sweep=not arrivals)
            is_heard = requester.is_heard and requester.disturbances == before
            if visit.cut or not is_heard:  # what it handed back, or has adopted, may be lost
                self.checker.jobs.ended.add(session)
            if not arrivals:
                await visit.search()
            return stay
        except AppError:
            return None  # the scheduler is away: Lambda counts an error
        finally:
            requester.disconnect()


def _settle(ended: asyncio.Future[list[str] | None], task: asyncio.Task[list[str] | None]) -> None:
    if not ended.done():
        ended.set_result(None if task.cancelled() or task.exception() else task.result())
