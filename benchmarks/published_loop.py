"""A port of the published orchestrator's loop with its defaults, written from its description.

One message at a time; the scheduler is asked through the command line (`ssgm` in its classic form,
its reply read by position) and asked again after 30 s when it is busy; the message is deleted as
soon as the work is started; the result is looked for every 60 s in the first page of the output
bucket; the device is released when it is seen; an empty queue is a pause of 10 s.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import time
import zipfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

#: What asks the scheduler: the published one calls a binary by its path.
SSGM = (sys.executable, "-m", "gpu_scheduler.client")

Allocate = Callable[[], Awaitable[str | None]]  #: a lease's id, or None when busy
Release = Callable[[str], Awaitable[None]]


@dataclass(frozen=True)
class ClassicSsgm:
    """The scheduler as the published loop sees it: two command lines and one line of reply."""

    host: str
    port: int
    words: tuple[str, ...] = ()  #: further words of the request

    async def allocate(self) -> str | None:
        """The job id of the reply; None when busy. Raises RuntimeError for a bad request."""
        reply = await self._reply("-alloc", "-g", "1", *self.words)
        if reply[0] == "SSGM_ERROR=2":
            return None
        if reply[0] != "SSGM_ERROR=0":
            raise RuntimeError(f"ssgm refused: {reply}")
        return reply[1].removeprefix("JOB=")

    async def release(self, job: str) -> None:
        await self._reply("-dealloc", "-j", job)

    async def _reply(self, *arguments: str) -> list[str]:
        command = (*SSGM, "-S", self.host, "-P", str(self.port), *arguments)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        return out.decode().strip().split(";")


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """Its default settings."""

    busy_s: float = 30.0
    empty_s: float = 10.0
    result_s: float = 60.0
    long_poll_s: int = 20


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
    pauses: Pauses = Pauses()
    held: list[tuple[float, float]] = field(default_factory=list)

    async def run(self, count: int) -> None:
        """Until `count` jobs are released."""
        async with asyncio.TaskGroup() as group:
            started = 0
            while started < count:
                answer = await self.sqs.receive_message(
                    QueueUrl=self.queue_url,
                    MaxNumberOfMessages=1,
                    VisibilityTimeout=3600,
                    WaitTimeSeconds=self.pauses.long_poll_s,
                )
                if not answer.get("Messages"):
                    await asyncio.sleep(self.pauses.empty_s)
                    continue
                message = answer["Messages"][0]
                if "Records" not in message["Body"]:  # s3:TestEvent
                    continue
                while (lease := await self.allocate()) is None:
                    await asyncio.sleep(self.pauses.busy_s)
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
            await asyncio.sleep(self.pauses.result_s)
        await self.release(lease)
        self.held.append((allocated_s, time.monotonic()))

    async def _done(self, name: str) -> bool:
        listed = await self.s3.list_objects_v2(Bucket=self.output_bucket)
        return any(name in entry["Key"] for entry in listed.get("Contents", ()))
