"""Schedules of the embedded cloud: what is refused, and that their functions are called."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corekit.aio.supervise import Nursery
from corekit.aio.vloop import run_virtual
from local_cloud.model.cloud import Cloud
from local_cloud.model.errors import CloudError
from local_cloud.model.functions.functions import FunctionSettings
from local_cloud.server.context import Context
from local_cloud.server.schedules import ScheduledCalls

ARN = "arn:aws:lambda:us-east-1:000000000000:function:f"


def given(rate: str = "rate(1 minute)", arn: str = ARN, **more: Any) -> dict[str, Any]:
    return {"ScheduleExpression": rate, "Target": {"Arn": arn, "Input": "{}"}, **more}


@pytest.mark.parametrize(
    "wrong",
    [given("cron(0 0 * * ? *)"), given("at(2026-01-01T00:00:00)"), given(arn="arn:aws:sqs:r:1:q")],
)
def test_what_is_not_here_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CloudError, match="NotImplemented"):
        Cloud().schedules.create(0.0, "s", wrong)


def test_a_function_is_called_at_its_rate_until_the_schedule_goes() -> None:
    cloud = Cloud()
    role = "arn:aws:iam::000000000000:role/f"
    function = cloud.functions.create(0.0, FunctionSettings(name="f", given={"Role": role}))

    async def story() -> list[int]:
        async with Nursery("cloud") as nursery:
            context = SimpleNamespace(cloud=cloud, nursery=nursery, now_s=lambda: 0.0)
            ScheduledCalls(cast("Context", context)).start()
            cloud.schedules.create(0.0, "s", given())
            seen = []
            await asyncio.sleep(150.0)
            seen.append(function.invocations.waiting())
            cloud.schedules.update(0.0, "s", given("rate(1 hour)"))
            await asyncio.sleep(150.0)
            seen.append(function.invocations.waiting())
            cloud.schedules.update(0.0, "s", given(State="DISABLED"))
            await asyncio.sleep(7200.0)
            cloud.schedules.delete("s")
            seen.append(function.invocations.waiting())
            return seen

    assert run_virtual(story()) == [2, 2, 2]
