"""Replicas over a memory cloud and the scheduler core, on virtual time; functions that play."""

from __future__ import annotations

import asyncio
import io
import json
import random
import zipfile
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from contract.claim import Claim
from contract.envelope import JOB_NAME, Job
from contract.keys import claim_key, parse_staging_key, result_key
from contract.result import Result
from contract.run import (
    inputs_key,
    run_id,
    run_result_key,
)
from corekit.aio.clock import LoopClock
from corekit.aio.supervise import Nursery
from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.decode import decode_json
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource
from corekit.tracing.span import Tracer
from corekit.values import replace
from gpu_scheduler.model import Request
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.promises import Slo
from local_cloud.model.cloud import Cloud
from local_cloud.model.s3.body import MemoryBodies
from local_cloud.model.s3.object_version import Attributes
from orchgpu.core.function import Function
from orchgpu.core.machine import OrchestratorMachine
from orchgpu.core.notify import Target
from orchgpu.core.routing import InputEvent
from orchgpu.core.runs.records import RunResult
from orchgpu.core.runs.workflow import Workflow, WorkflowStep
from orchgpu.ports import NoticeSender, Tolerating
from orchgpu.replica.loops import Replica
from simulator.faults.checkers import Checker
from simulator.faults.memory_cloud import Arrivals, Faults, MemoryQueue, MemoryStarter, MemoryStore
from simulator.faults.requester import SimRequester
from simulator.faults.scheduler import SimScheduler
from simulator.faults.services import Deployed
from simulator.faults.tenant_usage import TenantUsage
from tests.unit.orchgpu.runs.run_world import BUCKET, workflow

#: What a function writes: names by its step and its envelope. None = it fails.
Plays = Callable[[Job], list[str] | None]
KEY = "in/film.mp4"


class Served(Deployed):
    """A registry with one workflow."""

    def __init__(self, flow: Workflow, notify: tuple[Target, ...] = ()) -> None:
        """`notify`: the targets of every step's jobs."""
        super().__init__([replace(function(one.name), notify=notify) for one in flow.steps])
        self._flow = flow

    def workflows(self) -> dict[str, Workflow]:
        return {self._flow.name: self._flow}

    def remove(self, name: str) -> None:
        """As `orchgpu rm` of a function does, whose workflow is still there."""
        del self._functions[name]


def function(name: str) -> Function:
    return Function(
        name=name,
        revision="1",
        queue_url=f"http://sqs/{name}",
        dead_letter_url=f"http://sqs/{name}-dead",
        completion_url=f"http://sqs/{name}-done",
        input_bucket=BUCKET,
        intermediate_bucket=BUCKET,
        request=Request(count=0),
        attempts_max=1,
        concurrency_max=200,
    )


class Bench:
    """A cloud, a scheduler, replicas that can be killed, and functions."""

    def __init__(
        self,
        nursery: Nursery,
        steps: tuple[WorkflowStep, ...],
        plays: Plays,
        slo: Slo | None = None,
        policy: str = "fifo",
    ) -> None:
        self.nursery, self.clock, self.plays = nursery, LoopClock(), plays
        self.flow = workflow(*steps, slo=slo)
        self.registry = Served(self.flow)
        self.bodies = MemoryBodies()
        self.cloud = Cloud(ids=IdSource("cloud"), bodies=self.bodies, strict_policies=False)
        self.cloud.adopt_bucket(BUCKET, self.clock.wall_s())
        urls = [self.flow.queue_url, self.flow.dead_letter_url]
        for one in self.flow.steps:
            of = function(one.name)
            urls += [of.queue_url, of.dead_letter_url, of.completion_url]
        for url in urls:
            self.cloud.queues.create(0.0, url.rsplit("/", 1)[-1], {})
        self.arrivals = Arrivals(self.cloud)
        self.store = MemoryStore(self.cloud, self.bodies, self.clock)
        self.queue = MemoryQueue(self.cloud, self.arrivals, self.clock)
        self.scheduler = SimScheduler(
            Budget(), self.clock, Checker(TenantUsage()), "replica", Parameters(policy=policy)
        )
        self.scheduler.start()
        self.commits: Counter[str] = Counter()
        self.number = 0
        self.starting = True  #: False: no function starts
        self.notify: tuple[Target, ...] = ()  #: the targets of jobs
        self.notices: NoticeSender | None = None
        self.budget = Budget()
        nursery.start_eternal(self._functions(), "functions")

    async def replica(
        self, nursery: Nursery, faults: Faults | None = None, tracer: Tracer | None = None
    ) -> Replica:
        self.number += 1
        if self.notify or self.flow.notify:
            self.registry = Served(self.flow, self.notify)
        name, budget = f"replica-{self.number}", self.budget
        requester = SimRequester(
            self.scheduler, name, budget, random.Random(1), delay_s_max=0.001, loss_rate=0.0
        )
        nursery.start_eternal(requester.beat(), "beat")
        replica = Replica(
            machine=OrchestratorMachine(budget=budget, session=name, ids=IdSource(name)),
            queue=MemoryQueue(self.cloud, self.arrivals, self.clock, faults),
            store=MemoryStore(self.cloud, self.bodies, self.clock, faults),
            functions=MemoryStarter(self.cloud, self.clock),
            scheduler=requester,
            registry=self.registry,
            render=lambda *_: {},
            clock=self.clock,
            budget=budget,
            nursery=nursery,
            jitter=random.Random(1),
            tracer=tracer,
            notices=self.notices,
        )
        await replica.start()
        return replica

    async def upload(self, key: str = KEY, metadata: Mapping[str, str] | None = None) -> str:
        """Store an input, and send S3's event of it. Returns the id of its run."""
        attributes = Attributes(metadata=metadata or {})
        content = self.bodies.add(b"film")
        self.cloud.put_object(self.clock.wall_s(), BUCKET, key, content, attributes)
        found = await self.store.head(BUCKET, key)
        event = InputEvent(
            bucket=BUCKET,
            key=key,
            version_id=found.version_id,
            etag=found.etag,
            size=found.size,
            event_name="ObjectCreated:Put",
            event_time=found.last_modified,
        )
        await self.queue.send(self.flow.queue_url, [json.dumps(event.as_s3_event())])
        version = found.version_id or f"{found.etag}@{found.last_modified}"
        return run_id(BUCKET, key, version, self.flow.name)

    async def _functions(self) -> None:
        """Each envelope starts a function, as S3's event and Invoke do."""
        ran: set[str] = set()
        while True:
            for key in await self.store.etags(BUCKET, "staging/"):
                staging = parse_staging_key(key)
                if staging is not None and key not in ran and self.starting:
                    ran.add(key)
                    await self._runs(key)
            await asyncio.sleep(0.05)

    async def _runs(self, key: str) -> None:
        stored = await self.store.get(BUCKET, key, bytes_max=10**7)
        with zipfile.ZipFile(io.BytesIO(stored.body or b"")) as archive:
            job = Job.from_json(archive.read(JOB_NAME))
        now_s = self.clock.wall_s()
        claim = Claim(
            job_id=job.job_id, attempt=job.attempt, request="r", claimed_at_s=now_s, ends_at_s=now_s
        )
        try:
            body = claim.to_json()
            await self.store.put(BUCKET, claim_key(job.job_id, job.attempt), body, if_absent=True)
        except AppError:
            return  # it was closed
        names = self.plays(job)
        files = [await self._file(job, name) for name in names or ()]
        result = Result(
            job_id=job.job_id,
            state="FAILED" if names is None else "SUCCEEDED",
            reason="NONE" if names is not None else "EXIT_NONZERO",
            attempt=job.attempt,
            nonce="n",
            exit_code=0,
            files=files,
            times={},
            log_tail="",
            ended_at_s=self.clock.wall_s(),
        )
        key, etag = result_key(job.job_id), job.replace_etag
        with Tolerating(ErrorCode.CONFLICT):
            await self.store.put(
                BUCKET, key, result.to_json(), if_absent=etag is None, if_match=etag
            )
            await self._committed(job)

    async def _committed(self, job: Job) -> None:
        self.commits[job.job_id] += 1
        record = {"s3": {"bucket": {"name": BUCKET}, "object": {"key": result_key(job.job_id)}}}
        url = function(job.function).completion_url
        await self.queue.send(url, [json.dumps({"Records": [record]})])

    async def _file(self, job: Job, name: str) -> dict[str, object]:
        key = f"{job.function}/{name}"
        await self.store.put(BUCKET, key, job.job_id.encode())
        found = await self.store.head(BUCKET, key)
        return {"bucket": BUCKET, "key": key, "size": found.size, "etag": found.etag}

    async def end_of(self, run: str, retries: int = 0, within_s: float = 3600.0) -> RunResult:
        """The end of a run, and of its messages."""
        async with asyncio.timeout(within_s):
            while True:
                await asyncio.sleep(0.5)
                try:
                    stored = await self.store.get(BUCKET, run_result_key(run), bytes_max=10**7)
                except AppError:
                    continue
                result = decode_json(RunResult, stored.body or b"")
                if result.retries >= retries and not self.messages():
                    return result

    def messages(self) -> int:
        """In every queue but those of dead letters, hidden ones too."""
        now_s = self.clock.wall_s()
        urls = [self.flow.queue_url, *(function(one.name).queue_url for one in self.flow.steps)]
        counts = [self.cloud.queues.get(url.rsplit("/", 1)[-1]).counts(now_s) for url in urls]
        return sum(one.visible + one.in_flight + one.delayed for one in counts)

    async def inputs(self, run: str, name: str) -> list[str]:
        stored = await self.store.get(BUCKET, inputs_key(run, name), bytes_max=10**7)
        return [file["key"] for file in json.loads(stored.body or b"")["files"]]


def on_virtual_time(
    steps: tuple[WorkflowStep, ...],
    plays: Plays,
    test: Callable[[Bench], Awaitable[None]],
    slo: Slo | None = None,
    policy: str = "fifo",
) -> None:
    async def main() -> None:
        async with Nursery("test") as nursery:
            await test(Bench(nursery, steps, plays, slo, policy))

    run_virtual(main())
