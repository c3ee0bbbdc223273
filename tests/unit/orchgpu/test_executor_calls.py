"""The calls of an executor, as their jobs end or are cancelled."""

from __future__ import annotations

import asyncio
import math
from pathlib import PurePath

import pytest

from corekit.values import replace
from gpu_scheduler.model import Request
from orchgpu.core.function import Function
from orchgpu.executor import JobFuture, _Calls
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.following import Follower
from orchgpu.jobs.uploaded import Submitted

FUNCTION = Function(
    name="f",
    revision="r1",
    queue_url="q",
    dead_letter_url="d",
    completion_url="c",
    input_bucket="inputs",
    intermediate_bucket="middle",
    outputs=(),
    request=Request(),
)
VALUE = Submitted(
    function=FUNCTION, file=PurePath("v.json"), key="v.json", job_ids=("j1",), uploaded_s=0.0
)
OTHER = replace(VALUE, job_ids=("j2",))


@pytest.mark.asyncio
async def test_an_equal_value_is_followed_after_another_was_cancelled() -> None:
    follower = Follower(JobCloud(), feed=None, on_change=lambda _: None, jobs=[])
    calls = _Calls(JobCloud(), None, follower, again=False, at_once=1)
    first, second = JobFuture(), JobFuture()
    async with asyncio.TaskGroup() as group:
        answers = [
            group.create_task(calls._followed(VALUE, one, is_new=True)) for one in (first, second)
        ]
        await asyncio.sleep(0)
        kept = follower.jobs[0]
        assert second.cancel()
        calls.end_looks()
        assert await answers[1] is None
        assert [one is kept for one in follower.jobs] == [True], "its entry is not the other's"
        kept.over = True
        calls.end_looks()
        assert await answers[0] is kept


@pytest.mark.asyncio
async def test_an_earlier_job_that_left_no_trace_is_not_waited_for() -> None:
    follower = Follower(JobCloud(), feed=None, on_change=lambda _: None, jobs=[])
    calls = _Calls(JobCloud(), "a scheduler", follower, again=False, at_once=1)
    async with asyncio.TaskGroup() as group:
        earlier = group.create_task(calls._followed(VALUE, JobFuture(), is_new=False))
        own = group.create_task(calls._followed(OTHER, JobFuture(), is_new=True))
        await asyncio.sleep(0)
        calls.end_looks()
        await asyncio.sleep(0)
        assert not earlier.done(), "its message may come"
        follower.jobs[0].unreceived_s = follower.jobs[1].unreceived_s = math.inf
        calls.end_looks()
        job = await earlier
        assert job is not None
        assert (job.over, job.succeeded) == (False, False), "so the value is sent again"
        assert not own.done(), "the queue has the message of an own upload"
        follower.jobs[0].over = True
        calls.end_looks()
        await own


@pytest.mark.asyncio
@pytest.mark.parametrize("is_new", [True, False])
async def test_a_future_cancels_only_a_job_of_its_executor(
    is_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[str] = []
    follower = Follower(JobCloud(), feed=None, on_change=lambda _: None, jobs=[])
    calls = _Calls(JobCloud(), None, follower, again=False, at_once=1)
    monkeypatch.setattr(calls, "_cancel", lambda job: cancelled.append(job.job_id))
    first, second = JobFuture(), JobFuture()
    async with asyncio.TaskGroup() as group:
        for future, new in ((first, is_new), (second, False)):
            group.create_task(calls._followed(VALUE, future, is_new=new))
        await asyncio.sleep(0)
        for future in (first, second):
            future.cancel()
            calls.end_looks()
            await asyncio.sleep(0)
    assert cancelled == ["j1"] * is_new, "another program's job goes on"
