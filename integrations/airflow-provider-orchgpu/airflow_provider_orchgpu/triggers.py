"""The trigger of a task: follows its jobs in the triggerer, without a worker of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_orchgpu.jobs import JobNote, cancel, submitted
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.following import follow
from orchgpu.jobs.scheduler import answering_scheduler


class JobsTrigger(BaseTrigger):
    """Fires once, when every job of the task is over; after a restart it follows them again."""

    def __init__(self, jobs: list[JobNote]) -> None:
        super().__init__()
        self.jobs = jobs

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.JobsTrigger", {"jobs": self.jobs}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """The states of the jobs, in their order. An AppError fails the task."""
        address = await asyncio.to_thread(answering_scheduler, None, self.log.info)
        with closing(JobCloud()) as cloud:
            jobs = await asyncio.to_thread(submitted, cloud, self.jobs)
            ended = await follow(cloud, address, jobs, lambda _: None, within_s=None)
        ends = [
            {"job_id": one.job_id, "state": str(one.state), "reason": one.reason} for one in ended
        ]
        yield TriggerEvent({"jobs": self.jobs, "ends": ends})

    async def on_kill(self) -> None:
        """End the jobs of a task that a user marks or clears."""
        address = await asyncio.to_thread(answering_scheduler, None, self.log.info)
        with closing(JobCloud()) as cloud:
            await asyncio.to_thread(cancel, cloud, address, self.jobs)
