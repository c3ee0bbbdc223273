"""Every call of a whole deployment's life is in the deployer's table of IAM actions.

The calls are those that botocore sends: moto answers them, as an AWS without emulator's endpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from moto import mock_aws

from corekit.budget import Budget
from orchgpu.adapters.aws.deploy.cloud import AwsCloud
from orchgpu.adapters.aws.endpoints import resolve
from orchgpu.deploy.deployment import drifts, execute, prepare, prepare_removal, prepare_rollback
from tests.unit.infra.test_iam_actions import RENAMED, ROOT

REGION = "eu-west-1"
BLAST = """\
functions:
  aws:
  - lambda:
      name: blast
      init_script: run.sh
      output: [{path: answers/tsv}]
      vpc: {SubnetIds: [SUBNET], SecurityGroupIds: [GROUP]}
      MORE
    iam: {create: true BOUNDARY}
    cloudwatch: {log_retention_policy_in_days: 7}
    gpu: {}
    job: {input: {path: queries/in}}
"""
MORE = "reserved_concurrency: 5\n      tags: {team: physics, project: x}"
LESS = "tags: {team: physics}"
BOUNDARY = ", permissions_boundary: 'arn:aws:iam::123456789012:policy/limit'"
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
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, None]:
    """`service:Operation` of every call that a botocore client makes."""
    made: dict[str, None] = {}
    call: Any = BaseClient._make_api_call

    def record(client: Any, operation: str, parameters: Any) -> Any:
        made[f"{client.meta.service_model.service_name}:{operation}"] = None
        return call(client, operation, parameters)

    monkeypatch.setattr(BaseClient, "_make_api_call", record)
    return made


def network() -> tuple[str, str]:
    ec2 = boto3.client("ec2")
    subnet = ec2.describe_subnets()["Subnets"][0]
    group = ec2.create_security_group(GroupName="g", Description="d", VpcId=subnet["VpcId"])
    ec2.close()
    return subnet["SubnetId"], group["GroupId"]


def boundary_policy() -> None:
    allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam = boto3.client("iam")
    iam.create_policy(PolicyName="limit", PolicyDocument=document)
    iam.close()


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


def test_every_call_of_deploys_changes_and_removals_is_listed(
    aws: Path, calls: dict[str, None]
) -> None:
    (aws / "run.sh").write_text("#!/bin/sh\n")
    subnet, group = network()
    encrypted_bucket("queries")
    boundary_policy()
    text = BLAST.replace("SUBNET", subnet).replace("GROUP", group)
    cloud = AwsCloud(lambda service: resolve(service))
    calls.clear()
    deploy(cloud, aws, text.replace("MORE", MORE).replace("BOUNDARY", BOUNDARY))
    policy = boto_policy("orchgpu-blast-eu-west-1")
    assert any("kms:Decrypt" in statement["Action"] for statement in policy["Statement"])
    changed = deploy(cloud, aws, text.replace("MORE", LESS).replace("BOUNDARY", ""))
    assert any("reserved 5 → None" in step for step in changed)
    execute(prepare_rollback("blast", 1, cloud), cloud, lambda *_: None)
    assert drifts(["blast"], cloud) == ()
    execute(prepare_removal(["blast"], cloud), cloud, lambda *_: None)
    assert prepare_removal(["blast"], cloud).plan.empty
    cloud.close()
    free = {"sts:GetCallerIdentity"}
    needed = {f"{s}:{RENAMED.get(o, o)}" for s, o in (call.split(":") for call in calls)} - free
    assert needed - listed() == set()
    assert {"kms:DescribeKey", "ec2:DescribeNetworkInterfaces", "s3:PutBucketTagging"} <= needed
    assert {"lambda:DeleteFunctionConcurrency", "iam:DeleteRolePermissionsBoundary"} <= needed


def test_a_moved_tag_of_an_image_is_a_change(aws: Path, calls: dict[str, None]) -> None:
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
    assert "ecr:DescribeImages" in calls
