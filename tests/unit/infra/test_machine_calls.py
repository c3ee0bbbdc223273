"""Every call of a stack's machines, with its resource, against their roles; and against others'."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from click.testing import CliRunner
from moto import mock_aws

from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import DeployTarget
from gpu_scheduler.daemon.access.sources import source_of
from gpu_scheduler.daemon.log.port import Log
from gpu_scheduler.daemon.log.registry import open_log, parse_log_address
from orchgpu.adapters.aws.ecs_fleet import ecs
from orchgpu.adapters.aws.fleet import auto_scaling
from orchgpu.adapters.aws.machine import AwsMachine
from orchgpu.cli.commands.operation.iam import command as iam
from orchgpu.permissions.model import STACK_TAG, Scope, document
from orchgpu.permissions.roles import role_kind
from tests.fleet_ports import CLUSTER, made_cluster
from tests.iam_policies import Policy, Request, allowed
from tests.iam_requests import Account

ACCOUNT, REGION = "123456789012", "eu-west-1"
PLACE = DeployTarget(account=ACCOUNT, region=REGION)
BUCKET = PLACE.state_bucket
GROUP = "lab-gpu-a"  #: as the template names it
Call = tuple[str, str, Mapping[str, Any]]


@dataclass(frozen=True)
class World:
    """A stack's things in moto, and the calls that were made since."""

    calls: list[Call]
    interface: str
    instance: str
    group: str

    def requests(self) -> list[Request]:
        tags = {key: {STACK_TAG: "lab"} for key in (self.interface, self.instance, self.group)}
        account = Account(ACCOUNT, REGION, tags=tags, groups={self.instance: self.group})
        return [one for call in self.calls for one in account.requests(*call)]


Life = Callable[[World], None]
Lived = Callable[[Life], World]


@contextmanager
def running(folder: Path) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("AWS_DEFAULT_REGION", REGION)
        with mock_aws():
            yield _made(patch)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """The world after the life of a machine: each is lived once."""

    @functools.cache
    def of(life: Life) -> World:
        with running(tmp_path_factory.mktemp("life")) as found:
            life(found)
            return found

    return of


def _made(monkeypatch: pytest.MonkeyPatch) -> World:
    ec2, scaling, s3 = (boto3.client(name) for name in ("ec2", "autoscaling", "s3"))
    subnet = ec2.describe_subnets()["Subnets"][0]
    image = ec2.describe_images()["Images"][0]["ImageId"]
    own = ec2.create_network_interface(SubnetId=subnet["SubnetId"])["NetworkInterface"]
    launch = {"ImageId": image, "InstanceType": "t4g.micro"}
    ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=launch)
    scaling.create_auto_scaling_group(
        AutoScalingGroupName=GROUP,
        MinSize=0,
        MaxSize=2,
        DesiredCapacity=1,
        NewInstancesProtectedFromScaleIn=True,
        VPCZoneIdentifier=subnet["SubnetId"],
        LaunchTemplate={"LaunchTemplateName": "gpu", "Version": "1"},
    )
    made = scaling.describe_auto_scaling_groups()["AutoScalingGroups"][0]["Instances"][0]
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    secrets = boto3.client("secretsmanager")
    secrets.create_secret(Name="lab/system")
    for client in (ec2, scaling, s3, secrets):
        client.close()
    with _log():  # it makes the table, as the template does
        pass
    calls: list[Call] = []
    call: Any = BaseClient._make_api_call

    def record(client: Any, operation: str, parameters: Any) -> Any:
        calls.append((client.meta.service_model.service_name, operation, parameters))
        return call(client, operation, parameters)

    monkeypatch.setattr(BaseClient, "_make_api_call", record)
    return World(calls, own["NetworkInterfaceId"], made["InstanceId"], GROUP)


def _log() -> closing[Log]:
    """The scheduler's journal, open for the block."""
    return closing(open_log(parse_log_address(f"dynamodb://lab/main?region={REGION}"), 5.0))


def policy_of(*roles: str, stack: str = "lab", cluster: str = "") -> list[Policy]:
    scope = Scope(
        place=PLACE, bucket_prefix="gpu-", function_prefix="gpu-", stack=stack, cluster=cluster
    )
    return [document(role_kind(role).statements(scope)) for role in roles]


def life_of_a_scheduler(world: World) -> None:
    cloud = AwsMachine(REGION)
    [found] = cloud.interfaces([world.interface])
    cloud.attach(found.id, world.instance)
    [attached] = cloud.interfaces([world.interface])
    assert (found.instance, attached.instance) == ("", world.instance)
    assert cloud.read_secret("lab/system") is None
    cloud.fill_secret("lab/system", json.dumps({"master": "0" * 64}))
    cloud.put_object(BUCKET, "infra/lab/ca.pem", b"pem")
    source = source_of("secretsmanager:lab/system#master")
    source.refresh()
    assert source.read() == b"0" * 64
    with _log() as log:
        assert log.put_if_absent(1, b"one")
        log.put_snapshot(1, b"all")
        log.trim(1)
        assert log.last_seq(0) == 0
    with pytest.raises(NotImplementedError, match="signal_resource"):  # moto has no such call
        cloud.signal("lab", "SchedulersA", world.instance, success=True)


def life_of_a_host(world: World) -> None:
    cloud = AwsMachine(REGION)
    with pytest.raises(AppError) as caught:
        cloud.read_object(BUCKET, "infra/lab/ca.pem")
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert cloud.group_of(world.instance) == GROUP
    scaling = boto3.client("autoscaling")
    # by the unit of gpud (orchgpu.infra.machine.files); moto has no such call
    with pytest.raises(NotImplementedError, match="complete_lifecycle_action"):
        scaling.complete_lifecycle_action(
            AutoScalingGroupName=GROUP,
            LifecycleHookName="drain",
            LifecycleActionResult="CONTINUE",
            InstanceId=world.instance,
        )
    scaling.close()


def life_of_a_fleet(world: World) -> None:
    async def lived() -> None:
        fleet = auto_scaling(REGION)
        await fleet.grow(GROUP, 2)
        [group] = await fleet.list((GROUP,))
        assert (group.size, len(group.hosts)) == (2, 2)
        await fleet.stop(GROUP, world.instance)
        await fleet.withdraw(GROUP)
        await fleet.close()

    asyncio.run(lived())
    with closing(boto3.client("autoscaling")) as scaling:  # it reads them of an order that waits
        scaling.describe_scaling_activities(AutoScalingGroupName=GROUP, MaxRecords=10)


def life_of_a_fleet_of_tasks(world: World) -> None:
    made_cluster(GROUP)
    world.calls.clear()

    async def lived() -> None:
        fleet = ecs(CLUSTER, REGION)
        await fleet.grow(GROUP, 2)
        [group] = await fleet.list((GROUP,))
        await fleet.stop(GROUP, group.hosts[0].id)
        await fleet.withdraw(GROUP)
        await fleet.close()

    asyncio.run(lived())


def test_the_calls_of_a_fleet_of_tasks_are_allowed_by_its_role_and_no_others(lived: Lived) -> None:
    found = lived(life_of_a_fleet_of_tasks).requests()
    policies = policy_of("fleet", cluster=CLUSTER)
    assert [str(one) for one in found if not allowed(one, policies)] == []
    given = [action for one in policies for s in one["Statement"] for action in s["Action"]]
    assert {one.action for one in found} == {*given}


@pytest.mark.parametrize(
    ("stack", "cluster", "passed"),
    [
        ("other", CLUSTER, {"ecs:ListTasks", "ecs:DescribeTasks", "ecs:StopTask"}),
        ("lab", "other", {"ecs:DescribeCapacityProviders", "iam:PassRole"}),
        ("lab", "", set[str]()),
    ],
)
def test_a_fleet_of_tasks_may_do_nothing_in_another_stack_or_cluster(
    lived: Lived, stack: str, cluster: str, passed: set[str]
) -> None:
    """But see and end the tasks of its cluster, which IAM limits to no definition."""
    policies = policy_of("fleet", stack=stack, cluster=cluster)
    found = lived(life_of_a_fleet_of_tasks).requests()
    assert {one.action for one in found if allowed(one, policies)} == passed


def test_the_rights_of_a_fleet_are_those_of_its_provider() -> None:
    where = ("--account", ACCOUNT, "--region", REGION)
    printed = CliRunner().invoke(iam, ["fleet", "--provider", "ecs:gpus:eu-west-1", *where])
    assert "cluster/gpus" in printed.output
    assert "autoscaling" not in printed.output
    assert "autoscaling" in CliRunner().invoke(iam, ["fleet", *where]).output
    refused = CliRunner().invoke(iam, ["fleet", "--provider", "processes:/tmp", *where])
    assert isinstance(refused.exception, AppError)
    assert "only `auto-scaling` and `ecs:CLUSTER` call AWS" in str(refused.exception)


def test_a_fleets_calls_are_allowed_by_its_role(lived: Lived) -> None:
    found = lived(life_of_a_fleet).requests()
    changes = {"autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"}
    assert changes <= {one.action for one in found}
    assert [str(one) for one in found if not allowed(one, policy_of("fleet"))] == []


@pytest.mark.parametrize("group", ["lab-SchedulersA-1", "lab2-gpu-a", "gpu-a"])
def test_a_fleet_may_not_change_another_group_of_its_stack(group: str) -> None:
    """The groups of schedulers have the stack's tag, too."""
    account = Account(ACCOUNT, REGION, tags={group: {STACK_TAG: "lab"}}, groups={"i-1": group})
    calls: list[Call] = [
        ("autoscaling", "SetDesiredCapacity", {"AutoScalingGroupName": group}),
        ("autoscaling", "TerminateInstanceInAutoScalingGroup", {"InstanceId": "i-1"}),
    ]
    found = [one for call in calls for one in account.requests(*call)]
    assert len(found) == 2
    assert not any(allowed(one, policy_of("fleet")) for one in found)


def test_a_schedulers_calls_are_allowed_by_its_role(lived: Lived) -> None:
    found = lived(life_of_a_scheduler).requests()
    needed = {one.action for one in found}
    assert needed >= {"dynamodb:BatchWriteItem", "ec2:AttachNetworkInterface", "s3:PutObject"}
    assert "secretsmanager:PutSecretValue" in needed
    assert [str(one) for one in found if not allowed(one, policy_of("scheduler"))] == []


def test_a_hosts_calls_are_allowed_by_its_role(lived: Lived) -> None:
    found = lived(life_of_a_host).requests()
    assert "autoscaling:CompleteLifecycleAction" in {one.action for one in found}
    assert [str(one) for one in found if not allowed(one, policy_of("pool"))] == []


@pytest.mark.parametrize(
    ("life", "roles", "stack"),
    [
        (life_of_a_scheduler, ("scheduler", "orchestrator", "user"), "other"),
        (life_of_a_scheduler, ("pool", "host"), "lab"),
        (life_of_a_host, ("pool",), "other"),
        (life_of_a_fleet, ("fleet",), "other"),
        (life_of_a_fleet, ("scheduler", "orchestrator", "user", "pool"), "lab"),
    ],
)
def test_machines_of_others_may_do_nothing_of_it(
    lived: Lived, life: Life, roles: tuple[str, ...], stack: str
) -> None:
    """But what IAM limits to no resource."""
    found = lived(life).requests()
    passed = {one.action for one in found if allowed(one, policy_of(*roles, stack=stack))}
    described = ("AutoScalingInstances", "AutoScalingGroups", "ScalingActivities")
    open_to_all = {f"autoscaling:Describe{what}" for what in described}
    open_to_all.add("ec2:DescribeNetworkInterfaces")
    assert passed <= open_to_all


def test_a_host_may_not_read_the_secret_nor_write_the_authority() -> None:
    account = Account(ACCOUNT, REGION)
    calls: list[Call] = [
        ("secretsmanager", "GetSecretValue", {"SecretId": "lab/system"}),
        ("s3", "PutObject", {"Bucket": BUCKET, "Key": "infra/lab/ca.pem"}),
        ("dynamodb", "PutItem", {"TableName": "lab"}),
    ]
    found = [one for call in calls for one in account.requests(*call)]
    assert len(found) == 3
    assert not any(allowed(one, policy_of("pool", "host")) for one in found)
    assert all(allowed(one, policy_of("scheduler")) for one in found)


def test_of_two_that_fill_the_secret_the_first_wins(world: World) -> None:
    cloud = AwsMachine(REGION)
    for content in ("first", "second"):
        cloud.fill_secret("lab/system", content)
    assert cloud.read_secret("lab/system") == "first"
