"""`orchgpu jobs --watch` against a real scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from corekit.errors import AppError
from corekit.ids import JobId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Request
from gpu_scheduler.protocol import ops
from orchgpu.cli.commands.jobs.jobs import jobs_watched
from orchgpu.cli.jobs.watching import Entry, watch_jobs
from orchgpu.jobs.live.feed import JobsFeed
from orchgpu.jobs.records import JobFilter
from orchgpu.local.ports import fixed_address
from tests.commandline import run
from tests.integration.ssgm.played_host import PlayedHost
from tests.scheduler_thread import scheduler_in_thread


class Shown:
    """The states of each job as they were shown."""

    def __init__(self) -> None:
        self.states: dict[str, list[str]] = {}
        self.failed = False
        self.changed = asyncio.Event()

    def show(self, jobs: Sequence[Entry], error: AppError | None) -> None:
        self.failed = error is not None
        for job in jobs:
            seen = self.states.setdefault(str(job["job_id"]), [])
            if str(job["state"]) not in seen[-1:]:
                seen.append(str(job["state"]))
        self.changed.set()

    async def until(self, job: str, state: str) -> None:
        await self._until(lambda: state in self.states.get(job, []))

    async def until_failed(self) -> None:
        await self._until(lambda: self.failed)

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


async def watched(address: str) -> Shown:
    shown = Shown()
    watching = asyncio.create_task(
        watch_jobs(JobsFeed(address), jobs_watched(10, JobFilter), shown)
    )
    async with SchedulerClient(address) as client:
        whole = Request(memory_mib=1000)
        await client.ask(
            ops.Attempt(holder=JobId("j1"), n=1, revision=0, request=whole, block={"function": "f"})
        )
        await shown.until("j1", "RESERVED")
        await client.ask(
            ops.Attempt(holder=JobId("j2"), n=1, revision=0, request=whole, block={"function": "f"})
        )
        await shown.until("j2", "WAITING")
        await client.ask(
            ops.Finish(holder=JobId("j1"), outcome="CANCELLED", reason="CANCELLED_BY_USER")
        )
        await shown.until("j1", "CANCELLED")
        await shown.until("j2", "RESERVED")
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return shown


@pytest.mark.asyncio
async def test_every_state_is_shown(tmp_path: Path) -> None:
    device = {"kind": "cuda", "model": "M", "memory_mib": 1000}
    with (
        scheduler_in_thread(tmp_path / "state") as address,
        closing(PlayedHost(address, "gpu-a", "127.0.0.1:1", device)),
    ):
        shown = await watched(address)
    assert shown.states == {"j1": ["RESERVED", "CANCELLED"], "j2": ["WAITING", "RESERVED"]}


@pytest.mark.asyncio
async def test_the_jobs_are_read_again_after_a_restart_of_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, shown = tmp_path / "state", Shown()
    with scheduler_in_thread(state, fixed_address()) as address:
        monkeypatch.setattr("orchgpu.jobs.live.feed.ANSWER_WITHIN_S", 2.0)
        watching = asyncio.create_task(
            watch_jobs(JobsFeed(address), jobs_watched(10, JobFilter), shown)
        )
        await finish(address, "j1")
        await shown.until("j1", "CANCELLED")
    await shown.until_failed()
    with scheduler_in_thread(state, address):
        await finish(address, "j2")
        await shown.until("j2", "CANCELLED")
        assert not shown.failed
        assert shown.states["j1"] == ["CANCELLED"]
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def finish(address: str, job: str) -> None:
    """A job that is known by its end alone."""
    async with SchedulerClient(address) as client:
        op = ops.Finish(
            holder=JobId(job),
            outcome="CANCELLED",
            reason="CANCELLED_BY_USER",
            block={"function": "f"},
        )
        await client.ask(op)


def test_a_scheduler_that_is_down_at_the_start_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchgpu.jobs.live.feed.ANSWER_WITHIN_S", 0.05)
    assert run(("jobs", "--watch", "--scheduler", "127.0.0.1:1")) == 8
    assert capsys.readouterr().out == ""
