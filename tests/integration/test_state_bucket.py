"""The name of the state bucket: in the account's own namespace, which no other can take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from fdl.plan.plan import Action, Step
from fdl.plan.resources import Bucket
from orchgpu.adapters.aws.deploy.cloud import AwsCloud
from orchgpu.adapters.aws.endpoints import resolve

STATE = "orchgpu-state-123456789012-eu-west-1-an"


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
        assert state_of(cloud) == STATE
        cloud.client("s3").meta.events.register(
            "before-send.s3.CreateBucket",
            lambda request, **_: sent.append(_text(request.headers.get("x-amz-bucket-namespace"))),
        )
        for name in (STATE, "plain"):
            bucket = Bucket(name=name, versioned=False)
            cloud.apply(Step(action=Action.CREATE, resource=bucket), {}, lambda _: None)
    assert sent == ["account-regional", ""]
    with closing(AwsCloud(lambda service: resolve(service))) as cloud:
        assert state_of(cloud) == STATE


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
