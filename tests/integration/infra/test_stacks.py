"""`orchgpu infra` against moto's CloudFormation: planned, made, found, changed and removed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws.endpoints import Clients, place_of, resolve
from orchgpu.adapters.aws.stacks import AwsStacks
from orchgpu.cloud_services import Address
from orchgpu.infra import deployment
from orchgpu.infra.bundles import Bundle
from orchgpu.infra.model import Stack
from orchgpu.infra.template import BODY_BYTES_MAX, Template
from orchgpu.jobs.scheduler import scheduler_address
from orchgpu.permissions.model import STACK_TAG
from tests.commandline import done
from tests.moto_stacks import images, network, subset, subset_file
from tests.pages import ROOT, File, steps
from tests.wheelhouse import wheelhouse

REGION = "us-east-1"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ENDPOINT_URL", "LOCALSTACK_HOST", "AWS_PROFILE", "ORCHGPU_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with mock_aws():
        yield tmp_path


@pytest.fixture
def stacks(aws: Path) -> Iterator[AwsStacks]:
    clients = Clients(lambda service: resolve(service))
    yield AwsStacks(clients, lambda: place_of(clients), sleep=lambda _: None)
    clients.close()


def bundle(folder: Path, text: str) -> Bundle:
    file = folder / f"{text}.tar"
    file.write_text(text)
    return Bundle(file=file, sha256=text * 8)


def deployed(
    stacks: AwsStacks, folder: Path, template: Template, given: Mapping[str, str]
) -> Stack:
    asked = deployment.asked_of(stacks, "orchgpu", template, {**images(), **given})
    asked = deployment.with_bundles(stacks, asked, bundle(folder, "s"), bundle(folder, "h"))
    found = deployment.proposed(stacks, asked)
    return deployment.execute(stacks, found, lambda *_: None, sleep=lambda _: None)


def removed(stacks: AwsStacks, *, everything: bool = False) -> tuple[str, ...]:
    return deployment.remove(
        stacks, "orchgpu", lambda *_: None, everything=everything, sleep=lambda _: None
    )


def kept_in_account() -> tuple[list[str], list[str]]:
    tables, logs = boto3.client("dynamodb"), boto3.client("logs")
    found = tables.list_tables()["TableNames"]
    groups = [one["logGroupName"] for one in logs.describe_log_groups()["logGroups"]]
    tables.close()
    logs.close()
    return found, groups


def groups() -> dict[str, tuple[int, int]]:
    """Sizes by name, without the characters that CloudFormation adds to those of schedulers."""
    scaling = boto3.client("autoscaling")
    found = scaling.describe_auto_scaling_groups()["AutoScalingGroups"]
    scaling.close()
    return {
        re.sub(r"^orchgpu-|-\w{8,}$", "", one["AutoScalingGroupName"]): (
            one["MinSize"],
            one["MaxSize"],
        )
        for one in found
    }


def test_a_plan_shows_the_difference_and_the_price_and_makes_nothing(aws: Path) -> None:
    chosen = [word for key, value in images().items() for word in ("--set", f"{key}={value}")]
    command = ["infra", "plan", "--template", subset_file(aws), *chosen]
    shown = done(command)
    assert shown.exit_code == 2, shown.output
    assert "+ SchedulersA            AutoScaling::AutoScalingGroup" in shown.stdout
    assert "42 to make" in shown.stdout
    assert "26." in shown.stdout, "USD a month, without secret and alarms"
    assert "quota: vCPUs of spot G and VT instances" in shown.stdout
    found = json.loads(done([*command, "--json"]).stdout)
    assert found["usd_month"] <= 30
    assert {one["action"] for one in found["changes"]} == {"Add"}
    cloud = boto3.client("cloudformation")
    assert cloud.list_stacks(StackStatusFilter=["CREATE_COMPLETE"])["StackSummaries"] == []
    cloud.close()
    assert kept_in_account() == ([], [])
    assert groups() == {}


def test_a_stack_is_made_found_and_changed(aws: Path, stacks: AwsStacks) -> None:
    made = deployed(stacks, aws, subset(), {})
    assert made.status == "CREATE_COMPLETE"
    assert groups() == {
        "SchedulersA": (1, 1),
        "SchedulersB": (1, 1),
        "gpu-a": (0, 4),
        "gpu-b": (0, 4),
    }
    assert made.parameters["SchedulerBundle"] == f"infra/orchgpu/{'s' * 8}.tar"
    assert stacks.has_object(made.parameters["HostBundle"])
    kinds = {one.kind for one in stacks.resources("orchgpu")}
    assert {"AWS::EC2::VPC", "AWS::DynamoDB::Table", "AWS::IAM::Role"} <= kinds
    shown = done(["infra", "status"])
    assert shown.exit_code == 0, shown.output
    assert "PoolB" in shown.stdout

    asked = deployment.asked_of(stacks, "orchgpu", subset(), {"GpuMax": "7"})
    assert asked.values["GpuImage"] == made.parameters["GpuImage"], "as before"
    assert asked.values["Stores"] == "make", "they are the stack's own"
    found = deployment.proposed(stacks, asked)
    changed = deployment.execute(stacks, found, lambda *_: None, sleep=lambda _: None)
    assert changed.parameters["GpuMax"] == "7"
    assert groups()["gpu-b"] == (0, 7)


def test_a_template_that_is_too_large_for_a_call_is_read_from_the_bucket(stacks: AwsStacks) -> None:
    queue = {"Type": "AWS::SQS::Queue", "Metadata": {"note": "x" * BODY_BYTES_MAX}}
    body = json.dumps({"Resources": {"Jobs": queue}})
    found = stacks.propose("large", body, {}, {})
    assert [one.logical for one in found.changes] == ["Jobs"]
    stacks.discard(stacks.propose("large", body, {}, {}))
    assert stacks.remove_objects("infra/large/") == 1, "of equal content there is one"
    with closing(boto3.client("s3", region_name=REGION)) as s3:
        found = s3.get_bucket_versioning(Bucket=stacks.place.state_bucket)
    assert "Status" not in found, "as a deploy wants it"


def test_a_named_stack_is_looked_up_with_the_profile_of_the_command(
    aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = "aws_access_key_id = a\naws_secret_access_key = b\n"
    (aws / "config").write_text(
        f"[default]\nregion = {REGION}\n[profile lab]\nregion = eu-west-1\n{keys}"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(aws / "config"))
    monkeypatch.setenv("ORCHGPU_STACK", "orchgpu")
    monkeypatch.setenv("ORCHGPU_SCHEDULER_KEY", "ann.secret")
    monkeypatch.setenv("ORCHGPU_SCHEDULER_CA", "ca.pem")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    small_stack(ours=True)
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(AppError, match=f"no stack orchgpu in 123456789012, {REGION}"):
        scheduler_address(None)
    with pytest.raises(AppError, match="cannot be reached from here, outside of its network"):
        scheduler_address(None, Address(profile="lab"))


class Lagging(AwsStacks):
    """CloudFormation describes a stack as it was before for some calls."""

    stale: Stack | None = None
    calls = 0

    def find(self, name: str) -> Stack | None:
        if self.calls:
            self.calls -= 1
            return self.stale
        return super().find(name)


def test_a_description_from_before_is_not_the_end(aws: Path) -> None:
    clients = Clients(lambda service: resolve(service))
    stacks = Lagging(clients, lambda: place_of(clients), sleep=lambda _: None)
    asked = deployment.asked_of(stacks, "orchgpu", subset(), images())
    asked = deployment.with_bundles(stacks, asked, bundle(aws, "s"), bundle(aws, "h"))
    found = deployment.proposed(stacks, asked)
    stacks.stale = stacks.find("orchgpu")
    assert stacks.stale is not None
    assert stacks.stale.proposed
    stacks.calls = 4
    made = deployment.execute(stacks, found, lambda *_: None, sleep=lambda _: None)
    assert made.status == "CREATE_COMPLETE"
    clients.close()


def test_removal_keeps_what_holds_data_and_the_next_stack_uses_it(
    aws: Path, stacks: AwsStacks
) -> None:
    # moto makes no secret: one of the name stands for that of the stack
    secrets = boto3.client("secretsmanager")
    deployed(stacks, aws, subset(), network())
    tags = [{"Key": STACK_TAG, "Value": "orchgpu"}]
    secrets.create_secret(Name="orchgpu/system", SecretString="{}", Tags=tags)
    assert removed(stacks) == ("table orchgpu", "secret orchgpu/system", "logs /orchgpu/orchgpu")
    assert kept_in_account() == (["orchgpu"], ["/orchgpu/orchgpu"])
    assert groups() == {}

    again = deployed(stacks, aws, subset(), network())
    assert again.parameters["Stores"] == "kept"
    assert "Journal" not in {one.logical for one in stacks.resources("orchgpu")}
    assert removed(stacks, everything=True) == ()
    assert kept_in_account() == ([], [])
    assert secrets.list_secrets()["SecretList"] == []
    assert not stacks.has_object(f"infra/orchgpu/{'s' * 8}.tar")
    secrets.close()


def test_a_part_of_an_earlier_stack_is_not_used_alone(aws: Path, stacks: AwsStacks) -> None:
    logs = boto3.client("logs")
    logs.create_log_group(logGroupName="/orchgpu/orchgpu", tags={STACK_TAG: "orchgpu"})
    logs.close()
    with pytest.raises(AppError, match="its table, secret is gone") as caught:
        deployment.asked_of(stacks, "orchgpu", subset(), {})
    assert caught.value.code is ErrorCode.CONFLICT


GROUP: dict[str, Any] = {
    "Type": "AWS::EC2::SecurityGroup",
    "Properties": {"GroupDescription": "functions", "VpcId": {"Ref": "Vpc"}},
}


def small_stack(*, ours: bool) -> str:
    """A stack with the group of functions alone; that group. `ours`: by its parameters."""
    named = {"Vpc": network()["Vpc"], **({"SchedulerBundle": "a.tar"} if ours else {})}
    body = {"Parameters": {name: {"Type": "String"} for name in named}}
    cloud = boto3.client("cloudformation")
    cloud.create_stack(
        StackName="orchgpu",
        TemplateBody=json.dumps({**body, "Resources": {"FunctionGroup": GROUP}}),
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in named.items()],
    )
    [found] = cloud.describe_stack_resources(StackName="orchgpu")["StackResources"]
    cloud.close()
    return str(found["PhysicalResourceId"])


def test_a_stack_of_something_else_is_neither_changed_nor_removed(
    aws: Path, stacks: AwsStacks
) -> None:
    small_stack(ours=False)
    for work in (
        lambda: deployment.asked_of(stacks, "orchgpu", subset(), images()),
        lambda: removed(stacks),
        lambda: removed(stacks, everything=True),
    ):
        with pytest.raises(AppError, match="was not made by orchgpu") as caught:
            work()
        assert caught.value.code is ErrorCode.CONFLICT
    assert stacks.find("orchgpu") is not None


def make_stores(tags: dict[str, str], *, key: str = "log") -> None:
    """Table, secret and logs with the names of a stack's."""
    listed: Any = [{"Key": name, "Value": value} for name, value in tags.items()]
    tables, secrets, logs = map(boto3.client, ("dynamodb", "secretsmanager", "logs"))
    tables.create_table(
        TableName="orchgpu",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[
            {"AttributeName": key, "KeyType": "HASH"},
            {"AttributeName": "item", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": name, "AttributeType": "S"} for name in (key, "item")
        ],
        Tags=listed,
    )
    secrets.create_secret(Name="orchgpu/system", Tags=listed)
    logs.create_log_group(logGroupName="/orchgpu/orchgpu", tags=tags)
    for client in (tables, secrets, logs):
        client.close()


@pytest.mark.parametrize(
    ("tags", "key", "named"),
    [
        ({}, "log", "table orchgpu, secret orchgpu/system, logs /orchgpu/orchgpu: not of"),
        ({STACK_TAG: "lab"}, "log", "table orchgpu, secret orchgpu/system"),
        ({STACK_TAG: "orchgpu"}, "id", "^table orchgpu: not of"),
    ],
)
def test_stores_of_something_else_are_neither_used_nor_removed(
    aws: Path, stacks: AwsStacks, tags: dict[str, str], key: str, named: str
) -> None:
    make_stores(tags, key=key)
    for work in (
        lambda: deployment.asked_of(stacks, "orchgpu", subset(), images()),
        lambda: removed(stacks, everything=True),
    ):
        with pytest.raises(AppError, match=named) as caught:
            work()
        assert caught.value.code is ErrorCode.CONFLICT
    assert kept_in_account() == (["orchgpu"], ["/orchgpu/orchgpu"])


def test_the_stores_of_an_earlier_stack_are_removed(aws: Path, stacks: AwsStacks) -> None:
    make_stores({STACK_TAG: "orchgpu"})
    assert removed(stacks, everything=True) == ()
    assert kept_in_account() == ([], [])


def test_a_stack_stays_while_functions_are_in_its_network(aws: Path, stacks: AwsStacks) -> None:
    group = small_stack(ours=True)
    ec2 = boto3.client("ec2")
    made = ec2.create_network_interface(SubnetId=network()["SubnetA"], Groups=[group])
    with pytest.raises(AppError, match=f"1 network interfaces of functions use the group {group}"):
        removed(stacks)
    assert stacks.find("orchgpu") is not None
    interface = made["NetworkInterface"]["NetworkInterfaceId"]
    ec2.delete_network_interface(NetworkInterfaceId=interface)
    ec2.close()
    removed(stacks)
    assert stacks.find("orchgpu") is None


def test_hosts_that_are_protected_do_not_hold_a_removal(aws: Path, stacks: AwsStacks) -> None:
    deployed(stacks, aws, subset(), network())
    names = [one.physical for one in stacks.resources("orchgpu") if one.logical == "PoolA"]
    assert names == ["orchgpu-gpu-a"], "as the fleet's offers and its role have it"
    scaling = boto3.client("autoscaling")
    scaling.set_desired_capacity(AutoScalingGroupName=names[0], DesiredCapacity=1)

    def protected() -> list[bool]:
        answer = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=names)
        instances = answer["AutoScalingGroups"][0]["Instances"]
        return [one["ProtectedFromScaleIn"] for one in instances]

    assert protected() == [True]
    stacks.release_machines(names)
    assert protected() == [False]
    scaling.close()
    removed(stacks)
    assert groups() == {}


def with_outputs(stacks: AwsStacks, name: str) -> None:
    """A stack; moto gives none that a change set made outputs."""
    cloud = boto3.client("cloudformation")
    asked = deployment.asked_of(stacks, name, subset(), images())
    cloud.create_stack(
        StackName=name,
        TemplateBody=asked.template.text,
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in asked.values.items()],
    )
    cloud.close()


def test_functions_of_a_stack_get_its_network_and_names_that_its_roles_reach(
    aws: Path, stacks: AwsStacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHGPU_STACK", "")  # --stack sets it
    monkeypatch.delenv("ORCHGPU_STACK")
    with_outputs(stacks, "lab")
    for file in steps((ROOT / "docs/how-to/aws.md").read_text()):
        if isinstance(file, File):
            (aws / file.name).write_text(file.text)
    assert "no vpc" in done(["plan", "first.yaml"]).stderr, "no stack is in use"
    assert done(["plan", "first.yaml", "--stack", "lob"]).exit_code == 3
    monkeypatch.setenv("ORCHGPU_SCHEDULER_KEY", "ann.secret")
    monkeypatch.setenv("ORCHGPU_SCHEDULER_CA", "ca.pem")
    assert "there is no stack lob in 123456789012" in done(["gpus", "--stack", "lob"]).stderr
    monkeypatch.delenv("ORCHGPU_SCHEDULER_KEY")
    monkeypatch.delenv("ORCHGPU_STACK")
    assert done(["infra", "outputs", "--stack", "lab"]).exit_code == 0
    monkeypatch.delenv("ORCHGPU_STACK")
    made = done(["deploy", "first.yaml", "--yes-real-aws"])
    assert made.exit_code == 0, made.output
    assert "note: gpu-first: in the network of the stack lab" in made.stdout
    functions = boto3.client("lambda")
    network = functions.get_function_configuration(FunctionName="gpu-first")["VpcConfig"]
    functions.close()
    kept = json.loads((aws / ".orchgpu/stack.json").read_text())
    assert network["SubnetIds"] == kept["subnets"]
    assert network["SecurityGroupIds"] == [kept["function_group"]]
    again = done(["plan", "first.yaml", "--stack", "lab"])
    assert again.exit_code == 0, again.output
    monkeypatch.delenv("ORCHGPU_STACK")
    without = done(["plan", "first.yaml", "--stack", ""])
    assert "subnet" in without.stdout, "it would leave the network"
    monkeypatch.delenv("ORCHGPU_STACK")

    (aws / "first.yaml").write_text((aws / "first.yaml").read_text().replace("gpu-first", "first"))
    refused = done(["run", "first.yaml", "first.py", "--yes-real-aws"])
    assert refused.exit_code == 2
    assert "reach no 'first': write 'gpu-first'" in refused.stderr
    assert "write 'gpu-first-in-{account}'" in refused.stderr


def test_outputs_are_kept_in_the_home(
    aws: Path, stacks: AwsStacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHGPU_STACK", "")  # --stack sets it
    monkeypatch.delenv("ORCHGPU_STACK")
    with_outputs(stacks, "lab")
    shown = done(["infra", "outputs", "--stack", "lab"])
    assert shown.exit_code == 0, shown.output
    assert "network of functions:  vpc: {SubnetIds: [subnet-" in shown.stdout
    assert "functions gpu-, buckets gpu-, secrets gpu-" in shown.stdout
    ways = [line for line in shown.stdout.splitlines() if "--local-forwarding" in line]
    assert [line.count("--local-forwarding") for line in ways] == [1, 1], "aws takes the last one"
    assert [(":4700" in line, ":4790" in line) for line in ways] == [(True, False), (False, True)]
    kept = json.loads((aws / ".orchgpu/stack.json").read_text())
    assert kept["name"] == "lab"
    assert len(kept["subnets"]) == 2
    assert kept["schedulers"].count(":4700") == 2
    monkeypatch.delenv("ORCHGPU_STACK")
    assert json.loads(done(["infra", "outputs", "--json"]).stdout)["stack"] == "lab"

    secrets = boto3.client("secretsmanager")  # moto makes none of a template
    secrets.create_secret(Name="lab/system")
    early = done(["infra", "outputs", "--access", "access"])
    assert "its first scheduler makes them" in early.stderr
    content = json.dumps({"operator": "operator.key-of-43", "ca": "PEM"})
    secrets.put_secret_value(SecretId="lab/system", SecretString=content)
    secrets.close()
    shown = done(["infra", "outputs", "--access", "access"])
    through = "export ORCHGPU_SCHEDULER=127.0.0.1:4700 ORCHGPU_SCHEDULER_KEY_FILE=access/oper"
    assert through in shown.stdout
    assert json.loads((aws / ".orchgpu/stack.json").read_text())["access"] == str(aws / "access")
    assert (aws / "access/operator.key").read_text() == "operator.key-of-43\n"
    assert (aws / "access/operator.key").stat().st_mode & 0o077 == 0


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11),
    reason="the wheels that are installed here are of another Python",
)
def test_the_commands_make_and_remove_a_stack(aws: Path) -> None:
    wheels = aws / "wheels"
    wheels.mkdir()
    wheelhouse(wheels, "orchgpu[scheduler]")
    chosen = {**images(), **network(), "SchedulerType": "t3a.micro", "Machines": "one"}
    set_ = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    template = ["--template", subset_file(aws), "--wheels", "wheels", "--host-extras", "scheduler"]
    shown = done(["infra", "deploy", *template, *set_, "--yes-real-aws"])
    assert shown.exit_code == 0, shown.output
    assert "packs orchgpu[scheduler] for x86_64" in shown.stdout
    assert "orchgpu: CREATE_COMPLETE" in shown.stdout
    assert groups() == {"SchedulersA": (1, 1), "gpu-a": (0, 4)}
    assert json.loads((aws / ".orchgpu/stack.json").read_text())["name"] == "orchgpu"
    planned = json.loads(done(["infra", "plan", *template[:2], "--json"]).stdout)
    assert {one["action"] for one in planned["changes"]} <= {"Modify"}

    shown = done(["infra", "rm", "--yes-real-aws"])
    assert shown.exit_code == 0, shown.output
    assert "kept: table orchgpu" in shown.stdout
    assert "kept: bucket orchgpu-state-123456789012-us-east-1" in shown.stdout
    assert not (aws / ".orchgpu/stack.json").exists()
    assert done(["infra", "rm", "--all", "--yes-real-aws"]).exit_code == 0
    assert kept_in_account() == ([], [])


def test_there_is_no_such_stack(aws: Path) -> None:
    for command in ("status", "outputs"):
        shown = done(["infra", command])
        assert shown.exit_code == 3
        assert "there is no stack orchgpu in 123456789012, us-east-1" in shown.stderr


def test_real_aws_needs_consent(aws: Path) -> None:
    for command in ("deploy", "rm"):
        assert "--yes-real-aws" in done(["infra", command]).stderr


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("GpuMxa=1", "did you mean"),
        ("GpuMax", "write NAME=VALUE"),
        ("Machines=three", "one of two, one"),
        ("GpuMax=-1", "must lie in"),
        ("Vpc=vpc-1", "--set SubnetA and --set SubnetB"),
    ],
)
def test_a_wrong_parameter_is_refused(aws: Path, given: str, text: str) -> None:
    shown = done(["infra", "plan", "--set", given])
    assert shown.exit_code == 1
    assert text in shown.stderr
