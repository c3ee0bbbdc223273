"""Every call of a whole deployment's life is allowed by the deployer's policies, and listed.

The calls are those that botocore sends: moto answers them, as an AWS without emulator's endpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from moto import mock_aws

from corekit.budget import Budget
from fdl.parse import parse
from fdl.plan.groups import deployed
from fdl.plan.resources import DeployTarget
from fdl.plan.roles import BOUNDARY_NAME
from orchgpu.adapters.aws.deploy.cloud import AwsCloud
from orchgpu.adapters.aws.endpoints import resolve
from orchgpu.deploy.deployment import drifts, execute, prepare, prepare_removal, prepare_rollback
from orchgpu.permissions.model import Scope, document
from orchgpu.permissions.roles import role_kind
from tests.iam_policies import Policy, Request, allowed
from tests.iam_requests import Account
from tests.unit.infra.test_iam_actions import ROOT

REGION = "eu-west-1"
BLAST = """\
functions:
  aws:
  - lambda:
      name: blast
      init_script: run.sh
      output: [{path: blast-answers/tsv}]
      vpc: {SubnetIds: [SUBNET], SecurityGroupIds: [GROUP]}
      MORE
    iam: {create: true}
    cloudwatch: {log_retention_policy_in_days: 7}
    gpu: {}
    http: {origins: [https://lab.example]}
    job: {input: {path: blast-queries/in}}
"""
MORE = "reserved_concurrency: 5\n      tags: {team: physics, project: x}"
LESS = "tags: {team: physics}"
ACCOUNT = "123456789012"
PLACE = DeployTarget(account=ACCOUNT, region=REGION)
#: One call: service, operation, parameters.
Call = tuple[str, str, Mapping[str, Any]]
IMAGE = """\
functions:
  aws:
  - lambda:
      name: picture
      runtime: image
      container: {image: "123456789012.dkr.ecr.eu-west-1.amazonaws.com/pictures:1"}
      input: [{path: pictures/in}]
      output: [{path: pictures/out}]
    iam: {create: true}
"""


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ENDPOINT_URL", "LOCALSTACK_HOST", "AWS_PROFILE", "ORCHGPU_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with mock_aws():
        yield tmp_path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Every call that a botocore client makes."""
    made: list[Call] = []
    call: Any = BaseClient._make_api_call

    def record(client: Any, operation: str, parameters: Any) -> Any:
        made.append((client.meta.service_model.service_name, operation, parameters))
        return call(client, operation, parameters)

    monkeypatch.setattr(BaseClient, "_make_api_call", record)
    return made


def network() -> tuple[str, str]:
    ec2 = boto3.client("ec2")
    subnet = ec2.describe_subnets()["Subnets"][0]
    group = ec2.create_security_group(GroupName="g", Description="d", VpcId=subnet["VpcId"])
    ec2.close()
    return subnet["SubnetId"], group["GroupId"]


def make_boundary(*prefixes: str) -> Policy:
    """The policy that `orchgpu iam boundary` prints, as docs/reference/aws-by-hand.md makes it."""
    scope = Scope(place=PLACE, bucket_prefix=prefixes[0], function_prefix=prefixes[-1])
    policy = document(role_kind("boundary").statements(scope))
    iam = boto3.client("iam")
    iam.create_policy(PolicyName=BOUNDARY_NAME, PolicyDocument=json.dumps(policy))
    iam.close()
    return policy


def encrypted_bucket(name: str) -> None:
    kms, s3 = boto3.client("kms"), boto3.client("s3")
    key = kms.create_key()["KeyMetadata"]["KeyId"]
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}
    rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"] = key
    s3.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": [rule]})
    kms.close()
    s3.close()


def pushed_image(tag: str, layer: str) -> str:
    """An image with one tag; the same tag of another one moves."""
    ecr = boto3.client("ecr")
    if not ecr.describe_repositories()["repositories"]:
        ecr.create_repository(repositoryName="pictures")
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {"digest": f"sha256:{layer * 64}", "size": 1, "mediaType": "x"},
        "layers": [{"digest": f"sha256:{layer * 64}", "size": 1, "mediaType": "x"}],
    }
    image = ecr.put_image(
        repositoryName="pictures", imageManifest=json.dumps(manifest), imageTag=tag
    )["image"]
    ecr.close()
    return str(image["imageId"]["imageDigest"])


def deploy(cloud: AwsCloud, folder: Path, text: str) -> tuple[str, ...]:
    (folder / "f.yaml").write_text(text)
    prepared = prepare(folder / "f.yaml", cloud, Budget())
    execute(prepared, cloud, lambda *_: None)
    again = prepare(folder / "f.yaml", cloud, Budget()).plan
    assert [step.sentence() for step in again.steps] == []
    return tuple(step.sentence() for step in prepared.plan.steps)


def boto_policy(role: str) -> Any:
    iam = boto3.client("iam")
    answer = iam.get_role_policy(RoleName=role, PolicyName="orchgpu")
    iam.close()
    return answer["PolicyDocument"]


def listed() -> set[str]:
    section = re.split(r"^### ", (ROOT / "infra/README.md").read_text(), flags=re.MULTILINE)
    [text] = [part for part in section if part.startswith("Deployment")]
    return set(re.findall(r"`([a-z0-9]+:[A-Z]\w+)`", text))


def of_deployer(*texts: str, prefix: str = "") -> Policy:
    """The printed policy: of definitions, or of all with the prefix."""
    functions = [one for text in texts for one in deployed(parse(text))]
    scope = Scope(
        place=PLACE,
        functions=tuple(functions),
        bucket_prefix=prefix,
        function_prefix=prefix,
    )
    return document(role_kind("deployer").statements(scope))


def requests_of(calls: list[Call]) -> list[Request]:
    account = Account(ACCOUNT, REGION)
    return [request for call in calls for request in account.requests(*call)]


def life_of_a_deployment(folder: Path, calls: list[Call]) -> str:
    """Deploy, change, roll back and remove; the definition."""
    (folder / "run.sh").write_text("#!/bin/sh\n")
    subnet, group = network()
    encrypted_bucket("blast-queries")
    make_boundary("blast")
    text = BLAST.replace("SUBNET", subnet).replace("GROUP", group)
    cloud = AwsCloud(lambda service: resolve(service))
    calls.clear()
    deploy(cloud, folder, text.replace("MORE", MORE))
    policy = boto_policy("blast-eu-west-1")
    assert any("kms:Decrypt" in statement["Action"] for statement in policy["Statement"])
    changed = deploy(cloud, folder, text.replace("MORE", LESS))
    assert any("reserved 5 → None" in step for step in changed)
    execute(prepare_rollback("blast", 1, cloud), cloud, lambda *_: None)
    assert drifts(["blast"], cloud) == ()
    execute(prepare_removal(["blast"], cloud), cloud, lambda *_: None)
    assert prepare_removal(["blast"], cloud).plan.empty
    cloud.close()
    return text.replace("MORE", LESS)


def test_every_call_of_a_deployment_is_listed_and_allowed_to_its_deployer_alone(
    aws: Path, calls: list[Call]
) -> None:
    """Deploys, changes and removals."""
    text = life_of_a_deployment(aws, calls)
    needed = {request.action for request in requests_of(calls)}
    assert {"kms:DescribeKey", "ec2:DescribeNetworkInterfaces", "s3:PutBucketTagging"} <= needed
    assert {"lambda:DeleteFunctionConcurrency", "iam:PassRole", "logs:TagResource"} <= needed
    assert needed - listed() == set()
    for policy in (of_deployer(text), of_deployer(prefix="blast")):
        assert [str(one) for one in requests_of(calls) if not allowed(one, [policy])] == []
    nothing_is_allowed_to_deployers_of_other_names(text, requests_of(calls))


def nothing_is_allowed_to_deployers_of_other_names(text: str, requests: list[Request]) -> None:
    """But calls that IAM limits to no resource, or that are about all."""
    open_to_all = {
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSubnets",
        "ec2:DescribeSecurityGroups",
        "ec2:DescribeVpcs",
        "lambda:ListFunctions",
        "logs:DescribeLogGroups",
        "iam:GetPolicy",
        "kms:DescribeKey",
    }
    others = (of_deployer(text.replace("blast", "other")), of_deployer(prefix="other"))
    for policy in others:
        passed = [one for one in requests if allowed(one, [policy])]
        about_state = [one for one in passed if PLACE.state_bucket in one.resource]
        assert {one.action for one in passed if one not in about_state} <= open_to_all


def test_a_moved_tag_of_an_image_is_a_change(aws: Path, calls: list[Call]) -> None:
    make_boundary("picture")
    first = pushed_image("1", "a")
    cloud = AwsCloud(lambda service: resolve(service))
    calls.clear()
    deploy(cloud, aws, IMAGE)
    second = pushed_image("1", "b")
    assert first != second
    [step] = [step for step in deploy(cloud, aws, IMAGE) if "function picture" in step]
    assert first in step
    assert second in step
    cloud.close()
    policies = [of_deployer(IMAGE), of_deployer(prefix="picture")]
    by_test = {"ecr:DescribeRepositories", "ecr:PutImage", "ecr:CreateRepository"}
    found = [one for one in requests_of(calls) if one.action not in by_test]
    assert "ecr:DescribeImages" in {one.action for one in found}
    for policy in policies:
        assert [str(one) for one in found if not allowed(one, [policy])] == []
