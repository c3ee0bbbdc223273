"""The end of a job of a step, as the replica that ended the job lets its run continue."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from contract.run import run_key
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from orchgpu.core.actions import AdvanceRun
from orchgpu.core.runs.messages import advance_body
from orchgpu.ports import Message
from orchgpu.replica.runs import Runs
from simulator.faults.memory_cloud import MemoryQueue, MemoryStore
from simulator.faults.requester import SimRequester
from tests.unit.orchgpu.runs.run_bench import Bench, function, on_virtual_time
from tests.unit.orchgpu.runs.run_world import BUCKET, step

STEPS = (step("a"), step("b", "a"))


class Heard(MemoryQueue):
    """A queue that keeps what was sent."""

    sent: tuple[str, ...] = ()

    async def send(self, queue_url: str, bodies: Sequence[str], *, traceparent: str = "") -> None:
        self.sent += tuple(bodies)
        await super().send(queue_url, bodies, traceparent=traceparent)


class OnePoll(MemoryQueue):
    """A queue whose first receive gets everything, when it may."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.cloud, bench.arrivals, bench.clock)
        self.may = asyncio.Event()
        self._polls = 0

    async def receive(self, queue_url: str, **how: Any) -> Sequence[Message]:
        self._polls += 1
        await (self.may if self._polls == 1 else asyncio.Event()).wait()
        return await super().receive(queue_url, **how)


class Cut(MemoryStore):
    """A store that can be made unreachable."""

    reachable = True

    async def etags(self, bucket: str, prefix: str) -> Mapping[str, str]:
        if not self.reachable:
            raise AppError(ErrorCode.UNAVAILABLE, "the store does not answer")
        return await super().etags(bucket, prefix)


def runs_of(bench: Bench, queue: MemoryQueue, store: MemoryStore) -> Runs:
    requester = SimRequester(
        bench.scheduler, "one", bench.budget, random.Random(1), delay_s_max=0.001, loss_rate=0.0
    )
    runs = Runs(
        queue=queue,
        store=store,
        scheduler=requester,
        clock=bench.clock,
        budget=bench.budget,
        nursery=bench.nursery,
        functions=lambda: {one.name: function(one.name) for one in STEPS},
        finished=lambda _end: None,
        notified=lambda *_: None,
    )
    runs.load({bench.flow.name: bench.flow})
    return runs


def test_the_end_of_a_job_is_folded_here_and_sent_only_when_that_failed() -> None:
    async def test(bench: Bench) -> None:
        queue = Heard(bench.cloud, bench.arrivals, bench.clock)
        store = Cut(bench.cloud, bench.bodies, bench.clock)
        runs = runs_of(bench, queue, store)
        body = advance_body(await bench.upload(), "a", "j" + "0" * 24, "SUCCEEDED")
        word = AdvanceRun(workflow=bench.flow.name, body=body)
        await runs.advance(word)
        assert body not in queue.sent
        store.reachable = False
        await runs.advance(word)
        assert queue.sent.count(body) == 1
        await runs.advance(AdvanceRun(workflow="undeployed", body=body))
        assert queue.sent.count(body) == 1

    on_virtual_time(STEPS, lambda _job: [], test)


def test_a_message_that_comes_after_a_deploy_is_handled_by_the_new_workflow() -> None:
    async def test(bench: Bench) -> None:
        queue = OnePoll(bench)
        runs = runs_of(bench, queue, bench.store)
        await asyncio.sleep(1.0)  # the receive of the first deploy is under way
        runs.load({bench.flow.name: replace(bench.flow, deadline_s=77.0)})
        run = await bench.upload()
        queue.may.set()
        await asyncio.sleep(1.0)
        stored = await bench.store.get(BUCKET, run_key(run), bytes_max=1 << 20)
        assert json.loads(stored.body or b"")["workflow"]["deadline_s"] == 77.0

    on_virtual_time(STEPS, lambda _job: [], test)
