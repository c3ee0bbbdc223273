"""Functions are started by Invoke once; whatever fails is left to the envelope's event."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from contract.keys import parse_staging_key, staging_key
from corekit.aio.clock import LoopClock
from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from gpu_scheduler.model import GrantedLease
from local_cloud.model.cloud import Cloud
from local_cloud.model.functions.functions import FunctionSettings
from orchgpu.core import actions as do
from orchgpu.core.completion import read_completion
from orchgpu.core.function import BatchPlace, HostRun
from orchgpu.ports import Credentials
from orchgpu.replica.actions.starting import (
    INVOKED,
    DirectStarts,
    HostStarts,
    batch_order_of,
    payload_of,
)
from remote_gpu.wire.runs import BATCH_VARIABLE, BatchOrder, Package, RunOrder
from simulator.faults.memory_cloud import MemoryStarter
from tests.memory_batch import MemoryBatch
from tests.unit.orchgpu.jobs import FUNCTION, JOB, NOW, granted

KEY = staging_key(FUNCTION.name, JOB, 1, 7)
BUDGET = Budget()


class Lambda:
    """A `FunctionStarter` with a given answer, which counts its calls."""

    def __init__(self, answer: Callable[[], Awaitable[None]]) -> None:
        self.answer = answer
        self.calls: list[tuple[str, str]] = []

    async def start(self, function: str, payload: str) -> None:
        self.calls.append((function, payload))
        await self.answer()

    async def unreserved(self) -> int:
        return 1000


async def accept() -> None:
    return


async def refuse() -> None:
    await asyncio.sleep(0)
    raise AppError(ErrorCode.EXHAUSTED, "lambda:Invoke search: TooManyRequestsException: Rate")


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_the_record_is_that_of_the_event_with_a_source_of_its_own() -> None:
    events = Lambda(accept)
    run_virtual(DirectStarts(events, LoopClock(), BUDGET).start(FUNCTION, KEY))
    ((name, payload),) = events.calls
    assert (name, payload) == (FUNCTION.name, payload_of(FUNCTION, KEY))
    (record,) = json.loads(payload)["Records"]
    assert record["eventSource"] == INVOKED
    assert record["s3"]["bucket"]["name"] == FUNCTION.intermediate_bucket
    assert parse_staging_key(record["s3"]["object"]["key"]) is not None


def test_lambdas_failure_record_of_such_a_start_names_the_attempt() -> None:
    failure = {
        "requestContext": {"condition": "RetriesExhausted"},
        "requestPayload": json.loads(payload_of(FUNCTION, KEY)),
        "responsePayload": {"errorType": "Runtime.ExitError", "errorMessage": "exit status 1"},
    }
    (notice,) = read_completion(json.dumps(failure), FUNCTION, NOW)
    assert isinstance(notice, do.RecordFunctionFailure)
    assert (notice.job, notice.attempt) == (JOB, 1)


@pytest.mark.parametrize(
    "function",
    [replace(FUNCTION, start="event"), replace(FUNCTION, object_bucket="out", object_key="{job}")],
)
def test_events_alone_start_what_shall_not_be_invoked(function: Any) -> None:
    events = Lambda(accept)
    run_virtual(DirectStarts(events, LoopClock(), BUDGET).start(function, KEY))
    assert events.calls == []


def test_a_failure_pauses_the_calls_of_its_function_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    events = Lambda(refuse)

    async def story() -> list[int]:
        starts = DirectStarts(events, LoopClock(), BUDGET)
        counts = []
        for pause_s in (0.0, BUDGET.retry_base_s - 0.1, 0.2, 2 * BUDGET.retry_base_s - 0.1, 0.2):
            await asyncio.sleep(pause_s)
            await asyncio.gather(*(starts.start(FUNCTION, KEY) for _ in range(3)))
            counts.append(len(events.calls))
        other = replace(FUNCTION, name="other")
        await starts.start(other, KEY)
        counts.append(len(events.calls))
        events.answer = accept
        await asyncio.sleep(BUDGET.retry_s_max)
        await starts.start(FUNCTION, KEY)
        return counts

    # calls that were under way when the first failed are not held back
    assert run_virtual(story()) == [3, 3, 6, 6, 9, 10]
    found = messages(caplog)
    assert [line.split(":")[0] for line in found] == [
        "search cannot be started by Invoke; events of its envelopes start it",
        "other cannot be started by Invoke; events of its envelopes start it",
        "search is started by Invoke again",
    ]
    assert "TooManyRequestsException" in found[0]


def test_a_call_without_an_answer_delays_no_attempt(caplog: pytest.LogCaptureFixture) -> None:
    async def hang() -> None:
        await asyncio.sleep(3600)

    async def story() -> float:
        starts = DirectStarts(Lambda(hang), LoopClock(), BUDGET)
        began_s = asyncio.get_running_loop().time()
        await starts.start(FUNCTION, KEY)
        return asyncio.get_running_loop().time() - began_s

    assert run_virtual(story()) == pytest.approx(BUDGET.invoke_s)
    assert messages(caplog)[0].endswith("no answer in 2 s")


def test_a_function_that_does_not_exist_is_not_an_error_of_the_job() -> None:
    cloud = Cloud()

    async def story() -> int:
        clock = LoopClock()
        starts = DirectStarts(MemoryStarter(cloud, clock), clock, BUDGET)
        await starts.start(FUNCTION, KEY)
        made = cloud.functions.create(clock.wall_s(), FunctionSettings(name=FUNCTION.name))
        await starts.start(FUNCTION, KEY)  # still within the pause
        paused = made.invocations.waiting()
        await asyncio.sleep(BUDGET.retry_base_s)
        await starts.start(FUNCTION, KEY)
        return made.invocations.waiting() - paused

    assert run_virtual(story()) == 1


# ---------------------------------------------------------------------- on a host


class Hosts:
    """A `RunStarter`, and `FunctionCredentials` that last for a given time."""

    def __init__(self, lasts_s: float) -> None:
        self.lasts_s = lasts_s
        self.orders: list[RunOrder] = []
        self.issued: list[tuple[str, str]] = []

    async def issue(self, role: str, name: str) -> Credentials:
        self.issued.append((role, name))
        ends_s = LoopClock().wall_s() + self.lasts_s if self.lasts_s else 0.0
        return Credentials(variables={"AWS_REGION": "us-east-1"}, ends_s=ends_s)

    async def start(self, granted: GrantedLease, order: RunOrder) -> bool:
        assert granted.lease.shares
        self.orders.append(order)
        return True


RUN = HostRun(
    package_bucket="state",
    package_key="packages/p.zip",
    process={"ORCHGPU_MODE": "job"},
    role="arn:aws:iam::123456789012:role/f",
    log_group="/aws/lambda/search",
    image="registry/tool@sha256:1",
    command=("tool", "-v"),
    network=True,
)
ORDER = do.OrderRun(
    job=JOB,
    attempt=2,
    function=replace(
        FUNCTION, execution="auto", host=RUN, package_sha256="ab" * 32, memory_mib=2048
    ),
    granted=granted(2),
    form="tar.gz",
)


PLACE = BatchPlace(queue="q", definition="d")
IN_BATCH = replace(
    ORDER,
    function=replace(ORDER.function, host=replace(RUN, batch=PLACE)),
    granted=None,
    form="zip",
)
READ = do.ReadRuns(job=JOB, attempt=2, function=IN_BATCH.function)
END = do.EndRuns(job=JOB, attempt=2, function=IN_BATCH.function)


def test_a_run_is_submitted_to_batch_once() -> None:
    cloud = Cloud()
    starts = HostStarts(None, None, LoopClock(), MemoryBatch(cloud.batch, LoopClock()))

    async def ordered() -> None:
        for _ in range(2):  # the answer to the first may be lost
            assert await starts.order(IN_BATCH) is None
        assert await starts.in_batch(READ) == (found := await starts.in_batch(READ))
        assert found is not None
        assert [run.state for run in found] == ["SUBMITTED"]
        await starts.end_in_batch(END)
        ended = await starts.in_batch(READ)
        assert ended is not None
        assert [(run.over, run.why) for run in ended] == [
            (True, (f"{JOB}: its attempt 2 is over",))
        ]

    run_virtual(ordered())
    (job,) = cloud.batch.listed("q", f"{JOB}-2")
    order = BatchOrder.from_json(job.variables[BATCH_VARIABLE])
    assert order.event == payload_of(FUNCTION, staging_key(FUNCTION.name, JOB, 2, 0))
    assert (order.function, order.timeout_s, order.memory_mib) == (FUNCTION.name, 300.0, 2048)
    assert order.package == Package(bucket="state", key="packages/p.zip", sha256="ab" * 32)
    assert order.variables == {"ORCHGPU_MODE": "job"}


def test_a_deploy_meanwhile_hides_no_run_of_batchs() -> None:
    cloud = Cloud()
    starts = HostStarts(None, None, LoopClock(), MemoryBatch(cloud.batch, LoopClock()))
    moved = replace(FUNCTION, host=replace(RUN, batch=replace(PLACE, queue="other")))
    old = replace(IN_BATCH, queue="q")

    async def ordered() -> None:
        await starts.order(old)
        for function in (moved, replace(FUNCTION, host=None)):
            await starts.order(replace(old, function=function))  # it finds the first one's run
            found = await starts.in_batch(replace(READ, function=function, queue="q"))
            assert found is not None
            await starts.end_in_batch(replace(END, function=function, queue="q", keep=found[0].id))
            assert await starts.in_batch(replace(READ, queue="q")) == found, "kept"
        for name, function in (("a", moved), ("b", replace(FUNCTION, host=None))):
            await starts.order(replace(old, job=name, function=function))

    with pytest.raises(AppError, match="it was deployed again, without Batch, after this attempt"):
        run_virtual(ordered())
    assert len(cloud.batch.listed("q", "a-2")) == 1


def test_an_order_for_batch_is_as_short_as_its_characters() -> None:
    host = replace(RUN, batch=PLACE, process={"V": 100 * "ä"})
    order = batch_order_of(replace(IN_BATCH, function=replace(ORDER.function, host=host)), host)
    assert order.variables["V"] in order.to_json()


def test_a_cloud_without_batch_is_named(caplog: pytest.LogCaptureFixture) -> None:
    starts = HostStarts(None, None, LoopClock())
    why = f"{FUNCTION.name} cannot run in Batch: this cloud has none"
    with pytest.raises(AppError, match=why):
        run_virtual(starts.order(IN_BATCH))
    for _ in range(2):  # one line while it does not answer
        assert run_virtual(starts.in_batch(READ)) is None
    run_virtual(starts.end_in_batch(END))
    assert [why in text for text in messages(caplog)] == [True, True]


@pytest.mark.parametrize(("lasts_s", "again_in_s"), [(3600.0, 1800.0), (0.5, 1.0), (0.0, None)])
def test_an_order_has_credentials_of_its_functions_role(
    lasts_s: float, again_in_s: float | None
) -> None:
    hosts = Hosts(lasts_s)
    found = run_virtual(HostStarts(hosts, hosts, LoopClock()).order(ORDER))
    assert found == pytest.approx(again_in_s)
    assert hosts.issued == [("arn:aws:iam::123456789012:role/f", f"{JOB}-2")]
    (order,) = hosts.orders
    assert RunOrder.from_meta(json.loads(json.dumps(order.to_meta()))) == order
    key = staging_key(FUNCTION.name, JOB, 2, 7, "tar.gz")
    assert order.event == payload_of(FUNCTION, key)
    assert (order.function, order.job, order.attempt) == (FUNCTION.name, JOB, 2)
    assert (order.timeout_s, order.memory_mib) == (300.0, 2048)
    assert order.package == Package(bucket="state", key="packages/p.zip", sha256="ab" * 32)
    assert (order.variables, order.aws) == ({"ORCHGPU_MODE": "job"}, {"AWS_REGION": "us-east-1"})
    assert (order.log_group, order.network) == ("/aws/lambda/search", True)
    assert (order.image, order.command) == ("registry/tool@sha256:1", ("tool", "-v"))


def test_an_order_after_a_deploy_for_lambda_names_the_reason() -> None:
    order = replace(ORDER, function=replace(ORDER.function, execution="lambda", host=None))
    hosts = Hosts(0.0)
    with pytest.raises(AppError, match="it was deployed again, for Lambda alone"):
        run_virtual(HostStarts(hosts, hosts, LoopClock()).order(order))


def test_a_cloud_without_roles_runs_nothing_on_hosts() -> None:
    with pytest.raises(AppError, match="cannot run on a host: this cloud has no roles"):
        run_virtual(HostStarts(Hosts(0.0), None, LoopClock()).order(ORDER))


@pytest.mark.parametrize(("holds", "fence"), [(granted(2), 7), (None, 0)])
def test_a_service_gets_what_invoke_carries(holds: GrantedLease | None, fence: int) -> None:
    services, url = Lambda(accept), "http://fn.default.example/f"
    function = replace(ORDER.function, execution="lambda", host=replace(RUN, service=url))
    order = replace(ORDER, function=function, granted=holds, form="zip")
    starts = HostStarts(None, None, LoopClock(), services=services)
    assert run_virtual(starts.order(order)) is None
    payload = payload_of(FUNCTION, staging_key(FUNCTION.name, JOB, 2, fence))
    assert services.calls == [(url, payload)]
    with pytest.raises(AppError, match=f"cannot run at {url}: this cloud has no services"):
        run_virtual(HostStarts(None, None, LoopClock()).order(order))
