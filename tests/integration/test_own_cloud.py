"""A cloud of own hosts: deploy to it, its queues beyond the contract, and the store's webhook."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from aiohttp import ClientSession

from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import QueueResource
from orchgpu.adapters.aws.api import AwsClient
from orchgpu.adapters.own.clients import open_cloud
from orchgpu.adapters.own.database import Database, conninfo
from orchgpu.adapters.own.events import events_of
from orchgpu.adapters.own.probe import judge
from orchgpu.adapters.own.settings import EVENTS_VARIABLE, TOKEN_VARIABLE
from orchgpu.adapters.own.tables import Queues
from orchgpu.adapters.own.trying import try_store
from orchgpu.local.ports import fixed_address
from orchgpu.ports import CloudPorts, Message
from tests.commandline import Done, done
from tests.own_cloud import OwnCloud, own_cloud

FDL = """\
functions:
  aws:
  - lambda:
      name: {name}
      memory: 256
      init_script: run.sh
      output: [{{path: {name}-out/tsv}}]
    execution: {execution}
    gpu: {{memory: 1GiB, kinds: [cpu]}}
    job: {{input: {{path: {name}-in/queries, suffix: [.fa]}}}}
"""
EVENTS = fixed_address()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnCloud]:
    token = tmp_path_factory.mktemp("token") / "token"
    url = f"http://{EVENTS}/v1/events/store"
    with own_cloud("--events", url, "--token-file", str(token)) as cloud:
        yield cloud


@pytest.fixture
def own(running: OwnCloud, monkeypatch: pytest.MonkeyPatch) -> OwnCloud:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    return running


class Bench:
    """A folder with a script, and the commands as a user gives them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = folder / "run.sh"
        script.write_text("#!/bin/sh\ntrue\n")
        script.chmod(0o755)

    def write(self, name: str, execution: str = "host") -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(FDL.format(name=name, execution=execution))
        return path

    def run(self, *arguments: str | Path, status: int = 0) -> Done:
        result = done([str(a) for a in arguments], "")
        assert result.exit_code == status, result.output
        return result


@pytest.fixture
def bench(own: OwnCloud, tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# ---------------------------------------------------------------------- deploy


def test_a_function_is_deployed_once_and_removed(bench: Bench) -> None:
    file = bench.write("reads")
    planned = bench.run("plan", file, status=2).output
    for absent in ("function reads", "role", "permission", "invoke-config"):
        assert absent not in planned
    assert "the store does not check the owner" in planned
    assert "reads: deployed" in bench.run("deploy", file).output
    assert "plan: nothing to do" in bench.run("plan", file).output
    assert "reads: already deployed" in bench.run("deploy", file).output
    with closing(boto3.Session().client("s3")) as s3:
        s3.put_object(Bucket="reads-out", Key="kept", Body=b"of the user")
        removed = bench.run("rm", file).output
        assert "reads: removed" in removed
        assert "reads-out" in removed
        assert s3.get_object(Bucket="reads-out", Key="kept")["Body"].read() == b"of the user"
        names = [one["Name"] for one in s3.list_buckets()["Buckets"]]
    assert "reads-in" not in names
    assert not [name for name in names if "probe" in name]
    assert "reads: not deployed" in bench.run("rm", file).output


def test_a_function_in_lambda_is_refused_with_the_way_out(bench: Bench) -> None:
    refused = bench.run("deploy", bench.write("old", "lambda"), status=2)
    assert "cloud `own` has no Lambda for old: write `execution: host`" in refused.stderr


def test_a_function_in_batch_is_refused_with_the_way_out(bench: Bench) -> None:
    file = bench.write("batched")
    batch = "host: {batch: {queue: gpus, definition: fold}}"
    file.write_text(re.sub(r"gpu: .*", batch, file.read_text()))
    refused = bench.run("deploy", file, status=2).stderr
    assert "cloud `own` has no AWS Batch for batched: write `gpu:`" in refused


def test_a_function_of_an_http_service_is_deployed_with_its_url(bench: Bench) -> None:
    file, url = bench.write("served"), "http://served.default.example"
    file.write_text(file.read_text().replace("execution: host", f"service: {url}"))
    planned = bench.run("plan", file, status=2).output
    assert f"served: {url} runs it; its container has ORCHGPU_STATE_BUCKET=" in planned
    rule = "notification served-intermediate/orchgpu-served-"
    assert f"{rule}results" in planned
    for absent in ("function served", "role", "permission", "invoke-config", f"{rule}staging"):
        assert absent not in planned
    assert "served: deployed" in bench.run("deploy", file).output
    assert "plan: nothing to do" in bench.run("plan", file).output
    bench.run("rm", file)


def test_a_schedule_is_refused_by_its_name(bench: Bench) -> None:
    file = bench.write("timed")
    file.write_text(f"{file.read_text()}    schedule: [{{cron: 0 3 * * 1, name: weekly}}]\n")
    refused = bench.run("deploy", file, status=2).stderr
    assert "no schedules for timed-weekly" in refused
    assert "cron" in refused
    assert "execution: host" not in refused


def test_declared_data_are_pinned_as_they_are_in_the_store(bench: Bench) -> None:
    file = bench.write("aligned")
    text = file.read_text()
    file.write_text(f"{text}    data: {{db: {{source: s3://shared-data/db/}}}}\n")
    with closing(boto3.Session().client("s3")) as s3:
        s3.create_bucket(Bucket="shared-data")
        s3.put_object(Bucket="shared-data", Key="db/part", Body=b"ACGT")
    assert "aligned: deployed" in bench.run("deploy", file).output
    assert "plan: nothing to do" in bench.run("plan", file).output
    with closing(boto3.Session().client("s3")) as s3:
        s3.put_object(Bucket="shared-data", Key="db/part", Body=b"ACGTACGT")
    changed = bench.run("plan", file, status=2).output
    assert "aligned" in changed, "other content is another version"
    bench.run("rm", file)


def test_seaweedfs_is_judged_by_what_it_does(own: OwnCloud) -> None:
    with closing(boto3.Session().client("s3")) as s3:
        facts = try_store(AwsClient(s3))
    verdict = judge(facts)
    assert (verdict.refused, dict(verdict.lacks)) == ((), {})
    assert (facts.checks_owner, facts.notifies, facts.keeps_filled) == (False, False, False)


# ---------------------------------------------------------------------- queues


@pytest.fixture
def queues(own: OwnCloud) -> Iterator[Queues]:
    with closing(Database(conninfo(str(own.database.ready["queues"])))) as database:
        yield Queues(database)


def queue_of(name: str, **changes: Any) -> QueueResource:
    return QueueResource(name=name, **{"retention_s": 600, "visibility_s": 30, **changes})


def run(case: Callable[[CloudPorts], Awaitable[None]]) -> None:
    async def opened() -> None:
        async with asyncio.timeout(60), open_cloud() as ports:
            await case(ports)

    asyncio.run(opened())


def test_a_message_received_too_often_is_a_dead_letter(queues: Queues) -> None:
    queues.put(queue_of("dead"))
    queues.put(queue_of("often", dead_letter_arn="arn:aws:sqs:r:0:dead", receives_max=2))
    queues.send("often", "poison")
    for _ in range(2):
        (message,) = queues.receive("often", count_max=1, hidden_s=0, wait_s=0)
    assert queues.receive("often", count_max=1, hidden_s=0, wait_s=0) == ()
    queues.remove("dead", [message.receipt_handle])  # a handle is of one queue
    (letter,) = queues.receive("dead", count_max=1, hidden_s=9, wait_s=0)
    assert (letter.body, letter.sent_at_s) == ("poison", message.sent_at_s)


def test_a_receipt_handle_is_stale_after_the_next_receive(queues: Queues) -> None:
    queues.put(queue_of("stale"))
    queues.send("stale", "x")
    (first,) = queues.receive("stale", count_max=1, hidden_s=0, wait_s=0)
    (second,) = queues.receive("stale", count_max=1, hidden_s=60, wait_s=0)
    queues.remove("stale", [first.receipt_handle, "no handle", "9:9:9", "-1:2", "1:" + "9" * 40])
    queues.hide("stale", [first.receipt_handle], 0)
    counts = queues.count("stale")
    assert (counts.visible, counts.in_flight) == (0, 1)
    queues.remove("stale", [second.receipt_handle])
    assert queues.count("stale").all == 0


def test_a_changed_queue_keeps_its_messages_and_a_deleted_one_does_not(queues: Queues) -> None:
    queues.put(queue_of("kept"))
    queues.send("kept", "x")
    changed = queue_of("kept", retention_s=60, policy={"Statement": []}, tags={"a": "b"})
    queues.put(changed)
    assert queues.observe("kept") == (changed, "kept")
    assert queues.messages("kept") == 1
    for _ in range(2):
        queues.delete("kept")
    assert (queues.observe("kept"), queues.messages("kept")) == (None, 0)


def test_a_hidden_message_wakes_a_long_poll_when_its_time_is_over(queues: Queues) -> None:
    queues.put(queue_of("hidden"))
    queues.send("hidden", "x")
    queues.receive("hidden", count_max=1, hidden_s=0.3, wait_s=0)

    async def case(ports: CloudPorts) -> None:
        (message,) = await ports.queue.receive("hidden", count_max=1, wait_s=20, visibility_s=30)
        assert message.body == "x"

    run(case)


def test_two_receivers_never_get_one_message(queues: Queues) -> None:
    queues.put(queue_of("shared"))

    async def case(ports: CloudPorts) -> None:
        await ports.queue.send("shared", [str(n) for n in range(200)])

        async def drained() -> list[str]:
            found: list[str] = []
            while True:
                some = await ports.queue.receive("shared", count_max=10, wait_s=0, visibility_s=60)
                found += [one.body for one in some]
                if not some and await ports.queue.backlog("shared") == 0:
                    return found

        parts = await asyncio.gather(*(drained() for _ in range(6)))
        assert sorted(int(body) for part in parts for body in part) == list(range(200))

    run(case)


def test_the_database_may_be_started_again(running: OwnCloud, queues: Queues) -> None:
    queues.put(queue_of("again"))

    async def case(ports: CloudPorts) -> None:
        await ports.queue.send("again", ["before"])
        waiting = asyncio.ensure_future(
            ports.queue.receive("empty-until-then", count_max=1, wait_s=1, visibility_s=9)
        )
        with pytest.raises(AppError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.NOT_FOUND
        await asyncio.to_thread(running.database.kill)
        with pytest.raises(AppError) as caught:
            await ports.queue.send("again", ["lost"])
        assert caught.value.code is ErrorCode.UNAVAILABLE
        running.database.start()
        await asyncio.to_thread(running.database.wait)
        await ports.queue.send("again", ["after"])
        found: list[Message] = []
        while len(found) < 2:
            found += await ports.queue.receive("again", count_max=10, wait_s=5, visibility_s=60)
        assert sorted(one.body for one in found) == ["after", "before"]
        parked = asyncio.ensure_future(
            ports.queue.receive("again", count_max=1, wait_s=30, visibility_s=9)
        )
        await asyncio.sleep(0.1)
        await ports.queue.send("again", ["wakes"])
        ((message),) = await parked
        assert message.body == "wakes"

    run(case)


def test_an_address_with_a_password_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AppError, match=r"ORCHGPU_QUEUES: a password in the address is refused"):
        conninfo("postgresql://me:secret@host/db")
    with pytest.raises(AppError, match=r"sqlite:// holds no queues"):
        conninfo("sqlite:///tmp/x")


# ---------------------------------------------------------------------- functions and events


def test_functions_have_no_names_to_call_and_get_the_keys_of_the_store(own: OwnCloud) -> None:
    async def case(ports: CloudPorts) -> None:
        with pytest.raises(AppError, match=r"execution: host.*or `service: URL`"):
            await ports.functions.start("f", "{}")
        assert ports.credentials is not None
        issued = await ports.credentials.issue("arn:any", "job")
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        assert {name: issued.variables[name] for name in names} == {
            name: own.environment[name] for name in names
        }
        assert issued.ends_s == 0

    run(case)


@asynccontextmanager
async def receiver(ports: CloudPorts) -> AsyncIterator[str]:
    assert ports.events is not None
    async with ports.events() as ready:
        yield f"http://{ready['store_events']}/v1/events/store"


def test_an_upload_reaches_the_job_queue_by_the_webhook(
    running: OwnCloud, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_file = running.store.command[running.store.command.index("--token-file") + 1]
    monkeypatch.setenv(EVENTS_VARIABLE, EVENTS)
    monkeypatch.setenv(TOKEN_VARIABLE, token_file)
    bench.run("deploy", bench.write("hook"))

    async def case(ports: CloudPorts) -> None:
        async with receiver(ports) as url, ClientSession() as session:
            for headers, body, status in (
                ({}, b"{}", 401),
                ({"Authorization": "Bearer wrong"}, b"{}", 401),
                (bearer(token_file), b"{", 400),
                (bearer(token_file), b"[]", 200),
            ):
                async with session.post(url, data=body, headers=headers) as answer:
                    assert answer.status == status, body
            for key in ("queries/a b+ü.fa", "queries/other.txt"):
                await ports.store.put("hook-in", key, b">x\nACGT\n")
            head = await ports.store.head("hook-in", "queries/a b+ü.fa")
            (message,) = await ports.queue.receive(
                "hook-jobs", count_max=10, wait_s=20, visibility_s=60
            )
            (event,) = events_of(json.loads(message.body))
            assert (event.key, event.version_id) == ("queries/a b+ü.fa", head.version_id)
            assert (event.etag, event.size) == (head.etag, head.size)
            assert abs(time.time() - (message.sent_at_s or 0)) < 60

    run(case)


def bearer(token_file: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {Path(token_file).read_text()}"}
