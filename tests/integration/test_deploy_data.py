"""The digests of declared data that a deploy reads from S3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from corekit.errors import AppError
from fdl.parse import parse
from fdl.plan.groups import deployed
from orchgpu.adapters.aws.deploy.cloud import AwsCloud
from orchgpu.adapters.aws.endpoints import resolve

TEXT = """\
functions:
  aws:
  - lambda: {{name: f, init_script: run.sh, input: [inn/a], output: [out/b]}}
    gpu: {{}}
    data: {{w: "{source}"}}
"""


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ENDPOINT_URL", "LOCALSTACK_HOST", "AWS_PROFILE", "ORCHGPU_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws(), closing(boto3.client("s3")) as s3:
        s3.create_bucket(Bucket="models")
        for key in ("w/a", "w/b/c", "wx"):
            s3.put_object(Bucket="models", Key=key, Body=key.encode())
        yield s3


def facts_of(source: str) -> tuple[str, int]:
    functions = deployed(parse(TEXT.format(source=source), "f"))
    with closing(AwsCloud(lambda service: resolve(service))) as cloud:
        found = cloud.facts(functions).data[source]
    return found.digest, found.bytes


def test_a_digest_is_of_the_present_objects(aws: Any) -> None:
    first = facts_of("s3://models/w")
    assert first[1] == len("w/a") + len("w/b/c")
    assert facts_of("s3://models/w/") == first
    aws.put_object(Bucket="models", Key="w/a", Body=b"new")
    assert facts_of("s3://models/w")[0] != first[0]


def test_a_version_is_one_object(aws: Any) -> None:
    aws.put_bucket_versioning(Bucket="models", VersioningConfiguration={"Status": "Enabled"})
    version = aws.put_object(Bucket="models", Key="w/a", Body=b"four")["VersionId"]
    assert facts_of(f"s3://models/w/a?versionId={version}")[1] == 4


def test_a_source_without_objects_is_named(aws: Any) -> None:
    with pytest.raises(AppError, match="s3://models/none has no file"):
        facts_of("s3://models/none")
