"""Schedules of the embedded cloud: what is refused, their calls and objects, and missed runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corekit.aio.supervise import Nursery
from corekit.aio.vloop import run_virtual
from corekit.decode import encode
from corekit.values import replace
from local_cloud.model.cloud import Cloud
from local_cloud.model.errors import CloudError
from local_cloud.model.functions.functions import FunctionSettings
from local_cloud.model.s3.notifications import Rule
from local_cloud.model.schedules import LATE_S_MAX, MISSED_MAX, PUT_OBJECT
from local_cloud.server.bodies import FileBodies
from local_cloud.server.context import Context
from local_cloud.server.schedules import ScheduledCalls

ARN = "arn:aws:lambda:us-east-1:000000000000:function:f"
EVERY_MINUTE = "cron(* * * * ? *)"
#: 2026-03-29 00:58:30 in UTC: the clocks of Madrid change in 90 s.
BEFORE_SUMMER_S = datetime(2026, 3, 29, 0, 58, 30, tzinfo=UTC).timestamp()
PUT = {
    "Bucket": "box",
    "Key": "in/s-<aws.scheduler.scheduled-time>",
    "Body": '{"at": "<aws.scheduler.scheduled-time>"}',
    "IfNoneMatch": "*",
    "ExpectedBucketOwner": "000000000000",
}


def given(rate: str = "rate(1 minute)", arn: str = ARN, **more: Any) -> dict[str, Any]:
    return {"ScheduleExpression": rate, "Target": {"Arn": arn, "Input": "{}"}, **more}


def putting(expression: str = EVERY_MINUTE, zone: str = "UTC", **changed: str) -> dict[str, Any]:
    return {
        "ScheduleExpression": expression,
        "ScheduleExpressionTimezone": zone,
        "Target": {"Arn": PUT_OBJECT, "Input": json.dumps({**PUT, **changed})},
    }


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (given("cron(0 0 * * ? 2027)"), "NotImplemented"),
        (given("at(2026-01-01T00:00:00)"), "NotImplemented"),
        (given(arn="arn:aws:sqs:r:1:q"), "NotImplemented"),
        (given(FlexibleTimeWindow={"Mode": "FLEXIBLE"}), "NotImplemented"),
        (putting(zone="Europe/Nowhere"), "NotImplemented"),
        (putting(Tagging="a=b"), "NotImplemented"),
        (given(arn=PUT_OBJECT), "ValidationException"),
    ],
)
def test_what_is_not_here_is_refused(wrong: dict[str, Any], code: str) -> None:
    with pytest.raises(CloudError, match=code):
        Cloud().schedules.create(0.0, "s", wrong)


class World:
    """A cloud on a virtual clock, with a function and a bucket whose uploads go to a queue."""

    def __init__(self, path: Path, begin_s: float = 0.0) -> None:
        self.bodies = FileBodies(path)
        self.cloud = Cloud(bodies=self.bodies, strict_policies=False)
        role = "arn:aws:iam::000000000000:role/f"
        settings = FunctionSettings(name="f", given={"Role": role})
        self.function = self.cloud.functions.create(0.0, settings)
        self.cloud.create_bucket(0.0, "box")
        self.cloud.set_versioning(0.0, "box", "Enabled")
        self.queue = self.cloud.queues.create(0.0, "jobs")
        arn = self.cloud.account.queue_arn("jobs")
        rule = Rule(id="jobs", arn=arn, events=("s3:ObjectCreated:*",), prefix="in/")
        self.cloud.restore_rules("box", [rule])
        self.begin_s = begin_s

    def now_s(self) -> float:
        return self.begin_s + asyncio.get_running_loop().time()

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def served() -> None:
            async with Nursery("cloud") as nursery:
                context = SimpleNamespace(
                    cloud=self.cloud, nursery=nursery, now_s=self.now_s, bodies=self.bodies
                )
                ScheduledCalls(cast("Context", context)).start()
                await story()

        run_virtual(served())

    @property
    def times(self) -> list[str]:
        """Those in the keys of the objects that were put."""
        keys = self.cloud.bucket("box").page().keys
        return [key.removeprefix("in/s-2026-03-29T") for key in keys]


def test_runs_missed_in_years_are_counted_up_to_a_bound() -> None:
    schedules = Cloud().schedules
    for expression in ("rate(1 minute)", EVERY_MINUTE):
        schedule = schedules.create(60.0, expression, putting(expression))
        assert schedule.missed(60.0 + LATE_S_MAX + 5 * 60.0 + 1.0) == 5
        assert schedule.missed(1e12) == MISSED_MAX, "no loop over all of them"


def test_a_time_is_begun_again_where_the_cloud_ended_before_its_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, BEFORE_SUMMER_S)
    schedules = world.cloud.schedules

    async def story() -> None:
        schedules.create(world.now_s(), "s", putting())
        await asyncio.sleep(40.0)

    def ended(*_: Any, **__: Any) -> None:
        raise MemoryError("the cloud ends here")

    with monkeypatch.context() as patch, contextlib.suppress(BaseExceptionGroup, MemoryError):
        patch.setattr(Cloud, "put_object", ended)
        world.run(story)
    assert not schedules.get("s").seen_at_s, "its time has not begun: no object has it"


def test_a_function_is_called_at_its_rate_until_the_schedule_goes(tmp_path: Path) -> None:
    world = World(tmp_path)
    schedules, calls = world.cloud.schedules, world.function.invocations
    seen = []

    async def story() -> None:
        schedules.create(world.now_s(), "s", given())
        await asyncio.sleep(150.0)
        seen.append(calls.waiting())
        schedules.update(world.now_s(), "s", given("rate(1 hour)"))
        await asyncio.sleep(150.0)
        seen.append(calls.waiting())
        schedules.update(world.now_s(), "s", given(State="DISABLED"))
        await asyncio.sleep(7200.0)
        schedules.delete("s")
        seen.append(calls.waiting())

    world.run(story)
    assert seen == [2, 2, 2]


def test_each_minute_an_object_becomes_one_message(tmp_path: Path) -> None:
    world = World(tmp_path, BEFORE_SUMMER_S)

    async def story() -> None:
        world.cloud.schedules.create(world.now_s(), "s", putting())
        await asyncio.sleep(150.0)

    world.run(story)
    assert world.times == ["00:59:00Z", "01:00:00Z"]
    version = world.cloud.bucket("box").get("in/s-2026-03-29T01:00:00Z")
    assert world.bodies.read(version.segments) == b'{"at": "2026-03-29T01:00:00Z"}'
    assert world.queue.counts(BEFORE_SUMMER_S + 150.0).visible == 2


def test_a_run_that_is_there_is_not_put_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another replica, or the same run delivered twice."""
    world = World(tmp_path, BEFORE_SUMMER_S)

    async def story() -> None:
        for name in ("one", "two"):
            world.cloud.schedules.create(world.now_s(), name, putting())
        await asyncio.sleep(40.0)

    with caplog.at_level(logging.WARNING):
        world.run(story)
    assert world.times == ["00:59:00Z"]
    assert "a run of the schedule two failed: PreconditionFailed" in caplog.text


def test_a_time_that_a_change_of_clocks_leaves_out_has_no_run(tmp_path: Path) -> None:
    world = World(tmp_path, BEFORE_SUMMER_S)
    expression = "cron(0,30 2,3 * * ? *)"  # 02:00 and 02:30 do not exist that day

    async def story() -> None:
        world.cloud.schedules.create(world.now_s(), "s", putting(expression, "Europe/Madrid"))
        await asyncio.sleep(2 * 3600.0)

    world.run(story)
    assert world.times == ["01:00:00Z", "01:30:00Z"]


def test_missed_runs_are_stated_and_not_made_up_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, BEFORE_SUMMER_S)

    async def begin() -> None:
        world.cloud.schedules.create(world.now_s(), "s", putting())
        await asyncio.sleep(40.0)

    async def again() -> None:
        await asyncio.sleep(100.0)

    world.run(begin)
    world.begin_s += 600.0
    with caplog.at_level(logging.WARNING):
        world.run(again)
    assert "the schedule s missed 8 runs" in caplog.text
    assert world.times == ["00:59:00Z", "01:08:00Z", "01:09:00Z", "01:10:00Z"]


def test_a_missing_bucket_ends_no_schedule(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, BEFORE_SUMMER_S)

    async def story() -> None:
        world.cloud.schedules.create(world.now_s(), "s", putting(Bucket="gone"))
        await asyncio.sleep(100.0)

    with caplog.at_level(logging.WARNING):
        world.run(story)
    assert caplog.text.count("a run of the schedule s failed: NoSuchBucket") == 2


def test_schedules_and_their_runs_are_remembered() -> None:
    cloud = Cloud()
    made = cloud.schedules.create(5.0, "s", putting())
    assert replace(made, seen_at_s=60.0) == cloud.schedules.seen("s", 60.0)
    other = Cloud()
    other.schedules.restore(encode(cloud.schedules.get("s")))
    assert other.schedules.get("s").seen_s == 60.0
