"""Schedules of EventBridge as a deployment uses them, on the embedded cloud and on moto."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.contract.test_cloud_lambda import ECHO

Cloud = Any
Refused = Callable[[Callable[[], Any]], str]


def _arguments(cloud: Cloud, name: str, rate: str) -> dict[str, Any]:
    arn = cloud.client("lambda").get_function_configuration(FunctionName=name)["FunctionArn"]
    role = f"arn:aws:iam::{cloud.account}:role/contract"
    return {
        "Name": name,
        "ScheduleExpression": f"rate({rate})",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "Target": {"Arn": arn, "RoleArn": role, "Input": "{}"},
    }


def test_a_schedule_comes_and_goes(cloud: Cloud, refused: Refused) -> None:
    scheduler, name = cloud.client("scheduler"), cloud.function(ECHO)
    get = partial(scheduler.get_schedule, Name=name)
    assert refused(get) == "ResourceNotFoundException"
    scheduler.create_schedule(**_arguments(cloud, name, "1 minute"))
    again = partial(scheduler.create_schedule, **_arguments(cloud, name, "1 minute"))
    assert refused(again) == "ConflictException"
    scheduler.update_schedule(**_arguments(cloud, name, "5 minutes"))
    found = get()
    assert found["ScheduleExpression"] == "rate(5 minutes)"
    assert found["Target"]["Arn"].endswith(f":function:{name}")
    scheduler.delete_schedule(Name=name)
    assert refused(get) == "ResourceNotFoundException"
    assert refused(partial(scheduler.delete_schedule, Name=name)) == "ResourceNotFoundException"
