"""The published orchestrator's loop, which knows only `ssgm`'s classic lines, on a real ssgmd."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from benchmarks.published_loop import ClassicSsgm, Pauses, PublishedLoop
from tests.integration.ssgm.conftest import Lab

JOBS = 2


class Bucket:
    """As much of S3's client as the loop uses; what is staged is computed at once."""

    def __init__(self) -> None:
        self.outputs: list[str] = []

    async def get_object(self, **_: Any) -> Any:
        class Body:
            async def read(self) -> bytes:
                return b"input"

        return {"Body": Body()}

    async def put_object(self, *, Key: str, Body: bytes, **_: Any) -> None:  # noqa: N803
        assert io.BytesIO(Body).read(2) == b"PK"
        self.outputs.append(Key.removeprefix("staging/") + ".png")

    async def list_objects_v2(self, **_: Any) -> Any:
        return {"Contents": [{"Key": key} for key in self.outputs]}


class Queue:
    """As much of SQS's client as the loop uses."""

    def __init__(self) -> None:
        bodies = ["s3:TestEvent", *(self._event(number) for number in range(JOBS))]
        self.messages = [
            {"MessageId": f"m{n}", "ReceiptHandle": f"r{n}", "Body": body}
            for n, body in enumerate(bodies)
        ]
        self.deleted: list[str] = []

    @staticmethod
    def _event(number: int) -> str:
        return json.dumps({"Records": [{"s3": {"object": {"key": f"in+{number}.txt"}}}]})

    async def receive_message(self, **_: Any) -> Any:
        return {"Messages": [self.messages.pop(0)]} if self.messages else {}

    async def delete_message(self, *, ReceiptHandle: str, **_: Any) -> None:  # noqa: N803
        self.deleted.append(ReceiptHandle)


@pytest.mark.asyncio
async def test_it_runs_unchanged(lab: Lab) -> None:
    host, _, port = lab.scheduler.rpartition(":")
    ssgm = ClassicSsgm(host, int(port), words=("-kinds", "cuda"))
    queue = Queue()
    pauses = Pauses(busy_s=0.05, empty_s=0.05, result_s=0.05, long_poll_s=0)
    loop = PublishedLoop(
        Bucket(), queue, "url", "in", "mid", "out", ssgm.allocate, ssgm.release, pauses
    )
    await asyncio.wait_for(loop.run(JOBS), 60)
    assert len(loop.held) == JOBS
    assert len(queue.deleted) == JOBS


def test_a_busy_scheduler_is_distinguished_from_a_bad_request(lab: Lab) -> None:
    host, _, port = lab.scheduler.rpartition(":")
    assert lab.classic("-alloc", "-g", "2").returncode == 0
    assert asyncio.run(ClassicSsgm(host, int(port)).allocate()) is None
    with pytest.raises(RuntimeError, match="SSGM_ERROR=1"):
        asyncio.run(ClassicSsgm(host, int(port), words=("-kinds", "vpu")).allocate())
