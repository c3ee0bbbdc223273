"""The bare calls that no orchestrator of this shape can do without, on the same cloud.

PUT input → receive → GET → PUT envelope → (event, Lambda) GET → spawn /bin/sh -c : → PUT output →
PUT result → (event) receive → delete. No scheduler, no session, no job record, no retry: the
difference to it is what ours costs.
"""

from __future__ import annotations

import asyncio
import io
import json
import time
import zipfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

import aioboto3

from benchmarks.system import System
from corekit.aio.supervise import Nursery

NAME = "floor"
LOOK_EVERY_S = 0.05  #: for what has happened; the times themselves are taken where it does
HANDLER = """
import io, json, subprocess, time, urllib.parse, zipfile
import boto3
s3 = boto3.client("s3")

def handle(event, context):
    entry = event["Records"][0]["s3"]
    key = urllib.parse.unquote_plus(entry["object"]["key"])
    data = s3.get_object(Bucket=entry["bucket"]["name"], Key=key)["Body"].read()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        body = archive.read("input")
    started = time.time()
    WORK
    name = key.split("/")[-1]
    s3.put_object(Bucket="floor-out", Key=name, Body=body)
    record = {"name": name, "started": started}
    s3.put_object(Bucket="floor-mid", Key="results/" + name, Body=json.dumps(record).encode())
"""


@dataclass
class Floor:
    """The bare pipeline and the times of its jobs (wall clock)."""

    s3: Any
    sqs: Any
    jobs_url: str
    done_url: str
    limit: asyncio.Semaphore
    finished: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, asyncio.Event] = field(default_factory=dict)

    async def take_jobs(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self.limit.acquire()
                answer = await self.sqs.receive_message(
                    QueueUrl=self.jobs_url, MaxNumberOfMessages=1, WaitTimeSeconds=20
                )
                messages = [m for m in answer.get("Messages", ()) if "Records" in m["Body"]]
                if not messages:  # nobody came, or s3:TestEvent did
                    self.limit.release()
                for message in messages:
                    group.create_task(self._stage(message))

    async def _stage(self, message: Any) -> None:
        record = json.loads(message["Body"])["Records"][0]["s3"]
        key = unquote_plus(record["object"]["key"])
        found = await self.s3.get_object(Bucket="floor-in", Key=key)
        data = await found["Body"].read()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("input", data)
        self.waiting[key] = asyncio.Event()
        await self.s3.put_object(Bucket="floor-mid", Key=f"staging/{key}", Body=buffer.getvalue())
        await self.waiting[key].wait()
        del self.waiting[key]
        self.finished[key] = time.time()
        self.limit.release()
        await self.sqs.delete_message(
            QueueUrl=self.jobs_url, ReceiptHandle=message["ReceiptHandle"]
        )

    async def take_results(self) -> None:
        events = self.waiting
        while True:
            answer = await self.sqs.receive_message(
                QueueUrl=self.done_url, MaxNumberOfMessages=10, WaitTimeSeconds=20
            )
            for message in answer.get("Messages", ()):
                body = json.loads(message["Body"])
                for record in body.get("Records", ()):
                    name = unquote_plus(record["s3"]["object"]["key"]).split("/")[-1]
                    if name in events:
                        events[name].set()
                await self.sqs.delete_message(
                    QueueUrl=self.done_url, ReceiptHandle=message["ReceiptHandle"]
                )

    async def wait(self, key: str) -> float:
        """When the job of `key` was finished, wall clock. Raises TimeoutError after a minute."""
        async with asyncio.timeout(60.0):
            while key not in self.finished:
                await asyncio.sleep(LOOK_EVERY_S)
        return self.finished[key]

    async def started_at(self, key: str) -> float:
        found = await self.s3.get_object(Bucket="floor-mid", Key=f"results/{key}")
        return float(json.loads(await found["Body"].read())["started"])


#: What the bare function does with its input.
NOTHING = 'subprocess.run(["/bin/sh", "-c", ":"], check=True)'


def deploy_floor(system: System, work: str = NOTHING) -> None:
    """Buckets, queues, function and notifications of the bare pipeline."""
    s3, sqs, functions = (system.client(name) for name in ("s3", "sqs", "lambda"))
    for bucket in ("in", "mid", "out"):
        s3.create_bucket(Bucket=f"{NAME}-{bucket}")
    policy = json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": "s3.amazonaws.com"},
                    "Action": "sqs:SendMessage",
                    "Resource": "*",
                }
            ],
        }
    )
    arns = {}
    for queue in ("jobs", "done"):
        url = sqs.create_queue(QueueName=f"{NAME}-{queue}", Attributes={"Policy": policy})[
            "QueueUrl"
        ]
        answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        arns[queue] = answer["Attributes"]["QueueArn"]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("bare.py", HANDLER.replace("WORK", work))
    function = functions.create_function(
        FunctionName=NAME,
        Runtime="python3.11",
        Handler="bare.handle",
        Timeout=60,
        MemorySize=512,
        Role="arn:aws:iam::000000000000:role/floor",
        Code={"ZipFile": buffer.getvalue()},
    )
    functions.add_permission(
        FunctionName=NAME,
        StatementId="s3",
        Action="lambda:InvokeFunction",
        Principal="s3.amazonaws.com",
    )
    created = ["s3:ObjectCreated:*"]
    s3.put_bucket_notification_configuration(
        Bucket=f"{NAME}-in",
        NotificationConfiguration={
            "QueueConfigurations": [{"QueueArn": arns["jobs"], "Events": created}],
        },
    )
    s3.put_bucket_notification_configuration(
        Bucket=f"{NAME}-mid",
        NotificationConfiguration={
            "LambdaFunctionConfigurations": [
                {
                    "LambdaFunctionArn": function["FunctionArn"],
                    "Events": created,
                    "Filter": _prefix("staging/"),
                }
            ],
            "QueueConfigurations": [
                {
                    "QueueArn": arns["done"],
                    "Events": created,
                    "Filter": _prefix("results/"),
                }
            ],
        },
    )


def _prefix(value: str) -> dict[str, Any]:
    return {"Key": {"FilterRules": [{"Name": "prefix", "Value": value}]}}


@asynccontextmanager
async def running_floor(system: System, concurrency: int) -> AsyncIterator[Floor]:
    """The bare pipeline, serving."""
    session = aioboto3.Session()
    async with AsyncExitStack() as stack:
        s3 = await stack.enter_async_context(session.client("s3", **system.aws()))
        sqs = await stack.enter_async_context(session.client("sqs", **system.aws()))
        urls = [
            (await sqs.get_queue_url(QueueName=f"{NAME}-{queue}"))["QueueUrl"]
            for queue in ("jobs", "done")
        ]
        floor = Floor(s3, sqs, urls[0], urls[1], asyncio.Semaphore(concurrency))
        async with Nursery("floor") as nursery:
            nursery.start_eternal(floor.take_jobs(), "jobs")
            nursery.start_eternal(floor.take_results(), "results")
            yield floor
