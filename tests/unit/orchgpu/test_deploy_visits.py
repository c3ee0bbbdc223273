"""`deploy --serverless`: what it needs, what it makes, and that a repetition finds it again."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from typing import Any

import pytest
from moto import mock_aws

from corekit.budget import Budget
from corekit.errors import AppError
from corekit.values import replace
from fdl.model import Function, Vpc
from fdl.parse import parse
from fdl.plan import resources as kinds
from fdl.plan.functions import Code
from fdl.plan.groups import deployed
from fdl.plan.plan import Action, Step
from fdl.plan.resources import DeployTarget
from orchgpu.adapters.aws.deploy.cloud import AwsCloud
from orchgpu.adapters.aws.endpoints import resolve
from orchgpu.deploy.visits import VisitSettings, check, desired_visits
from orchgpu.deploy.visits_package import build, environment_of, libraries
from orchgpu.permissions.model import Scope, document, trust
from orchgpu.permissions.roles import role_kind

AWS = DeployTarget(account="123456789012", region="us-east-1")
LOCAL = DeployTarget(account="000000000000", region="us-east-1", local=True)
CODE = Code(sha256="a" * 64, size=10)
ROLE = "arn:aws:iam::123456789012:role/orchgpu-visits"
SETTINGS = VisitSettings(scheduler="10.0.0.7:4700", role=ROLE, key_secret="ssm:/key")
BLAST = """\
functions:
  aws:
  - lambda:
      name: blast
      init_script: run.sh
      output: [{path: answers/tsv}]
      vpc: {SubnetIds: [subnet-1], SecurityGroupIds: [sg-1]}
    gpu: {}
    job: {input: {path: queries/in}}
"""


def function_of(text: str) -> Function:
    (function,) = deployed(parse(text, "f.yaml"))
    return function


def made(place: DeployTarget = AWS) -> dict[str, Any]:
    wanted = desired_visits(function_of(BLAST), place, CODE, Budget(), SETTINGS)
    assert wanted.name == "blast-orchestrate"
    return {kinds.key_of(one): one for one in wanted.resources}


def test_both_functions_are_called_for_their_queues() -> None:
    resources = made()
    orchestrate = resources["function/blast-orchestrate"]
    complete = resources["function/blast-complete"]
    assert (orchestrate.role, orchestrate.subnet_ids) == (ROLE, ("subnet-1",))
    assert complete.handler == "lambda_functions.complete.handler.handle"
    assert complete.variables == {
        "ORCHGPU_FUNCTIONS": "blast",
        "ORCHGPU_SCHEDULER": "10.0.0.7:4700",
        "ORCHGPU_SCHEDULER_KEY_SECRET": "ssm:/key",
    }
    assert orchestrate.timeout_s <= Budget().visibility_s
    sources = [key for key in resources if key.startswith("event-source/")]
    assert sources == [
        "event-source/blast-orchestrate/blast-jobs",
        "event-source/blast-complete/blast-done",
    ]
    assert resources["schedule/blast-orchestrate"].role == ROLE


def test_visits_of_a_function_without_a_network_are_in_the_stacks() -> None:
    """A function without a device needs no network, and its visits the scheduler."""
    text = BLAST.replace("      vpc: {SubnetIds: [subnet-1], SecurityGroupIds: [sg-1]}\n", "")
    stack = Vpc(subnet_ids=("subnet-7",), security_group_ids=("sg-7",))
    settings = replace(SETTINGS, network=stack)
    for one, subnet in ((text, "subnet-7"), (BLAST, "subnet-1")):
        wanted = desired_visits(function_of(one), AWS, CODE, Budget(), settings)
        functions = [one for one in wanted.resources if isinstance(one, kinds.FunctionResource)]
        assert {one.subnet_ids for one in functions} == {(subnet,)}


def test_a_local_clouds_visits_have_its_time_scale() -> None:
    fast = Budget().scaled(0.05)
    wanted = desired_visits(function_of(BLAST), LOCAL, CODE, fast, SETTINGS)
    functions = [one for one in wanted.resources if isinstance(one, kinds.FunctionResource)]
    assert {one.variables["ORCHGPU_TIME_SCALE"] for one in functions} == {"0.05"}
    assert {one.timeout_s for one in functions} == {6}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BLAST.replace("name: blast", f"name: {'b' * 53}"), "52 characters"),
        (
            BLAST.replace("job: {", 'job: {completion: object, object: "out/{job}", '),
            "completion: object",
        ),
        (BLAST.replace("{}", "{memory: 1GiB, warm_min: 1}"), "has `warm_min`, which lasts"),
    ],
)
def test_what_needs_the_service_is_refused(text: str, why: str) -> None:
    with pytest.raises(AppError, match=why):
        check(function_of(text), AWS, SETTINGS)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"scheduler": "127.0.0.1:4700"}, "--scheduler 127.0.0.1:4700"),
        ({"scheduler": "10.0.0.7:4700,localhost:4700"}, "this machine alone"),
        ({"key_secret": "key.txt"}, "--key-secret 'key.txt'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, str], why: str) -> None:
    given: dict[str, Any] = {"scheduler": "10.0.0.7:4700", "role": ROLE, **settings}
    with pytest.raises(AppError, match=why):
        check(function_of(BLAST), AWS, VisitSettings(**given))


def test_aws_needs_a_role() -> None:
    without = VisitSettings(scheduler="10.0.0.7:4700")
    check(function_of(BLAST), LOCAL, without)
    with pytest.raises(AppError, match="--visits-role"):
        check(function_of(BLAST), AWS, without)


def test_the_package_has_what_the_handlers_import() -> None:
    code, data = build(local=True, architecture="x86_64", ca=b"authority")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = set(archive.namelist())
        assert archive.read("ca.pem") == b"authority"
    assert {"lambda_functions/orchestrate/handler.py", "aiohttp/__init__.py"} <= names
    services = {name.split("/")[2] for name in names if name.startswith("botocore/data/")}
    assert {"s3", "sqs"} <= services
    assert "ec2" not in services
    assert build(local=True, architecture="x86_64", ca=b"authority")[0] == code


#: Requirements as an installation without the library `older` lists them.
REQUIRES = {
    "orchgpu": ["web", "click", 'extra-lib; extra == "demo"'],
    "web": [
        'older>=4.4; python_version < "3.13"',
        'newer; python_version >= "3.13"',
        'oldest; python_full_version < "3.11.3"',
        'of_windows; sys_platform == "win32"',
        'Of_Arm; platform_machine == "aarch64"',
    ],
    "of-arm": [],
    "newer": [],
}


def requires(name: str) -> list[str]:
    try:
        return REQUIRES[name.lower().replace("_", "-")]
    except KeyError:
        raise metadata.PackageNotFoundError(name) from None


def test_libraries_are_those_of_lambdas_python(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AppError, match=r"Python 3.12 and need older>=4.4, which is not installed"):
        libraries(environment_of("x86_64"), requires)
    monkeypatch.setitem(REQUIRES, "older", [])
    assert libraries(environment_of("x86_64"), requires) == ["older", "web"]
    assert libraries(environment_of("arm64"), requires) == ["of-arm", "older", "web"]
    local = {**environment_of("x86_64"), "python_version": "3.13"}
    assert libraries(local, requires) == ["newer", "web"]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsCloud]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("ORCHGPU_HOME", "/nonexistent")
    with mock_aws(), closing(AwsCloud(resolve)) as made_cloud:
        yield made_cloud


def test_mappings_and_schedules_are_found_as_they_were_made(cloud: AwsCloud) -> None:
    iam, lambda_, sqs = (cloud.client(name) for name in ("iam", "lambda", "sqs"))
    role = iam.create_role(RoleName="r", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    lambda_.create_function(
        FunctionName="f",
        Runtime="python3.12",
        Role=role,
        Handler="a.b",
        Code={"ZipFile": build(local=True, architecture="x86_64", ca=b"authority")[1]},
    )
    sqs.create_queue(QueueName="q")
    source = kinds.EventSource(function="f", queue="q", batch=10, concurrency_max=5)
    schedule = kinds.Schedule(name="s", every_min=1, function="f", role=role)
    changed: list[kinds.Resource] = [
        kinds.EventSource(function="f", queue="q", batch=2, concurrency_max=7),
        kinds.Schedule(name="s", every_min=5, function="f", role=role),
    ]
    made_and_changed: list[kinds.Resource] = [source, schedule, *changed]
    for resource in made_and_changed:
        cloud.apply(Step(action=Action.CREATE, resource=resource), {}, lambda _text: None)
        assert cloud.observe([], [resource]).resources[kinds.key_of(resource)] == resource
    for resource in changed:
        cloud.apply(Step(action=Action.DELETE, resource=resource), {}, lambda _text: None)
        assert kinds.key_of(resource) not in cloud.observe([], [resource]).resources


def test_the_roles_of_visits_and_of_the_waker() -> None:
    scope = Scope(place=AWS, functions=(function_of(BLAST),))
    visits = role_kind("visits")
    allowed = document(visits.statements(scope))
    assert "arn:aws:lambda:us-east-1:123456789012:function:blast-orchestrate" in str(allowed)
    services = trust(visits.service, AWS)["Statement"]
    assert "['lambda.amazonaws.com', 'scheduler.amazonaws.com']" in str(services)
    (wake,) = role_kind("waker").statements(scope)
    assert wake.resources == ("arn:aws:sqs:us-east-1:123456789012:blast-done",)
