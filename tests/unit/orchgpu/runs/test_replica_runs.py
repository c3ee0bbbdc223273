"""Runs on replicas over the memory adapters, on virtual time; functions are played by the test."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import zipfile
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from contract.claim import Claim
from contract.envelope import JOB_NAME, Job
from contract.keys import claim_key, parse_staging_key, result_key
from contract.result import Result
from contract.run import cancel_key, inputs_key, retry_key, run_id, run_result_key, step_job_id
from contract.states import StepState
from corekit.aio.clock import LoopClock
from corekit.aio.supervise import Nursery
from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.decode import decode_json, encode_json
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource
from corekit.values import replace
from gpu_scheduler.model import Request
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.promises import Slo
from local_cloud.model.cloud import Cloud
from local_cloud.model.s3.body import MemoryBodies
from orchgpu.core.function import Function
from orchgpu.core.machine import OrchestratorMachine
from orchgpu.core.routing import InputEvent
from orchgpu.core.runs.records import Retry, RunResult
from orchgpu.core.runs.workflow import Workflow, WorkflowStep
from orchgpu.ports import Tolerating
from orchgpu.replica.actions.run_facts import RunFacts
from orchgpu.replica.loops import Replica
from simulator.faults.checkers import Checker
from simulator.faults.memory_cloud import Arrivals, Faults, MemoryQueue, MemoryStarter, MemoryStore
from simulator.faults.requester import SimRequester
from simulator.faults.scheduler import SimScheduler
from simulator.faults.services import Deployed
from simulator.faults.tenant_usage import TenantUsage
from tests.unit.orchgpu.runs.run_world import BUCKET, step, workflow

#: What a function writes: names by its step and its envelope. None = it fails.
Plays = Callable[[Job], list[str] | None]
KEY = "in/film.mp4"


class Served(Deployed):
    """A registry with one workflow."""

    def __init__(self, flow: Workflow) -> None:
        super().__init__([function(one.name) for one in flow.steps])
        self._flow = flow

    def workflows(self) -> dict[str, Workflow]:
        return {self._flow.name: self._flow}


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
        nursery.start_eternal(self._functions(), "functions")

    async def replica(self, nursery: Nursery, faults: Faults | None = None) -> Replica:
        self.number += 1
        name, budget = f"replica-{self.number}", Budget()
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
            registry=Served(self.flow),
            render=lambda *_: {},
            clock=self.clock,
            budget=budget,
            nursery=nursery,
            jitter=random.Random(1),
        )
        await replica.start()
        return replica

    async def upload(self, key: str = KEY) -> str:
        """Store an input, and send S3's event of it. Returns the id of its run."""
        await self.store.put(BUCKET, key, b"film")
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


FILM = (step("cut"), step("small", "cut", each=True), step("table", "small"))


def parts(count: int, job: Job) -> list[str]:
    """`cut` writes the parts; each `small` one of its own; `table` one."""
    if job.function == "cut":
        return [f"{n}.part" for n in range(count)]
    return [f"{job.job_id}.out"] if job.function == "small" else ["table.csv"]


async def film_is_one_table(bench: Bench, run: str, count: int) -> None:
    result = await bench.end_of(run)
    assert result.state == "SUCCEEDED", result
    assert [file.key for file in result.files] == ["table/table.csv"]
    assert len(await bench.inputs(run, "table")) == count, "every part once"
    assert set(bench.commits.values()) == {1}
    assert len(bench.commits) == count + 2


def test_parts_become_one_table() -> None:
    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        await film_is_one_table(bench, await bench.upload(), 40)

    on_virtual_time(FILM, partial(parts, 40), test)


@pytest.mark.parametrize("seed", range(4))
def test_replicas_that_die_while_the_cloud_fails_make_one_table(seed: int) -> None:
    async def test(bench: Bench) -> None:
        stream = random.Random(seed)
        run = await bench.upload()
        bench.cloud.queues.get("films").send(  # its event comes twice
            bench.clock.wall_s(), json.dumps({"orchgpu": {"advance": {"run": run}}}), attributes={}
        )
        for _ in range(6):
            faults = Faults(rate=0.05, stream=random.Random(stream.random()), delay_s_max=0.05)

            async def live(weather: Faults = faults) -> None:
                async with Nursery("replica") as nursery:
                    await bench.replica(nursery, weather)
                    await asyncio.sleep(stream.uniform(0.1, 8.0))
                    raise TimeoutError  # killed: nothing is handed back

            with contextlib.suppress(AppError, TimeoutError):
                await live()
        await bench.replica(bench.nursery)
        await film_is_one_table(bench, run, 12)

    on_virtual_time(FILM, partial(parts, 12), test)


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.soak)])
def test_as_many_parts_as_a_step_may_have(count: int) -> None:
    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        await film_is_one_table(bench, await bench.upload(), count)

    on_virtual_time(FILM, partial(parts, count), test)


def test_two_readers_and_a_join_and_a_step_that_is_skipped() -> None:
    steps = (
        step("a"),
        step("l", "a"),
        step("r", "a"),
        step("again", "a", suffixes=(".unsure",)),
        step("join", "l", "r", "again"),
    )

    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        run = await bench.upload()
        result = await bench.end_of(run)
        states = {one.name: one.state.value for one in result.steps}
        assert states == {"a": "DONE", "l": "DONE", "r": "DONE", "again": "SKIPPED", "join": "DONE"}
        assert await bench.inputs(run, "join") == ["l/l.txt", "r/r.txt"]

    on_virtual_time(steps, lambda job: [f"{job.function}.txt"], test)


def test_a_failed_run_is_retried_and_keeps_what_is_done() -> None:
    repaired: list[bool] = []

    def plays(job: Job) -> list[str] | None:
        return None if job.function == "table" and not repaired else parts(3, job)

    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        run = await bench.upload()
        failed = await bench.end_of(run)
        assert (failed.state, failed.reason) == ("FAILED", "EXIT_NONZERO")
        repaired.append(True)
        retry = Retry(at_s=bench.clock.wall_s())
        await bench.store.put(BUCKET, retry_key(run, 1), retry.to_json(), if_absent=True)
        body = json.dumps({"orchgpu": {"advance": {"run": run}}})
        await bench.queue.send(bench.flow.queue_url, [body])
        result = await bench.end_of(run, retries=1)
        assert result.state == "SUCCEEDED"
        table = step_job_id(run, "table")
        assert bench.commits[table] == 2
        assert {count for job, count in bench.commits.items() if job != table} == {1}

    on_virtual_time(FILM, plays, test)


def test_a_cancel_ends_a_run_whose_function_never_ends() -> None:
    async def test(bench: Bench) -> None:
        bench.starting = False
        await bench.replica(bench.nursery)
        run = await bench.upload()
        await asyncio.sleep(20.0)
        cancel = encode_json({"at_s": bench.clock.wall_s()})
        await bench.store.put(BUCKET, cancel_key(run), cancel)
        body = json.dumps({"orchgpu": {"advance": {"run": run}}})
        await bench.queue.send(bench.flow.queue_url, [body])
        result = await bench.end_of(run)
        assert (result.state, result.reason) == ("CANCELLED", "CANCELLED_BY_USER")

    on_virtual_time(FILM, partial(parts, 3), test)


def test_a_replica_reads_again_what_a_retry_made_void() -> None:
    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        other = RunFacts(bench.store, bench.clock, lambda: {n: function(n) for n in names})
        run, cut = await bench.upload(), ""
        while not cut:
            await asyncio.sleep(0.01)
            seen = await other.fold(bench.flow, run, ())
            if seen is not None and seen[1].steps["cut"].state is StepState.DONE:
                assert not seen[0].stands, "the other replica sees the run before its end"
                cut = seen[1].steps["cut"].jobs[0].id
        await bench.end_of(run)
        retry = Retry(at_s=bench.clock.wall_s(), from_step="cut")
        await bench.store.put(BUCKET, retry_key(run, 1), retry.to_json(), if_absent=True)
        stored = await bench.store.get(BUCKET, result_key(cut), bytes_max=10**7)
        again = replace(decode_json(Result, stored.body or b""), ended_at_s=retry.at_s + 1.0)
        await bench.store.put(BUCKET, result_key(cut), again.to_json())
        seen = await other.fold(bench.flow, run, ())
        assert seen is not None
        assert seen[1].steps["cut"].state is StepState.DONE

    names = [one.name for one in FILM]
    on_virtual_time(FILM, partial(parts, 3), test)
