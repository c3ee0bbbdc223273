"""One replica on virtual time: what it does when its function is deployed again or taken away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from corekit.aio.clock import LoopClock
from corekit.aio.supervise import Nursery
from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.decode import encode
from corekit.ids import IdSource, JobId
from corekit.tracing.context import TraceContext, parse_traceparent
from corekit.tracing.span import Tracer
from corekit.values import replace
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.core import events as on
from gpu_scheduler.model import Request
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.protocol import ops
from local_cloud.model.cloud import Cloud
from local_cloud.model.s3.body import MemoryBodies
from orchgpu.adapters.scheduler import SchedulerAdapter
from orchgpu.core import actions as do
from orchgpu.core.function import Function
from orchgpu.core.job import Job, Phase
from orchgpu.core.machine import OrchestratorMachine
from orchgpu.core.routing import InputEvent
from orchgpu.core.runs.workflow import Workflow
from orchgpu.ports import TRACEPARENT, CloudPorts, Message
from orchgpu.replica.actions.performer import Performer
from orchgpu.replica.app import report_account
from orchgpu.replica.loops import Replica
from simulator.faults.checkers import Checker
from simulator.faults.memory_cloud import Arrivals, Faults, MemoryQueue, MemoryStarter, MemoryStore
from simulator.faults.requester import SimRequester
from simulator.faults.scheduler import SimScheduler
from simulator.faults.tenant_usage import TenantUsage
from tests.tracing import Recorder
from tests.unit.orchgpu.jobs import FUNCTION, body, s3_record

INPUT = InputEvent(
    bucket="in", key="a", version_id="v", etag="e", size=1, event_name="", event_time=""
)
#: A receive takes this long to come back once it has a message, as the network would.
ANSWER_S = 1.0


class SlowQueue(MemoryQueue):
    """The memory queue at the end of a slow wire: what was received is hidden while it travels."""

    async def receive(
        self, queue_url: str, *, count_max: int, wait_s: float, visibility_s: float
    ) -> Sequence[Message]:
        found = await super().receive(
            queue_url, count_max=count_max, wait_s=wait_s, visibility_s=visibility_s
        )
        await asyncio.sleep(ANSWER_S)
        return found


class ChangingRegistry:
    """What is deployed, as the test says."""

    def __init__(self, function: Function) -> None:
        self.deployed = {function.name: function}
        self.flows: dict[str, Workflow] = {}

    async def functions(self) -> dict[str, Function]:
        return dict(self.deployed)

    def workflows(self) -> dict[str, Workflow]:
        return dict(self.flows)


class Bench:
    """A replica, the cloud it works on, and no host: every job it takes is refused at once."""

    def __init__(
        self,
        nursery: Nursery,
        parameters: Parameters | None = None,
        tracer: Tracer | None = None,
        budget: Budget | None = None,
        store: type[MemoryStore] = MemoryStore,
        scheduler_kind: type[SimScheduler] = SimScheduler,
    ) -> None:
        self.clock = LoopClock()
        budget = budget or Budget()
        self.bodies = MemoryBodies()
        self.cloud = Cloud(ids=IdSource("cloud"), bodies=self.bodies, strict_policies=False)
        for suffix in ("jobs", "dlq", "done"):
            self.cloud.queues.create(0.0, f"search-{suffix}", {})
        self.registry = ChangingRegistry(FUNCTION)
        self.scheduler = scheduler = scheduler_kind(
            budget, self.clock, Checker(TenantUsage()), "replica", parameters or Parameters()
        )
        scheduler.start()
        requester = SimRequester(
            scheduler, "me", budget, random.Random(1), delay_s_max=0.001, loss_rate=0.0
        )
        nursery.start_eternal(requester.beat(), "beat")
        self.requester = requester
        self.arrivals = Arrivals(self.cloud)
        queue = SlowQueue(self.cloud, self.arrivals, self.clock)
        self.store: Any = store(self.cloud, self.bodies, self.clock)
        self.machine = machine = OrchestratorMachine(
            budget=budget, session="me", ids=IdSource("me")
        )
        self.replica = Replica(
            machine=machine,
            queue=queue,
            store=self.store,
            functions=MemoryStarter(self.cloud, self.clock),
            scheduler=requester,
            registry=self.registry,
            render=lambda *_: {},
            clock=self.clock,
            budget=budget,
            nursery=nursery,
            jitter=random.Random(1),
            tracer=tracer,
        )

    def junk(self) -> None:
        """A message that is quarantined as soon as anybody handles it."""
        queue = self.cloud.queues.get("search-jobs")
        queue.send(self.clock.wall_s(), "no event")
        self.arrivals.arrived(queue)

    async def upload(self, count: int, traceparent: str = "") -> None:
        """So many inputs, and the message of each."""
        for bucket in ("in", "mid", "out"):
            self.cloud.adopt_bucket(bucket, self.clock.wall_s())
        queue = self.cloud.queues.get("search-jobs")
        for n in range(count):
            await self.store.put("in", f"a{n}", b"input")
            known = (await self.store.head("in", f"a{n}")).etag
            record = s3_record(f"a{n}", None, eTag=known)
            attribute = {"DataType": "String", "StringValue": traceparent}
            attributes = {TRACEPARENT: attribute} if traceparent else {}
            queue.send(self.clock.wall_s(), body(record), attributes=attributes)
        self.arrivals.arrived(queue)

    def count(self, queue: str) -> tuple[int, int]:
        """Visible and hidden messages."""
        counts = self.cloud.queues.get(f"search-{queue}").counts(self.clock.wall_s())
        return counts.visible, counts.in_flight


def played(story: Callable[[Bench], Awaitable[None]], **made: Any) -> None:
    """A story of one replica that is not started yet, on virtual time."""

    async def main() -> None:
        async with Nursery("test") as nursery:
            await story(Bench(nursery, **made))

    run_virtual(main())


def test_a_throttled_function_pauses_leases_ahead_at_the_scheduler() -> None:
    async def story(bench: Bench) -> None:
        await asyncio.sleep(1.0)  # it is connected
        other: Any = None  # of no use here
        performer = Performer(
            queue=other,
            store=bench.store,
            functions=other,
            orders=other,
            scheduler=bench.requester,
            timers=other,
            render=other,
            clock=bench.clock,
            budget=Budget(),
            advance=other,
        )
        work = performer.perform(do.ReportThrottled(job="j", pause_s=60.0))
        assert work is not None
        assert await work is None
        [account] = bench.scheduler.machine.state.function_accounts.values()
        assert account.paused_until_s == pytest.approx(bench.clock.monotonic_s() + 60.0, abs=0.1)

    played(story)


def test_floors_are_declared_again_to_a_new_scheduler_and_end_with_their_function() -> None:
    async def story(bench: Bench) -> None:
        request = Request(memory_mib=100, workload="w", tenant="lab")
        kept = replace(FUNCTION, request=request, warm_min=2)
        bench.registry.deployed = {kept.name: kept}
        poll_s = 2 * Budget().registry_poll_s
        await bench.replica.start()
        await asyncio.sleep(poll_s)
        assert bench.scheduler.machine.state.floors.wanted() == {("lab", "w"): kept.floor}
        bench.scheduler.kill()
        bench.scheduler.start()
        await asyncio.sleep(poll_s)
        assert bench.scheduler.machine.state.floors.wanted() == {("lab", "w"): kept.floor}
        bench.registry.deployed = {}
        await asyncio.sleep(2 * poll_s)
        assert bench.scheduler.machine.state.floors.wanted() == {}
        await bench.replica.drain()

    played(story)


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_floor_that_cannot_be_kept_ends_no_other_one_and_is_logged_once(
    caplog: pytest.LogCaptureFixture, is_refused: bool
) -> None:
    async def story(bench: Bench) -> None:
        request = Request(memory_mib=100, workload="w", tenant="lab")
        kept = replace(FUNCTION, request=request, warm_min=2)
        bad = replace(kept, name="bad", request=replace(request, count=2))
        await bench.replica.start()
        if is_refused:
            await bench.requester.ask(ops.SetParameter(name="rate_per_s", value=0.01))
        bench.registry.deployed = {"bad": bad, kept.name: kept}
        await asyncio.sleep(20 * Budget().registry_poll_s)
        floors = {} if is_refused else {("lab", "w"): kept.floor}
        assert bench.scheduler.machine.state.floors.wanted() == floors
        await bench.replica.drain()

    played(story)
    noted = [one.getMessage() for one in caplog.records if "kept warm" in one.getMessage()]
    expected = ["function bad is not kept warm: warm_min is for functions with one device"]
    assert noted[:1] == expected
    assert len(noted) == 1 + is_refused
    assert is_refused is ("no function is kept warm" in noted[-1])


class OfOneTenant(SimScheduler):
    """Its callers have a key that is bound to the tenant `lab`."""

    def tell(self, event: on.Event) -> None:
        if isinstance(event, on.Asked) and isinstance(event.op, ops.KeepWarm):
            tenants = [one.request.tenant for one in event.op.floors]
            denied = {n: "for lab only" for n, one in enumerate(tenants) if one != "lab"}
            event = replace(event, denied=denied)
        super().tell(event)


def test_a_floor_that_the_key_may_not_declare_ends_no_other_one_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(bench: Bench) -> None:
        request = Request(memory_mib=100, workload="w", tenant="lab")
        kept = replace(FUNCTION, request=request, warm_min=2)
        other = replace(kept, name="other", request=replace(request, tenant="x"))
        bench.registry.deployed = {"other": other, kept.name: kept}
        await bench.replica.start()
        await asyncio.sleep(20 * Budget().registry_poll_s)
        state = bench.scheduler.machine.state
        assert state.floors.wanted() == {("lab", "w"): kept.floor}
        assert [one.why for one in state.floors.refused()] == ["for lab only"]
        await bench.replica.drain()

    played(story, scheduler_kind=OfOneTenant)
    noted = [one.getMessage() for one in caplog.records if "kept warm" in one.getMessage()]
    assert noted == ["workload w (tenant x) is not kept warm: for lab only"]


def test_the_limit_of_an_account_is_read_again_a_minute_after_a_failure() -> None:
    async def story() -> None:
        faults = Faults(rate=1.0)
        unused: Any = None
        functions = MemoryStarter(Cloud(bodies=MemoryBodies()), LoopClock(), faults)
        cloud = CloudPorts(
            queue=unused, store=unused, functions=functions, state_bucket="s", account="A"
        )
        client = SchedulerClient("unused:1")
        reporting = asyncio.ensure_future(
            report_account(cloud, SchedulerAdapter(client, asyncio.Queue()))
        )
        await asyncio.sleep(1.0)
        faults.rate = 0.0
        assert client.beat == ops.Beat(account="A")
        await asyncio.sleep(60.0)
        assert client.beat == ops.Beat(account="A", ahead_max=250), "a quarter of the usual limit"
        reporting.cancel()

    run_virtual(story())


@pytest.mark.parametrize("after_s", [0.2, 2.5])
def test_a_message_received_while_its_function_is_deployed_again_is_handled_at_once(
    after_s: float,
) -> None:
    async def story(bench: Bench) -> None:
        await bench.replica.start()
        await asyncio.sleep(5.0 - after_s)
        bench.registry.deployed = {"search": replace(FUNCTION, revision="2")}
        await asyncio.sleep(after_s)  # seen by the next look at the registry, or just now
        bench.junk()
        await asyncio.sleep(6 * ANSWER_S)
        assert bench.count("dlq") == (1, 0)
        assert bench.count("jobs") == (0, 0)

    played(story)


def test_a_message_of_a_function_that_was_taken_away_is_given_back() -> None:
    async def story(bench: Bench) -> None:
        await bench.replica.start()
        await asyncio.sleep(5.0)
        bench.registry.deployed = {}
        await asyncio.sleep(2.5)
        bench.junk()
        await asyncio.sleep(3 * ANSWER_S)
        assert bench.count("jobs") == (1, 0)

    played(story)


class HangingStore(MemoryStore):
    """S3 accepts calls and answers none."""

    hangs = False

    async def get(self, *arguments: Any, **options: Any) -> Any:
        if self.hangs:
            await asyncio.Event().wait()
        return await super().get(*arguments, **options)

    async def head(self, *arguments: Any, **options: Any) -> Any:
        if self.hangs:
            await asyncio.Event().wait()
        return await super().head(*arguments, **options)


def test_a_drain_ends_in_time_when_the_store_does_not_answer() -> None:
    async def story(bench: Bench) -> None:
        await bench.replica.start()
        await bench.upload(2)
        bench.store.hangs = True
        await asyncio.sleep(30.0)
        assert bench.count("jobs") == (0, 2)
        began_s = bench.clock.monotonic_s()
        await bench.replica.drain()
        assert bench.clock.monotonic_s() - began_s < Budget().drain_s
        assert bench.count("jobs") == (2, 0)

    played(story, store=HangingStore)


def test_no_job_is_received_beyond_what_may_be_in_hand_at_once() -> None:
    async def story(bench: Bench) -> None:
        bench.registry.deployed = {"search": replace(FUNCTION, concurrency_max=1)}
        await bench.replica.start()
        await asyncio.sleep(3.0)  # its scheduler is there
        bench.machine.jobs["running"] = Job(
            id="running",
            function=FUNCTION,
            input=INPUT,
            receipt_handles={},
            received_at_s=0.0,
            phase=Phase.RUNNING,
        )
        await asyncio.sleep(25.0)  # a receive that was under way has come back
        bench.junk()
        await asyncio.sleep(30.0)
        assert bench.count("jobs") == (1, 0)
        del bench.machine.jobs["running"]
        await asyncio.sleep(10.0)  # the next look at the registry is the latest reason to look
        assert (bench.count("jobs"), bench.count("dlq")) == ((0, 0), (1, 0))

    played(story)


def test_jobs_without_a_device_are_limited_without_being_asked_for() -> None:
    """Nothing else holds them back: Lambda would throttle what it has no room for."""

    async def story(bench: Bench) -> None:
        without = replace(FUNCTION, request=Request(count=0))
        bench.registry.deployed = {"search": without}
        await bench.replica.start()
        await asyncio.sleep(3.0)
        room = bench.replica._room(without)
        assert room == Budget().jobs_without_device_max
        bench.machine.jobs["running"] = Job(
            id="running",
            function=without,
            input=INPUT,
            receipt_handles={},
            received_at_s=0.0,
            phase=Phase.RUNNING,
        )
        assert bench.replica._room(without) == room - 1
        limited = replace(without, concurrency_max=1)
        assert bench.replica._room(limited) == 0

    played(story)


def finished(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The jobs with a line of the log for their end."""
    lines = [line.__dict__ for line in caplog.records]
    return [line["job"] for line in lines if line.get("event") == "job_finished"]


def test_every_job_that_ends_here_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def story(bench: Bench) -> None:
        await bench.replica.start()
        await bench.upload(2)  # into a bucket without versions: their ids are known later
        await asyncio.sleep(30.0)
        assert bench.count("dlq") == (2, 0)

    with caplog.at_level("INFO"):
        played(story)
    assert len(set(finished(caplog))) == len(finished(caplog)) == 2


def test_an_adopted_job_is_a_line_of_the_log_as_well(caplog: pytest.LogCaptureFixture) -> None:
    async def story(bench: Bench) -> None:
        await bench.upload(0)
        payload = {"function": "search", "input": encode(INPUT)}
        dead = SimRequester(
            bench.scheduler, "dead", Budget(), random.Random(2), delay_s_max=0.0, loss_rate=0.0
        )
        await dead.ask(
            ops.Attempt(
                holder=JobId("j-left"),
                n=1,
                revision=0,
                handle="h",
                block=payload,
                request=FUNCTION.request,
            )
        )
        await bench.replica.start()
        await asyncio.sleep(60.0)

    with caplog.at_level("INFO"):
        played(story)
    assert finished(caplog) == ["j-left"]


SENDER = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True)


def refused_job(traceparent: str) -> tuple[Recorder, str]:
    """The spans of a job that is refused, and the context that its dead letter carries."""
    recorder, letters = Recorder(), []

    async def story(bench: Bench) -> None:
        await bench.replica.start()
        await bench.upload(1, traceparent)
        await asyncio.sleep(30.0)
        assert bench.count("dlq") == (1, 0)
        dead = bench.cloud.queues.get("search-dlq")
        letters.extend(dead.receive(bench.clock.wall_s(), count_max=1, visibility_s=1))

    played(story, tracer=recorder)
    (letter,) = letters
    return recorder, letter.attributes[TRACEPARENT]["StringValue"]


def test_a_job_continues_the_trace_of_its_sender_and_its_letter_carries_it() -> None:
    recorder, carried = refused_job(SENDER.header)
    spans = recorder.by_name()
    root = spans["job"]
    assert root.context.trace_id == SENDER.trace_id
    assert root.parent == SENDER
    assert root.error == root.attributes["orchgpu.reason"] == "IMPOSSIBLE"
    assert parse_traceparent(carried) == root.context
    for name in ("job.queue", "job.finish", "attempt"):
        assert spans[name].parent == root.context
        assert root.start_s <= spans[name].start_s <= spans[name].end_s <= root.end_s


def test_a_context_that_is_not_valid_is_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder, carried = refused_job("00-nonsense")
    root = recorder.by_name()["job"]
    assert root.parent is None
    assert parse_traceparent(carried) == root.context
    assert "traceparent '00-nonsense' is not valid" in caplog.text
