"""A port of the published orchestrator's loop with its defaults, written from its description.

One message at a time; the scheduler is asked through the command line and asked again after 30 s
when it is busy; the message is deleted as soon as the work is started; the result is looked for
every 60 s in the first page of the output bucket; the device is released when it is seen; an empty
queue is a pause of 10 s.
"""

from __future__ import annotations

import asyncio
import io
import json
import time
import zipfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

BUSY_PAUSE_S = 30.0
EMPTY_PAUSE_S = 10.0
RESULT_POLL_S = 60.0
LONG_POLL_S = 20

Allocate = Callable[[], Awaitable[str | None]]  #: a lease's id, or None when busy
Release = Callable[[str], Awaitable[None]]


@dataclass
class PublishedLoop:
    """The loop; `held` collects (allocated, released) per job, monotonic seconds."""

    s3: Any
    sqs: Any
    queue_url: str
    input_bucket: str
    stage_bucket: str
    output_bucket: str
    allocate: Allocate
    release: Release
    held: list[tuple[float, float]] = field(default_factory=list)

    async def run(self, count: int) -> None:
        """Until `count` jobs are released."""
        async with asyncio.TaskGroup() as group:
            started = 0
            while started < count:
                answer = await self.sqs.receive_message(
                    QueueUrl=self.queue_url, MaxNumberOfMessages=1, WaitTimeSeconds=LONG_POLL_S,
                    VisibilityTimeout=3600,
                )  # fmt: skip
                if not answer.get("Messages"):
                    await asyncio.sleep(EMPTY_PAUSE_S)
                    continue
                message = answer["Messages"][0]
                if "Records" not in message["Body"]:  # s3:TestEvent
                    continue
                while (lease := await self.allocate()) is None:
                    await asyncio.sleep(BUSY_PAUSE_S)
                group.create_task(self._process(message, lease, time.monotonic()))
                await self.sqs.delete_message(
                    QueueUrl=self.queue_url, ReceiptHandle=message["ReceiptHandle"]
                )
                started += 1

    async def _process(self, message: Any, lease: str, allocated_s: float) -> None:
        entry = json.loads(message["Body"])["Records"][0]["s3"]["object"]
        key = unquote_plus(entry["key"])
        found = await self.s3.get_object(Bucket=self.input_bucket, Key=key)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("input", await found["Body"].read())
        name = message["MessageId"]
        await self.s3.put_object(
            Bucket=self.stage_bucket, Key=f"staging/{name}", Body=buffer.getvalue()
        )
        while not await self._done(name):
            await asyncio.sleep(RESULT_POLL_S)
        await self.release(lease)
        self.held.append((allocated_s, time.monotonic()))

    async def _done(self, name: str) -> bool:
        listed = await self.s3.list_objects_v2(Bucket=self.output_bucket)
        return any(name in entry["Key"] for entry in listed.get("Contents", ()))
