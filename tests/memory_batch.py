"""`BatchQueue` over the embedded cloud's model of Batch, whose jobs nothing starts."""

from __future__ import annotations

from corekit.aio.clock import Clock
from local_cloud.model.batch import Batch
from orchgpu.core.batch import BatchRun
from orchgpu.core.function import BatchPlace
from remote_gpu.wire.runs import BATCH_VARIABLE, BatchOrder


class MemoryBatch:
    """The port in memory."""

    def __init__(self, batch: Batch, clock: Clock) -> None:
        self._batch = batch
        self._clock = clock

    async def submit(self, place: BatchPlace, name: str, order: BatchOrder) -> None:
        variables = [{"name": BATCH_VARIABLE, "value": order.to_json()}]
        body = {
            "jobName": name,
            "jobQueue": place.queue,
            "jobDefinition": place.definition,
            "containerOverrides": {"environment": variables},
        }
        self._batch.submit(self._clock.wall_s(), body)

    async def runs(self, queue: str, name: str) -> tuple[BatchRun, ...]:
        return tuple(
            BatchRun(
                id=one.id,
                state=one.status,
                why=tuple(text for text in (one.reason, one.container_reason) if text),
                ran=one.started_s is not None,
            )
            for one in self._batch.listed(queue, name)
        )

    async def end(self, run: str, why: str) -> None:
        self._batch.terminate(self._clock.wall_s(), run, why)
