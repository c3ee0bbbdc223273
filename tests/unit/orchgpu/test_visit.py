"""Visits on virtual time: what they do with messages, and how they leave jobs."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

from corekit.aio.clock import LoopClock
from corekit.aio.supervise import Nursery
from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.ids import IdSource, JobId
from corekit.values import replace
from gpu_scheduler.model import Step
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.protocol import ops
from local_cloud.model.cloud import Cloud
from local_cloud.model.s3.body import MemoryBodies
from orchgpu.core.machine import OrchestratorMachine
from orchgpu.ports import Message
from orchgpu.replica.visit import Arrival, Visit
from simulator.faults.checkers import Checker
from simulator.faults.host import sim_devices
from simulator.faults.memory_cloud import Arrivals, MemoryQueue, MemoryStarter, MemoryStore
from simulator.faults.requester import SimRequester
from simulator.faults.scheduler import SimScheduler
from simulator.faults.tenant_usage import TenantUsage
from tests.unit.orchgpu.jobs import FUNCTION, body, s3_record
from tests.unit.orchgpu.test_replica import ChangingRegistry, HangingStore


class Bench:
    """A scheduler with declared devices that never come: every job waits."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.bodies = MemoryBodies()
        self.cloud = Cloud(ids=IdSource("cloud"), bodies=self.bodies, strict_policies=False)
        for suffix in ("jobs", "dlq", "done"):
            self.cloud.queues.create(0.0, f"search-{suffix}", {"VisibilityTimeout": "120"})
        for bucket in ("in", "mid", "out"):
            self.cloud.adopt_bucket(bucket, 0.0)
        self.arrivals = Arrivals(self.cloud)
        self.queue = MemoryQueue(self.cloud, self.arrivals, self.clock)
        self.store = MemoryStore(self.cloud, self.bodies, self.clock)
        declared = sim_devices("declared", 1, 1024)
        checker = Checker(TenantUsage())
        self.scheduler = SimScheduler(
            Budget(), self.clock, checker, "visits", Parameters(), declared
        )
        self.woken: list[str] = []
        self.scheduler.waker = lambda action: self.woken.append(action.holder)
        self.scheduler.start()
        self.visits = 0
        self.function = FUNCTION

    async def visit(
        self, *arrivals: Arrival, within_s: float = 49.0, sweep: bool = False
    ) -> list[str]:
        self.visits += 1
        session = f"visit-{self.visits}"
        async with Nursery(session) as nursery:
            requester = self.requester(session)
            nursery.start_eternal(requester.beat(), "beat")
            visit = Visit(
                machine=OrchestratorMachine(
                    budget=Budget(), session=session, ids=IdSource(session)
                ),
                queue=self.queue,
                store=self.store,
                functions=MemoryStarter(self.cloud, self.clock),
                scheduler=requester,
                registry=ChangingRegistry(self.function),
                render=lambda *_: {},
                clock=self.clock,
                budget=Budget(),
                nursery=nursery,
                jitter=random.Random(1),
            )
            await visit.begin()
            stay = await visit.serve(arrivals, within_s=within_s, sweep=sweep)
            if sweep:
                await visit.search()
        requester.disconnect()
        return stay

    def requester(self, session: str) -> SimRequester:
        return SimRequester(
            self.scheduler, session, Budget(), random.Random(1), delay_s_max=0.001, loss_rate=0.0
        )

    async def upload(self) -> Arrival:
        """One input, and its message as a mapping hands it over."""
        await self.store.put("in", "a", b"input")
        etag = (await self.store.head("in", "a")).etag
        queue = self.cloud.queues.get("search-jobs")
        queue.send(self.clock.wall_s(), body(s3_record("a", None, eTag=etag)))
        return self.received("search-jobs")

    def received(self, name: str) -> Arrival:
        (one,) = self.cloud.queues.get(name).receive(self.clock.wall_s())
        return Arrival(
            queue=name, message=Message(id=one.id, receipt_handle=one.handle, body=one.body)
        )

    def hidden_s(self) -> float:
        """How long the job's message stays hidden."""
        visible_s = self.cloud.queues.get("search-jobs").next_visible_at_s()
        assert visible_s is not None
        return visible_s - self.clock.wall_s()

    @property
    def records(self) -> list[tuple[Step, str | None]]:
        records = self.scheduler.machine.state.records.values()
        return [(record.step, record.owner) for record in records]

    @property
    def job(self) -> str:
        return next(iter(self.scheduler.machine.state.records))


def played(story: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        await story(Bench())

    run_virtual(main())


def wake(job: str) -> str:
    return json.dumps({"orchgpu": {"wake": {"job": job}}})


def message_of(queue: str, text: str) -> Arrival:
    return Arrival(queue=queue, message=Message(id="m", receipt_handle="h", body=text))


def test_a_job_that_waits_is_left_within_seconds() -> None:
    async def story(bench: Bench) -> None:
        arrival = await bench.upload()
        began_s = bench.clock.monotonic_s()
        assert await bench.visit(arrival) == [arrival.message.id]
        assert bench.clock.monotonic_s() - began_s < 1.0
        assert bench.records == [(Step.WAITING, "away:search-done")]
        assert 800.0 < bench.hidden_s() <= Budget().away_s

    played(story)


def test_a_wake_up_takes_the_job_up_and_leaves_it_again() -> None:
    async def story(bench: Bench) -> None:
        await bench.visit(await bench.upload())
        revision = bench.scheduler.machine.state.records[JobId(bench.job)].revision
        assert await bench.visit(message_of("search-done", wake(bench.job))) == []
        record = bench.scheduler.machine.state.records[JobId(bench.job)]
        assert (record.owner, record.revision) == ("away:search-done", revision + 2)

    played(story)


def test_a_wake_up_for_a_job_with_a_live_owner_is_spent() -> None:
    async def story(bench: Bench) -> None:
        await bench.visit(await bench.upload())
        record = bench.scheduler.machine.state.records[JobId(bench.job)]
        await bench.requester("other").ask(
            ops.Adopt(holder=record.holder, revision=record.revision)
        )
        assert await bench.visit(message_of("search-done", wake(bench.job))) == []
        assert bench.records == [(Step.WAITING, "other")]

    played(story)


def test_a_notice_about_a_job_with_a_live_owner_comes_again() -> None:
    """A result: the owner may be about to leave, and would not hear of it."""

    async def story(bench: Bench) -> None:
        await bench.visit(await bench.upload())
        record = bench.scheduler.machine.state.records[JobId(bench.job)]
        await bench.requester("other").ask(
            ops.Adopt(holder=record.holder, revision=record.revision)
        )
        text = body(s3_record(f"results/{bench.job}.json", "v"))
        notice = message_of("search-done", text)
        assert await bench.visit(notice) == ["m"]

    played(story)


def test_a_message_of_an_unknown_queue_stays() -> None:
    async def story(bench: Bench) -> None:
        assert await bench.visit(message_of("foreign", "{}")) == ["m"]

    played(story)


def test_the_sweep_takes_jobs_without_an_owner() -> None:
    async def story(bench: Bench) -> None:
        await bench.visit(await bench.upload())
        record = bench.scheduler.machine.state.records[JobId(bench.job)]
        dead = bench.requester("dead")
        await dead.ask(ops.Adopt(holder=record.holder, revision=record.revision))
        revision = bench.scheduler.machine.state.records[record.holder].revision
        await dead.ask(ops.HandBack(holder=record.holder, revision=revision))
        assert bench.records == [(Step.RECEIVED, None)]
        assert await bench.visit(sweep=True) == []
        assert bench.records == [(Step.WAITING, "away:search-done")]

    played(story)


def test_a_visit_ends_in_time_when_the_store_does_not_answer() -> None:
    async def story(bench: Bench) -> None:
        arrival = await bench.upload()
        hanging = HangingStore(bench.cloud, bench.bodies, bench.clock)
        hanging.hangs, bench.store = True, hanging
        began_s = bench.clock.monotonic_s()
        assert await bench.visit(arrival, within_s=20.0) == [arrival.message.id]
        assert bench.clock.monotonic_s() - began_s <= 20.0 + Budget().drain_s
        counts = bench.cloud.queues.get("search-jobs").counts(bench.clock.wall_s())
        assert (counts.visible, counts.in_flight) == (1, 0)

    played(story)


class SlowLists(MemoryStore):
    """S3 that lists a page in a minute."""

    async def versions(self, *arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(60.0)
        return await super().versions(*arguments, **options)


def test_a_search_has_the_time_that_the_messages_left() -> None:
    async def story(bench: Bench) -> None:
        bench.store = SlowLists(bench.cloud, bench.bodies, bench.clock)
        bench.function = replace(FUNCTION, deployed_at_s=1.0)
        began_s = bench.clock.monotonic_s()
        await bench.visit(within_s=20.0, sweep=True)
        assert 19.0 < bench.clock.monotonic_s() - began_s < 21.0

    played(story)
