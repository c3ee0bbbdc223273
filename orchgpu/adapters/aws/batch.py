"""`BatchQueue` over AWS Batch's API."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from contract.aws.clients import Client
from contract.timing import CAP_SLACK_S
from orchgpu.adapters.aws.api import translated
from orchgpu.core.batch import BatchRun
from orchgpu.core.function import BatchPlace
from remote_gpu.wire.runs import BATCH_VARIABLE, BatchOrder

#: The shortest that Batch takes (SubmitJob, `timeout`).
_TIMEOUT_S_MIN = 60


class AwsBatch:
    """The client is opened when it is first needed: few orchestrators serve functions in Batch."""

    def __init__(
        self, client: Callable[[], Awaitable[Client]], variables: Mapping[str, str]
    ) -> None:
        """`variables`: region and endpoints, as every program of this cloud has them."""
        self._make = client
        self._variables = variables
        self._made: Client | None = None
        self._making = asyncio.Lock()

    async def submit(self, place: BatchPlace, name: str, order: BatchOrder) -> None:
        client = await self._client()
        given = {**self._variables, BATCH_VARIABLE: order.to_json()}
        limit_s = max(_TIMEOUT_S_MIN, math.ceil(order.timeout_s + CAP_SLACK_S))
        with translated(f"batch:SubmitJob {place.queue} {place.definition}"):
            await client.submit_job(
                jobName=name,
                jobQueue=place.queue,
                jobDefinition=place.definition,
                containerOverrides={
                    "environment": [{"name": key, "value": given[key]} for key in sorted(given)]
                },
                retryStrategy={"attempts": 1},
                timeout={"attemptDurationSeconds": limit_s},
            )

    async def runs(self, queue: str, name: str) -> tuple[BatchRun, ...]:
        client = await self._client()
        named = [{"name": "JOB_NAME", "values": [name]}]
        with translated(f"batch:ListJobs {queue}"):
            answer = await client.list_jobs(jobQueue=queue, filters=named)
        return tuple(map(_run, answer["jobSummaryList"]))

    async def end(self, run: str, why: str) -> None:
        client = await self._client()
        with translated(f"batch:TerminateJob {run}"):
            await client.terminate_job(jobId=run, reason=why)

    async def _client(self) -> Client:
        async with self._making:
            if self._made is None:
                self._made = await self._make()
            return self._made


def _run(found: Mapping[str, Any]) -> BatchRun:
    container = found.get("container", {})
    why = [found.get("statusReason"), container.get("reason")]
    if (status := container.get("exitCode")) is not None:
        why.append(f"exit status {status}")
    return BatchRun(
        id=found["jobId"],
        state=found["status"],
        why=tuple(text for text in why if text),
        ran=bool(found.get("startedAt")),
    )
