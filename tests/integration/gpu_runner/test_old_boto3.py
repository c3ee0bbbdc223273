"""The runner with a boto3 whose PutObject lacks the conditions: Lambda chooses the release."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.loaders import Loader

from lambda_functions.gpu_runner.storage.s3 import make_client

CONDITIONS = ("IfMatch", "IfNoneMatch")


@pytest.fixture
def old_client(tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The runner's client on the service model of S3 without the conditions of a write."""
    model = copy.deepcopy(Loader().load_service_model("s3", "service-2"))
    for condition in CONDITIONS:
        del model["shapes"]["PutObjectRequest"]["members"][condition]
    folder = tmp_path / "s3" / model["metadata"]["apiVersion"]
    folder.mkdir(parents=True)
    (folder / "service-2.json").write_text(json.dumps(model))
    settings = {"DATA_PATH": tmp_path, "ENDPOINT_URL": endpoint, "DEFAULT_REGION": "us-east-1"}
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", str(value))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    client = make_client()
    members = client.meta.service_model.operation_model("PutObject").input_shape.members
    assert not set(CONDITIONS) & set(members), "the model is the old one"
    yield client
    client.close()


def test_conditional_writes_hold_with_an_old_boto3(old_client: Any, s3: Any) -> None:
    s3.create_bucket(Bucket="old-boto3")
    write = {"Bucket": "old-boto3", "Key": "result"}
    etag = old_client.put_object(**write, Body=b"first", IfNoneMatch="*")["ETag"]
    with pytest.raises(ClientError, match="PreconditionFailed"):
        old_client.put_object(**write, Body=b"second", IfNoneMatch="*")
    old_client.put_object(**write, Body=b"third", IfMatch=etag)
    with pytest.raises(ClientError, match="PreconditionFailed"):
        old_client.put_object(**write, Body=b"fourth", IfMatch=etag)
    old_client.put_object(**write, Body=b"fifth")
    assert s3.get_object(**write)["Body"].read() == b"fifth"
