"""The calls of an executor, as their jobs end or are cancelled."""

from __future__ import annotations

import asyncio
from pathlib import PurePath

import pytest

from gpu_scheduler.model import Request
from orchgpu.core.function import Function
from orchgpu.executor import JobFuture, _Calls
from orchgpu.jobs.cloud import JobCloud, Submitted
from orchgpu.jobs.following import Follower

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


@pytest.mark.asyncio
async def test_an_equal_value_is_followed_after_another_was_cancelled() -> None:
    follower = Follower(JobCloud(), feed=None, on_change=lambda _: None, jobs=[])
    calls = _Calls(JobCloud(), None, follower, again=False, at_once=1)
    first, second = JobFuture(), JobFuture()
    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(calls._followed(VALUE, one)) for one in (first, second)]
        await asyncio.sleep(0)
        kept = follower.jobs[0]
        assert second.cancel()
        calls.end_looks()
        assert await answers[1] is None
        assert [one is kept for one in follower.jobs] == [True], "its entry is not the other's"
        kept.over = True
        calls.end_looks()
        assert await answers[0] is kept
