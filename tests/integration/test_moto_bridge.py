"""The bridge: functions that a moto server only holds really run."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.contract.conftest import TRUST
from tests.contract.zips import zipped

SOURCE = """
import urllib.parse
import boto3

s3 = boto3.client("s3")

def handle(event, context):
    (record,) = event["Records"]
    entity = record["s3"]
    key = urllib.parse.unquote_plus(entity["object"]["key"])
    body = s3.get_object(Bucket=entity["bucket"]["name"], Key=key)["Body"].read()
    if body == b"fail":
        raise ValueError("told to")
    name = "out/" + key.removeprefix("in/") + "/" + context.aws_request_id
    s3.put_object(Bucket=entity["bucket"]["name"], Key=name, Body=entity["configurationId"])
"""


@contextmanager
def program(folder: Path, module: str, *arguments: str) -> Iterator[str]:
    """A program with a ready file; its endpoint."""
    ready, log = folder / f"{module}.json", folder / f"{module}.log"
    command = [sys.executable, "-m", module, "--ready-file", str(ready), *arguments]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        ends_s = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends_s
            time.sleep(0.02)
        yield json.loads(ready.read_text())["endpoint"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0, log.read_text()


@dataclass
class World:
    """A moto server with its bridge."""

    s3: Any
    sqs: Any
    functions: Any
    account: str

    def queue(self, name: str) -> tuple[str, str]:
        url = self.sqs.create_queue(QueueName=name)["QueueUrl"]
        return url, f"arn:aws:sqs:us-east-1:{self.account}:{name}"

    def deploy(self, name: str) -> str:
        """A function whose events come from below `in/` of the bucket that is returned."""
        bucket = f"bucket-{name}"
        self.s3.create_bucket(Bucket=bucket)
        code = zipped(SOURCE)
        self.s3.put_object(Bucket=bucket, Key="code.zip", Body=code)
        made = self.functions.create_function(
            FunctionName=name,
            Runtime="python3.11",
            Handler="app.handle",
            Timeout=30,
            Role=f"arn:aws:iam::{self.account}:role/r",
            MemorySize=256,
            Code={"ZipFile": code},
            Tags={"orchgpu:package": f"s3://{bucket}/code.zip"},
        )
        prefix = {"Key": {"FilterRules": [{"Name": "prefix", "Value": "in/"}]}}
        rule = {"Id": f"rule-{name}", "Events": ["s3:ObjectCreated:*"], "Filter": prefix}
        rules = [{**rule, "LambdaFunctionArn": made["FunctionArn"]}]
        self.s3.put_bucket_notification_configuration(
            Bucket=bucket, NotificationConfiguration={"LambdaFunctionConfigurations": rules}
        )
        return bucket

    def outputs(self, bucket: str, key: str, count: int) -> list[str]:
        ends_s = time.monotonic() + 60
        while True:
            found = self.s3.list_objects_v2(Bucket=bucket, Prefix=f"out/{key}/").get("Contents", ())
            if len(found) >= count or time.monotonic() > ends_s:
                return [entry["Key"] for entry in found]
            time.sleep(0.1)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("bridge")
    with ExitStack() as stack:
        endpoint = stack.enter_context(program(folder, "orchgpu.local.moto"))
        state = ("--endpoint", endpoint, "--state", str(folder / "state"))
        stack.enter_context(program(folder, "local_cloud.bridge", *state))

        def client(service: str) -> Any:
            keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
            made = boto3.client(service, endpoint_url=endpoint, region_name="us-east-1", **keys)
            stack.callback(made.close)
            return made

        account = client("sts").get_caller_identity()["Account"]
        client("iam").create_role(RoleName="r", AssumeRolePolicyDocument=TRUST)
        yield World(client("s3"), client("sqs"), client("lambda"), account)


def test_an_upload_right_after_the_deployment_is_not_missed(world: World) -> None:
    bucket = world.deploy("early")
    world.s3.put_object(Bucket=bucket, Key="in/a b+ü", Body=b"x")
    assert world.outputs(bucket, "a b+ü", 1)


def test_later_events_run_once_and_name_the_rule(world: World) -> None:
    bucket = world.deploy("later")
    world.s3.put_object(Bucket=bucket, Key="in/first", Body=b"x")
    assert world.outputs(bucket, "first", 1)
    other = world.deploy("after")  # its rule is found by a later look, so the first one is over
    world.s3.put_object(Bucket=other, Key="in/x", Body=b"x")
    assert world.outputs(other, "x", 1)
    world.s3.put_object(Bucket=bucket, Key="in/k", Body=b"x")
    world.s3.upload_fileobj(io.BytesIO(bytes(9 * 2**20)), bucket, "in/parts")
    outputs = [*world.outputs(bucket, "k", 1), *world.outputs(bucket, "parts", 1)]
    with world.s3.get_object(Bucket=bucket, Key=outputs[0])["Body"] as body:
        assert body.read() == b"rule-later"
    world.s3.put_object(Bucket=bucket, Key="in/last", Body=b"x")
    assert world.outputs(bucket, "last", 1)  # events come in order
    again = [*world.outputs(bucket, "k", 1), *world.outputs(bucket, "parts", 1)]
    assert (len(outputs), again) == (2, outputs)


def test_a_failure_reaches_its_destination(world: World) -> None:
    url, arn = world.queue("failures")
    bucket = world.deploy("failing")
    world.functions.put_function_event_invoke_config(
        FunctionName="failing",
        MaximumRetryAttempts=0,
        DestinationConfig={"OnFailure": {"Destination": arn}},
    )
    world.s3.put_object(Bucket=bucket, Key="in/bad", Body=b"fail")
    bodies: list[Any] = []
    ends_s = time.monotonic() + 60
    while not bodies and time.monotonic() < ends_s:
        answer = world.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2)
        bodies = [json.loads(message["Body"]) for message in answer.get("Messages", ())]
    (record,) = bodies
    assert record["requestContext"]["condition"] == "RetriesExhausted"
    assert record["responsePayload"]["errorMessage"] == "told to"
    (event,) = record["requestPayload"]["Records"]
    assert urllib.parse.unquote_plus(event["s3"]["object"]["key"]) == "in/bad"


def test_foreign_rules_of_the_bucket_stay(world: World) -> None:
    _, arn = world.queue("foreign")
    bucket = world.deploy("shared")
    before = world.s3.get_bucket_notification_configuration(Bucket=bucket)
    rule = {"Id": "foreign", "QueueArn": arn, "Events": ["s3:ObjectRemoved:*"]}
    world.s3.put_bucket_notification_configuration(
        Bucket=bucket,
        NotificationConfiguration={
            "LambdaFunctionConfigurations": before["LambdaFunctionConfigurations"],
            "QueueConfigurations": [rule],
        },
    )
    ends_s = time.monotonic() + 60
    while True:  # the mirror was overwritten: it comes back, beside the foreign rule
        after = world.s3.get_bucket_notification_configuration(Bucket=bucket)
        arns = {q["QueueArn"].rsplit(":", 1)[-1] for q in after["QueueConfigurations"]}
        if arns == {"foreign", "local-cloud-bridge"}:
            break
        assert time.monotonic() < ends_s, arns
        time.sleep(0.1)
    assert after["LambdaFunctionConfigurations"] == before["LambdaFunctionConfigurations"]
