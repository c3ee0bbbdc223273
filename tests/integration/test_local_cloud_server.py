"""The embedded cloud as a process: what it keeps, how it ends, and who can speak to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.contract.zips import zipped

SLEEPY = "import os, time\ndef handle(e, c):\n    print(os.getpid(), flush=True)\n    time.sleep(e)"


class Server:
    """One server process over a state directory."""

    def __init__(self, folder: Path) -> None:
        ready, log = folder / "ready.json", folder / "server.log"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "local_cloud.server", "--state", str(folder / "state")]
        with log.open("ab") as out:
            self.process = subprocess.Popen([*command, "--ready-file", str(ready)], stderr=out)
        ends_s = time.monotonic() + 30
        while not ready.exists():
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < ends_s
            time.sleep(0.02)
        self.ready: dict[str, Any] = json.loads(ready.read_text())
        self.endpoint = str(self.ready["endpoint"])
        self._clients: list[Any] = []

    def client(self, service: str) -> Any:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        client = boto3.client(service, endpoint_url=self.endpoint, region_name="us-east-1", **keys)
        self._clients.append(client)
        return client

    def end(self, number: signal.Signals) -> int:
        for client in self._clients:
            client.close()
        self.process.send_signal(number)
        return self.process.wait(15)


@contextmanager
def server(folder: Path, ending: signal.Signals = signal.SIGTERM) -> Iterator[Server]:
    running = Server(folder)
    try:
        yield running
    finally:
        status = running.end(ending)
    assert status == (0 if ending is signal.SIGTERM else -ending)


def make_function(functions: Any, source: str) -> None:
    functions.create_function(
        FunctionName="f",
        Runtime="python3.11",
        Role="arn:aws:iam::000000000000:role/r",
        Handler="app.handle",
        Code={"ZipFile": zipped(source)},
        Timeout=30,
    )


def gone(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return fields[0] == "Z"


def until_gone(pid: int) -> None:
    ends_s = time.monotonic() + 30
    while not gone(pid):
        assert time.monotonic() < ends_s, f"process {pid} is still there"
        time.sleep(0.02)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_everything_answered_is_there_after_a_restart(
    tmp_path: Path, ending: signal.Signals
) -> None:
    with server(tmp_path, ending) as first:
        s3, sqs = first.client("s3"), first.client("sqs")
        s3.create_bucket(Bucket="bucket")
        versioning = {"Status": "Enabled"}
        s3.put_bucket_versioning(Bucket="bucket", VersioningConfiguration=versioning)
        old = s3.put_object(Bucket="bucket", Key="k/ü", Body=b"one")["VersionId"]
        s3.put_object(Bucket="bucket", Key="k/ü", Body=b"two", Metadata={"a": "b"})
        upload = s3.create_multipart_upload(Bucket="bucket", Key="parts")["UploadId"]
        part = {"Bucket": "bucket", "Key": "parts", "UploadId": upload}
        etag = s3.upload_part(**part, PartNumber=1, Body=b"part")["ETag"]
        url = sqs.create_queue(QueueName="q", Attributes={"VisibilityTimeout": "60"})["QueueUrl"]
        for body in ("held", "gone", "left"):
            sqs.send_message(QueueUrl=url, MessageBody=body)
        held = sqs.receive_message(QueueUrl=url)["Messages"][0]
        done = sqs.receive_message(QueueUrl=url)["Messages"][0]
        sqs.delete_message(QueueUrl=url, ReceiptHandle=done["ReceiptHandle"])
        make_function(first.client("lambda"), "def handle(e, c): return e")
    with server(tmp_path) as second:
        assert second.endpoint == first.endpoint  # its clients need not learn a new one
        s3, sqs = second.client("s3"), second.client("sqs")
        head = s3.head_object(Bucket="bucket", Key="k/ü")
        assert (head["Metadata"], head["ContentLength"]) == ({"a": "b"}, 3)
        with s3.get_object(Bucket="bucket", Key="k/ü", VersionId=old)["Body"] as body:
            assert body.read() == b"one"
        made = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
        s3.complete_multipart_upload(**part, MultipartUpload=made)
        (left,) = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
        assert left["Body"] == "left"
        sqs.delete_message(QueueUrl=url, ReceiptHandle=held["ReceiptHandle"])
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        assert attributes["VisibilityTimeout"] == "60"
        assert attributes["ApproximateNumberOfMessagesNotVisible"] == "1"
        answer = second.client("lambda").invoke(FunctionName="f", Payload=b'"still here"')
        with answer["Payload"] as payload:
            assert payload.read() == b'"still here"'


def test_an_accepted_event_survives_the_server(tmp_path: Path) -> None:
    with server(tmp_path, signal.SIGKILL) as first:
        sqs, functions = first.client("sqs"), first.client("lambda")
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        make_function(functions, SLEEPY)
        arn = "arn:aws:sqs:us-east-1:000000000000:q"
        functions.put_function_event_invoke_config(
            FunctionName="f", DestinationConfig={"OnSuccess": {"Destination": arn}}
        )
        functions.invoke(FunctionName="f", InvocationType="Event", Payload=b"0.2")
    with server(tmp_path) as second:
        answer = second.client("sqs").receive_message(QueueUrl=url, WaitTimeSeconds=20)
        record = json.loads(answer["Messages"][0]["Body"])
        assert record["requestContext"]["condition"] == "Success"


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_no_function_outlives_the_server(tmp_path: Path, ending: signal.Signals) -> None:
    with server(tmp_path, ending) as running:
        functions, logs = running.client("lambda"), running.client("logs")
        make_function(functions, SLEEPY)
        functions.invoke(FunctionName="f", Payload=b"0")  # this one is frozen at the end
        functions.invoke(FunctionName="f", InvocationType="Event", Payload=b"0")
        functions.invoke(FunctionName="f", InvocationType="Event", Payload=b"600")
        pids: set[int] = set()
        ends_s = time.monotonic() + 30
        while len(pids) < 1 or time.monotonic() < ends_s - 29:
            assert time.monotonic() < ends_s
            found = logs.filter_log_events(logGroupName="/aws/lambda/f")["events"]
            pids = {int(e["message"]) for e in found if e["message"].isdigit()}
            time.sleep(0.05)
        assert all(not gone(pid) for pid in pids)
    for pid in pids:
        until_gone(pid)


def test_two_servers_do_not_share_a_state(tmp_path: Path) -> None:
    with server(tmp_path):
        again = subprocess.run(
            [sys.executable, "-m", "local_cloud.server", "--state", str(tmp_path / "state")],
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert again.returncode == 4
    assert "in use by another embedded cloud" in again.stderr


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1:99999", "127.0.0.1:x"])
def test_a_bad_address_is_named(tmp_path: Path, listen: str) -> None:
    command = [sys.executable, "-m", "local_cloud.server", "--state", str(tmp_path)]
    failed = subprocess.run(
        [*command, "--listen", listen], capture_output=True, text=True, timeout=30
    )
    assert failed.returncode == 2
    assert repr(listen) in failed.stderr


def test_a_localstack_client_session_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from localstack_client.session import Session

    with server(tmp_path) as running:
        monkeypatch.setenv("LOCALSTACK_HOST", running.endpoint.removeprefix("http://"))
        session = Session()
        s3, sqs, functions = (session.client(name) for name in ("s3", "sqs", "lambda"))
        assert s3.meta.endpoint_url == running.endpoint
        s3.create_bucket(Bucket="bucket")
        s3.put_object(Bucket="bucket", Key="k", Body=b"data")
        with s3.get_object(Bucket="bucket", Key="k")["Body"] as body:
            assert body.read() == b"data"
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="x")
        assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "x"
        make_function(functions, "def handle(e, c): return [e]")
        with functions.invoke(FunctionName="f", Payload=b"1")["Payload"] as payload:
            assert payload.read() == b"[1]"
        for client in (s3, sqs, functions):
            client.close()


def test_an_image_function_runs_its_package_or_is_refused_with_the_reason(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        s3, functions = running.client("s3"), running.client("lambda")
        image: dict[str, Any] = {
            "FunctionName": "f",
            "PackageType": "Image",
            "Code": {"ImageUri": "some/image:1"},
            "Role": "arn:aws:iam::000000000000:role/r",
            "ImageConfig": {"Command": ["app.handle"]},
        }
        with pytest.raises(functions.exceptions.InvalidParameterValueException) as error:
            functions.create_function(**image)
        assert "some/image:1" in str(error.value)
        assert "give the function a script" in str(error.value)
        s3.create_bucket(Bucket="bucket")
        s3.put_object(Bucket="bucket", Key="one", Body=zipped("def handle(e, c): return 1"))
        s3.put_object(Bucket="bucket", Key="two", Body=zipped("def handle(e, c): return 2"))
        functions.create_function(**image, Tags={"orchgpu:package": "s3://bucket/one"})
        arn = functions.get_function(FunctionName="f")["Configuration"]["FunctionArn"]
        answers = []
        for key in ("one", "two"):
            functions.tag_resource(Resource=arn, Tags={"orchgpu:package": f"s3://bucket/{key}"})
            with functions.invoke(FunctionName="f")["Payload"] as payload:
                answers.append(payload.read())
        assert answers == [b"1", b"2"]


def test_large_objects_are_not_held_in_memory(tmp_path: Path) -> None:
    def resident_mib(pid: int) -> int:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) // 1024

    with server(tmp_path) as running:
        s3 = running.client("s3")
        s3.create_bucket(Bucket="bucket")
        big = tmp_path / "big"
        with big.open("wb") as file:
            file.truncate(96 * 2**20)
        before = resident_mib(running.process.pid)
        with big.open("rb") as source:
            s3.put_object(Bucket="bucket", Key="big", Body=source)
        size = 0
        with s3.get_object(Bucket="bucket", Key="big")["Body"] as body:
            while data := body.read(2**20):
                size += len(data)
        assert size == 96 * 2**20
        assert resident_mib(running.process.pid) - before < 40
        assert os.path.getsize(big) == size
