"""The name of the state bucket: in the account's own namespace, unless an earlier one is in use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from corekit.values import replace
from fdl.plan.plan import Action, Step
from fdl.plan.resources import Bucket, DeployTarget
from orchgpu.adapters.aws import clients
from orchgpu.adapters.aws.deploy.cloud import AwsCloud
from orchgpu.adapters.aws.endpoints import ClientSettings, resolve
from orchgpu.adapters.aws.place import has_older_state
from tests.embedded_cloud import client_of, cloud_in
from tests.unit.orchgpu.test_deploy_settling import AWS, Cloud

OLDER = "orchgpu-state-123456789012-eu-west-1"
NEWER = OLDER + "-an"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ENDPOINT_URL", "LOCALSTACK_HOST", "AWS_PROFILE", "ORCHGPU_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with mock_aws(), closing(boto3.client("s3")) as s3:
        yield s3


def state_of(cloud: AwsCloud) -> str:
    return cloud.place.state_bucket


def test_a_fresh_account_gets_a_name_that_nobody_else_can_take(aws: Any) -> None:
    sent: list[str] = []
    with closing(AwsCloud(lambda service: resolve(service))) as cloud:
        assert state_of(cloud) == NEWER
        cloud.client("s3").meta.events.register(
            "before-send.s3.CreateBucket",
            lambda request, **_: sent.append(_text(request.headers.get("x-amz-bucket-namespace"))),
        )
        for name in (NEWER, "plain"):
            bucket = Bucket(name=name, versioned=False)
            cloud.apply(Step(action=Action.CREATE, resource=bucket), {}, lambda _: None)
    assert sent == ["account-regional", ""]
    with closing(AwsCloud(lambda service: resolve(service))) as cloud:
        assert state_of(cloud) == NEWER


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def test_an_account_with_the_earlier_name_keeps_it(aws: Any) -> None:
    place = {"LocationConstraint": "eu-west-1"}
    aws.create_bucket(Bucket=OLDER, CreateBucketConfiguration=place)
    with closing(AwsCloud(lambda service: resolve(service))) as cloud:
        assert state_of(cloud) == OLDER
    aws.create_bucket(Bucket=NEWER, CreateBucketConfiguration=place)
    with closing(AwsCloud(lambda service: resolve(service))) as cloud:
        assert state_of(cloud) == NEWER


def test_the_earlier_name_in_another_account_stops_nothing() -> None:
    stubbed = Cloud("s3")
    stubbed.stub.add_client_error("head_bucket", "404", "Not Found", http_status_code=404)
    stubbed.stub.add_client_error("head_bucket", "403", "Forbidden", http_status_code=403)
    assert not has_older_state(stubbed.client, AWS)


def test_an_orchestrator_finds_the_same_bucket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    older = DeployTarget(account="000000000000", region="us-east-1")
    newer = replace(older, account_regional=True)
    with cloud_in(tmp_path) as address, client_of(address, "s3") as s3:
        endpoint = f"http://{address.netloc}"

        def elsewhere(service: str, **_: object) -> ClientSettings:
            return replace(resolve(service, endpoint_url=endpoint), local=False)

        async def found() -> str:
            async with clients.open_cloud(endpoint) as ports:
                return ports.state_bucket

        monkeypatch.setattr(clients, "resolve", elsewhere)
        assert asyncio.run(found()) == newer.state_bucket
        s3.create_bucket(Bucket=older.state_bucket)
        assert asyncio.run(found()) == older.state_bucket
        s3.create_bucket(Bucket=newer.state_bucket)
        assert asyncio.run(found()) == newer.state_bucket
