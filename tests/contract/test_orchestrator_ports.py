"""One suite for the orchestrator's queue and store: in memory, on the embedded cloud, on moto, and
on SeaweedFS with PostgreSQL."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import time
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from aiohttp import web

from corekit.aio.clock import SystemClock
from corekit.aio.http_server import listening
from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import QueueResource
from local_cloud.model.cloud import Cloud
from local_cloud.model.functions.functions import FunctionSettings
from local_cloud.model.s3.body import MemoryBodies
from orchgpu.adapters.aws.clients import open_cloud
from orchgpu.adapters.own import clients as own_clients
from orchgpu.adapters.own.database import Database, conninfo
from orchgpu.adapters.own.settings import queues_address
from orchgpu.adapters.own.tables import Queues
from orchgpu.core.batch import BatchRun, run_name
from orchgpu.core.function import BatchPlace
from orchgpu.core.reconcile import Cursor
from orchgpu.ports import (
    BatchQueue,
    FunctionCredentials,
    FunctionStarter,
    JobQueue,
    Message,
    ObjectStore,
)
from remote_gpu.wire.runs import BatchOrder, Package
from simulator.faults.memory_cloud import (
    Arrivals,
    MemoryQueue,
    MemoryStarter,
    MemoryStore,
)
from simulator.faults.runs_on_hosts import MemoryCredentials
from tests.contract.moto_gaps import MOTO_GAPS
from tests.memory_batch import MemoryBatch
from tests.own_cloud import own_cloud

LOCAL = {
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "local",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@dataclass
class World:
    queue: JobQueue
    store: ObjectStore
    functions: FunctionStarter
    credentials: FunctionCredentials
    batch: BatchQueue | None
    url: str
    bucket: str
    function: str = ""  #: as a start names it; "" = as the bucket
    unknown: str = "no-such-function"


def _start(command: list[str], ready: Path) -> tuple[subprocess.Popen[bytes], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--ready-file", str(ready)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(600):
        if ready.exists():
            return process, str(json.loads(ready.read_text())["endpoint"])
        assert process.poll() is None, f"{command} died"
        time.sleep(0.05)
    raise AssertionError(f"{command} was not ready")


@pytest.fixture(scope="module", params=["memory", "embedded", "moto", "own"])
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Mapping[str, str]]:
    """The variables by which a program uses the cloud; {} = in memory."""
    if request.param == "memory":
        yield {}
        return
    if request.param == "own":
        with own_cloud() as cloud:
            yield cloud.environment
        return
    folder = tmp_path_factory.mktemp(request.param)
    command = (
        ["local_cloud.server", "--listen", "127.0.0.1:0", "--state", str(folder / "state")]
        if request.param == "embedded"
        else ["orchgpu.local.moto", "--listen", "127.0.0.1:0"]
    )
    process, url = _start(command, folder / "ready.json")
    yield {**LOCAL, "AWS_ENDPOINT_URL": url}
    process.terminate()
    process.wait(20)


@asynccontextmanager
async def world(endpoint: Mapping[str, str], name: str) -> AsyncIterator[World]:
    if not endpoint:
        clock, bodies = SystemClock(), MemoryBodies()
        cloud = Cloud(bodies=bodies)
        cloud.create_bucket(clock.wall_s(), name)
        cloud.bucket(name).set_versioning("Enabled")
        cloud.queues.create(clock.wall_s(), name, {})
        queue = MemoryQueue(cloud, Arrivals(cloud), clock)
        cloud.functions.create(clock.wall_s(), FunctionSettings(name=name))
        store, starter = MemoryStore(cloud, bodies, clock), MemoryStarter(cloud, clock)
        credentials, batch = MemoryCredentials(clock), MemoryBatch(cloud.batch, clock)
        yield World(queue, store, starter, credentials, batch, f"memory/{name}", name)
        return
    s3 = boto3.Session().client("s3")  # the common session keeps the keys of another cloud
    s3.create_bucket(Bucket=name)
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    if "ORCHGPU_QUEUES" in endpoint:
        make_queue(name)
        async with own_clients.open_cloud() as own, one_service() as url:
            assert own.credentials is not None
            ports = own.queue, own.store, own.functions, own.credentials, None
            yield World(*ports, name, name, f"{url}/one", f"{url}/none")
        return
    url = boto3.client("sqs").create_queue(QueueName=name)["QueueUrl"]
    make_function(name)
    async with open_cloud() as aws:
        assert aws.credentials is not None
        yield World(aws.queue, aws.store, aws.functions, aws.credentials, aws.batch, url, name)


@asynccontextmanager
async def one_service() -> AsyncIterator[str]:
    """The address of a gateway with one function, which takes every event."""

    async def take(_: web.Request) -> web.Response:
        return web.Response(status=202)

    gateway = web.Application()
    gateway.router.add_post("/one", take)
    async with listening(gateway, "127.0.0.1:0", "events") as bound:
        yield f"http://{bound}"


def make_queue(name: str) -> None:
    with closing(Database(conninfo(queues_address()))) as database:
        Queues(database).put(QueueResource(name=name, retention_s=60, visibility_s=30))


def make_function(name: str) -> None:
    """moto wants a role that IAM has made, the embedded cloud any."""
    role = boto3.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument="{}")
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("f.py", "def handle(event, context): pass")
    boto3.client("lambda").create_function(
        FunctionName=name,
        Role=role["Role"]["Arn"],
        Handler="f.handle",
        Runtime="python3.12",
        Code={"ZipFile": zipped.getvalue()},
    )


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

Case = Callable[[World], Awaitable[None]]


async def put_and_get(w: World) -> None:
    await w.store.put(w.bucket, "a b+%ü.txt", b"one")
    found = await w.store.get(w.bucket, "a b+%ü.txt", bytes_max=100)
    assert (found.body, found.size) == (b"one", 3)
    assert found.version_id
    assert found.etag
    assert '"' not in found.etag


async def large_bodies_stay_where_they_are(w: World) -> None:
    await w.store.put(w.bucket, "large", b"x" * 1000)
    found = await w.store.get(w.bucket, "large", bytes_max=999)
    assert (found.body, found.size) == (None, 1000)


async def versions_are_pinned(w: World) -> None:
    await w.store.put(w.bucket, "k", b"old")
    old = await w.store.get(w.bucket, "k", bytes_max=10)
    await w.store.put(w.bucket, "k", b"new")
    again = await w.store.get(w.bucket, "k", version_id=old.version_id, bytes_max=10)
    assert again.body == b"old"


async def what_is_not_there_is_not_found(w: World) -> None:
    for bucket, key, version in ((w.bucket, "none", None), ("no-such-bucket-here", "k", None)):
        with pytest.raises(AppError) as caught:
            await w.store.get(bucket, key, version_id=version, bytes_max=1)
        assert caught.value.code is ErrorCode.NOT_FOUND


async def an_etag_condition_that_fails_is_a_conflict(w: World) -> None:
    await w.store.put(w.bucket, "c", b"1")
    with pytest.raises(AppError) as caught:
        await w.store.get(w.bucket, "c", if_match="0" * 32, bytes_max=1)
    assert caught.value.code is ErrorCode.CONFLICT


async def only_the_first_conditional_write_wins(w: World) -> None:
    await w.store.put(w.bucket, "once", b"1", if_absent=True)
    with pytest.raises(AppError) as caught:
        await w.store.put(w.bucket, "once", b"2", if_absent=True)
    assert caught.value.code is ErrorCode.CONFLICT
    found = await w.store.get(w.bucket, "once", bytes_max=1)
    assert found.body == b"1"
    await w.store.put(w.bucket, "once", b"3", if_match=found.etag)
    with pytest.raises(AppError) as caught:
        await w.store.put(w.bucket, "once", b"4", if_match=found.etag)
    assert caught.value.code is ErrorCode.CONFLICT


async def a_head_is_of_what_was_written_last(w: World) -> None:
    for body in (b"first", b"second one"):
        await w.store.put(w.bucket, "headed", body)
        found, got = (
            await w.store.head(w.bucket, "headed"),
            await w.store.get(w.bucket, "headed", bytes_max=20),
        )
        assert (found.etag, found.size, found.body) == (got.etag, len(body), None)
    with pytest.raises(AppError) as caught:
        await w.store.head(w.bucket, "never")
    assert caught.value.code is ErrorCode.NOT_FOUND


async def keys_are_listed_by_prefix_with_what_was_written(w: World) -> None:
    for name in ("p/b", "p/a", "q/c"):
        await w.store.put(w.bucket, name, b"")
    before = await w.store.etags(w.bucket, "p/")
    await w.store.put(w.bucket, "p/b", b"new")
    after = await w.store.etags(w.bucket, "p/")
    assert sorted(before) == sorted(after) == ["p/a", "p/b"]
    assert (before["p/a"] == after["p/a"], before["p/b"] == after["p/b"]) == (True, False)
    assert after["p/b"] == (await w.store.head(w.bucket, "p/b")).etag, (
        "etags of all reads are alike"
    )


async def messages_travel_and_are_deleted(w: World) -> None:
    await w.queue.send(w.url, [f"m{n}" for n in range(12)])
    seen: dict[str, str] = {}
    while len(seen) < 12:
        for message in await w.queue.receive(w.url, count_max=10, wait_s=1, visibility_s=30):
            seen[message.body] = message.receipt_handle
    await w.queue.delete(w.url, list(seen.values()))
    await w.queue.delete(w.url, [seen["m0"]])  # again: no error
    assert not await w.queue.receive(w.url, count_max=10, wait_s=0, visibility_s=1)


async def a_message_carries_its_trace_context_and_the_time_it_was_sent(w: World) -> None:
    before_s = time.time()
    for traceparent in ("", TRACE):
        await w.queue.send(w.url, [traceparent or "none"], traceparent=traceparent)
    seen: dict[str, Message] = {}
    while len(seen) < 2:
        for one in await w.queue.receive(w.url, count_max=10, wait_s=1, visibility_s=30):
            seen[one.body] = one
    assert {body: one.traceparent for body, one in seen.items()} == {"none": "", TRACE: TRACE}
    for one in seen.values():
        assert one.sent_at_s is not None
        assert before_s - 1 <= one.sent_at_s <= time.time() + 1
    await w.queue.delete(w.url, [one.receipt_handle for one in seen.values()])


async def visibility_zero_gives_back(w: World) -> None:
    await w.queue.send(w.url, ["again"])
    (first,) = await w.queue.receive(w.url, count_max=1, wait_s=1, visibility_s=30)
    assert not await w.queue.receive(w.url, count_max=1, wait_s=0, visibility_s=30)
    await w.queue.set_visibility(w.url, [first.receipt_handle], 0)
    (second,) = await w.queue.receive(w.url, count_max=1, wait_s=1, visibility_s=30)
    assert second.body == "again"
    await w.queue.delete(w.url, [second.receipt_handle])
    await w.queue.set_visibility(w.url, [second.receipt_handle], 10)  # gone: skipped


async def a_long_poll_wakes_at_once(w: World) -> None:
    waiting = asyncio.ensure_future(w.queue.receive(w.url, count_max=1, wait_s=10, visibility_s=5))
    await asyncio.sleep(0.1)
    await w.queue.send(w.url, ["wake"])
    async with asyncio.timeout(5):
        (message,) = await waiting
    await w.queue.delete(w.url, [message.receipt_handle])


async def parked_polls_delay_no_other_call(w: World) -> None:
    """A message is kept invisible while every queue of a hundred functions is polled twice."""
    await w.queue.send(w.url, ["held"])
    (held,) = await w.queue.receive(w.url, count_max=1, wait_s=5, visibility_s=30)
    polls = [
        asyncio.ensure_future(w.queue.receive(w.url, count_max=1, wait_s=20, visibility_s=5))
        for _ in range(210)
    ]
    await asyncio.sleep(0)
    beat = asyncio.ensure_future(w.queue.set_visibility(w.url, [held.receipt_handle], 60))
    done, _ = await asyncio.wait([beat, *polls], return_when=asyncio.FIRST_COMPLETED)
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    assert done == {beat}


async def an_event_is_accepted_by_a_function_that_exists(w: World) -> None:
    for _ in range(2):  # an answer may be lost
        await w.functions.start(w.function or w.bucket, json.dumps({"Records": []}))


async def the_concurrency_of_the_account_is_known(w: World) -> None:
    assert await w.functions.unreserved() in (64, 1000), "of a local cloud, and of an account"


async def an_event_of_an_unknown_function_is_refused(w: World) -> None:
    with pytest.raises(AppError) as caught:
        await w.functions.start(w.unknown, "{}")
    assert caught.value.code is ErrorCode.NOT_FOUND


async def credentials_are_temporary_and_each_call_issues_others(w: World) -> None:
    role = "arn:aws:iam::000000000000:role/orchgpu-of-hosts"
    first, second = [await w.credentials.issue(role, "job-1") for _ in range(2)]
    assert first.variables["AWS_ACCESS_KEY_ID"] != second.variables["AWS_ACCESS_KEY_ID"]
    assert first.ends_s > time.time()


async def what_is_deleted_is_not_there(w: World) -> None:
    await w.store.put(w.bucket, "gone", b"secret")
    await w.store.delete(w.bucket, "gone")
    await w.store.delete(w.bucket, "gone")
    with pytest.raises(AppError) as caught:
        await w.store.get(w.bucket, "gone", bytes_max=10)
    assert caught.value.code is ErrorCode.NOT_FOUND
    await w.store.put(w.bucket, "gone", b"again", if_absent=True)
    assert (await w.store.get(w.bucket, "gone", bytes_max=10)).body == b"again"


async def every_version_of_a_prefix_is_listed(w: World) -> None:
    for key, body in (("v/a b+ü", b"1"), ("v/a b+ü", b"22"), ("v/b", b"333"), ("w", b"")):
        await w.store.put(w.bucket, key, body)
    await w.store.delete(w.bucket, "v/b")  # its marker is left out
    page = await w.store.versions(w.bucket, "v/")
    assert page.after is None
    assert sorted((one.key, one.size) for one in page.versions) == [
        ("v/a b+ü", 1),
        ("v/a b+ü", 2),
        ("v/b", 3),
    ]
    for one in page.versions:
        same = await w.store.get(w.bucket, one.key, version_id=one.version_id, bytes_max=9)
        dated_s = datetime.fromisoformat(same.last_modified).timestamp()
        assert (same.etag, same.size, dated_s) == (one.etag, one.size, int(one.modified_s))


async def a_listing_of_versions_continues_at_a_cursor(w: World) -> None:
    for key, body in (("k", b"1"), ("k", b"2"), ("l", b"3")):
        await w.store.put(w.bucket, key, body)
    newest, oldest, other = (await w.store.versions(w.bucket, "")).versions
    after = Cursor(key="k", version_id=newest.version_id or "")
    assert (await w.store.versions(w.bucket, "", after=after)).versions == (oldest, other)
    with pytest.raises(AppError) as caught:
        await w.store.versions("no-such-bucket-here", "")
    assert caught.value.code is ErrorCode.NOT_FOUND


async def a_backlog_is_of_messages_that_nobody_received(w: World) -> None:
    assert await w.queue.backlog(w.url) == 0
    await w.queue.send(w.url, ["a", "b"])
    assert await w.queue.backlog(w.url) == 2
    (one,) = await w.queue.receive(w.url, count_max=1, wait_s=1, visibility_s=30)
    assert await w.queue.backlog(w.url) == 1
    await w.queue.delete(w.url, [one.receipt_handle])


async def an_unknown_queue_is_not_found(w: World) -> None:
    with pytest.raises(AppError) as caught:
        await w.queue.send(w.url + "-unknown", ["x"])
    assert caught.value.code is ErrorCode.NOT_FOUND


PLACE = BatchPlace(queue="gpus", definition="fold:3")
ORDER = BatchOrder(
    function="f",
    job="j1",
    attempt=2,
    event="{}",
    timeout_s=30.0,
    memory_mib=512,
    package=Package(bucket="no-such-bucket-here", key="p.zip", sha256="0" * 64),
)


async def runs_in_batch_are_found_by_their_name_and_ended(w: World) -> None:
    batch, name = w.batch, run_name("j1", 1)
    assert batch is not None
    assert await batch.runs("gpus", name) == ()
    for _ in range(2):
        await batch.submit(PLACE, name, ORDER)  # a repetition is another run
    await batch.submit(PLACE, run_name("j1", 11), ORDER)
    two = await batch.runs("gpus", name)
    assert len({run.id for run in two}) == 2
    assert await batch.runs("others", name) == ()
    for run in two:
        await batch.end(run.id, "not wanted")

    async def ended() -> tuple[BatchRun, ...]:
        while True:
            found = await batch.runs("gpus", name)
            if all(run.over for run in found):
                return found
            await asyncio.sleep(0.05)

    found = await asyncio.wait_for(ended(), 60)
    assert {run.state for run in found} == {"FAILED"}
    assert all("not wanted" in run.why for run in found)
    await batch.end(found[0].id, "again")  # and one that is not known
    await batch.end("no-such-run", "again")


CASES = [
    runs_in_batch_are_found_by_their_name_and_ended,
    put_and_get,
    large_bodies_stay_where_they_are,
    versions_are_pinned,
    what_is_not_there_is_not_found,
    an_etag_condition_that_fails_is_a_conflict,
    only_the_first_conditional_write_wins,
    keys_are_listed_by_prefix_with_what_was_written,
    a_head_is_of_what_was_written_last,
    messages_travel_and_are_deleted,
    a_message_carries_its_trace_context_and_the_time_it_was_sent,
    visibility_zero_gives_back,
    a_long_poll_wakes_at_once,
    parked_polls_delay_no_other_call,
    an_event_is_accepted_by_a_function_that_exists,
    the_concurrency_of_the_account_is_known,
    an_event_of_an_unknown_function_is_refused,
    credentials_are_temporary_and_each_call_issues_others,
    what_is_deleted_is_not_there,
    every_version_of_a_prefix_is_listed,
    a_listing_of_versions_continues_at_a_cursor,
    a_backlog_is_of_messages_that_nobody_received,
    an_unknown_queue_is_not_found,
]
OF_AWS_ALONE = (
    the_concurrency_of_the_account_is_known,
    credentials_are_temporary_and_each_call_issues_others,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_port(
    case: Case,
    endpoint: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if case in OF_AWS_ALONE and "ORCHGPU_QUEUES" in endpoint:
        pytest.skip(
            "own hosts have neither an account nor STS: tests/integration/test_own_cloud.py"
        )
    no_batch = "ORCHGPU_QUEUES" in endpoint or "moto" in request.node.name
    if case is runs_in_batch_are_found_by_their_name_and_ended and no_batch:
        pytest.skip("own hosts have no Batch, and moto's needs Docker")
    if case is an_event_of_an_unknown_function_is_refused and "moto" in request.node.name:
        reason = MOTO_GAPS["test_unknown_functions_cannot_be_invoked"]
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    for name, value in (endpoint or {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}).items():
        monkeypatch.setenv(name, value)
    name = case.__name__.replace("_", "-")

    async def run() -> None:
        async with world(endpoint, name) as made:
            await case(made)

    asyncio.run(run())
