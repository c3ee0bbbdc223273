"""Schedules of EventBridge as a deployment uses them, on the embedded cloud and on moto."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from corekit.values import replace
from fdl.plan.resources import DeployTarget, Role, Schedule
from orchgpu.adapters.aws.api import AwsClient
from orchgpu.adapters.aws.deploy.calls import Schedules
from orchgpu.adapters.aws.deploy.roles import IamRoles
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


def test_times_that_put_objects_come_and_go(cloud: Cloud) -> None:
    account = cloud.account
    place = DeployTarget(account=account, region="us-east-1", local=True)
    clients = AwsClient(cloud.client("scheduler"))
    schedules, name = Schedules(lambda: clients, place), cloud.unique("schedule")
    put = {"Bucket": "box", "Key": "in/<aws.scheduler.scheduled-time>", "Body": "é"}
    wanted = Schedule(
        name=name,
        role=place.role_arn("contract"),
        cron="cron(0 3 ? * MON *)",
        timezone="Europe/Madrid",
        put=put,
    )
    assert schedules.state(name) == (None, False)
    schedules.put(wanted)
    assert schedules.state(name) == (wanted, False)
    schedules.pause(name, paused=True)
    changed = replace(wanted, cron="cron(0 4 ? * MON *)")
    schedules.put(changed)
    assert schedules.state(name) == (changed, True), "a deploy leaves it paused"
    schedules.pause(name, paused=False)
    assert schedules.state(name) == (changed, False)
    schedules.delete(name)
    schedules.delete(name)
    assert schedules.observe(name) is None


def test_the_role_of_a_schedule_comes_and_goes(cloud: Cloud) -> None:
    clients = AwsClient(cloud.client("iam"))
    roles, name = IamRoles(lambda: clients, cloud.account), cloud.unique("role")
    boundary = f"arn:aws:iam::{cloud.account}:policy/limit"
    statement = {"Effect": "Allow", "Action": ["s3:PutObject"], "Resource": ["arn:aws:s3:::b/*"]}
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    role = Role(
        name=name,
        policy=policy,
        path="/orchgpu/functions/",
        boundary=boundary,
        tags={"createdby": "orchgpu"},
        service="scheduler.amazonaws.com",
    )
    if cloud.name == "embedded":
        pytest.skip("roles of the embedded cloud have no policies: deploys make none there")
    roles.put(role)
    assert roles.observe(name) == role
    roles.delete(name)
    assert roles.observe(name) is None
