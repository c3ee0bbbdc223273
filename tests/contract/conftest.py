"""Both clouds behind one fixture: the embedded one and moto, each a process on its own port."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from gpu_scheduler.daemon.journal.journal import Journal, JournalSettings
from gpu_scheduler.daemon.log.registry import open_log, parse_log_address
from gpu_scheduler.daemon.log.writer import RetryLimits
from tests.contract.log_journals import Opener
from tests.contract.moto_gaps import MOTO_GAPS, NOT_ASKED
from tests.contract.zips import zipped
from tests.log_engines import CALL_S, ENGINES, EngineUnderTest

PROGRAMS = {"embedded": "local_cloud.server", "moto": "orchgpu.local.moto"}
_START_S_MAX = 60.0  # two loaded cores
#: What the tests below need of a role, on both.
TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "lambda.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }
)


@dataclass
class CloudUnderTest:
    """One running cloud, clients for it, and names that no other test uses."""

    name: str
    endpoint: str
    account: str = ""
    _clients: dict[str, Any] = field(default_factory=dict)
    _count: int = 0

    @property
    def patience_s(self) -> int:
        """How long a test waits for what comes by itself: on moto in vain, see its gaps."""
        return 2 if self.name == "moto" else 60

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = boto3.client(
                service,
                endpoint_url=self.endpoint,
                region_name="us-east-1",
                aws_access_key_id="test",
                aws_secret_access_key="test",
                config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}),
            )
        return self._clients[service]

    def unique(self, word: str) -> str:
        self._count += 1
        return f"{word}-{self._count}"

    def bucket(self, *, versioned: bool = False) -> str:
        name = self.unique("bucket")
        self.client("s3").create_bucket(Bucket=name)
        if versioned:
            self.client("s3").put_bucket_versioning(
                Bucket=name, VersioningConfiguration={"Status": "Enabled"}
            )
        return name

    def queue(self, **attributes: str) -> tuple[str, str]:
        """URL and ARN."""
        sqs = self.client("sqs")
        url = sqs.create_queue(QueueName=self.unique("queue"), Attributes=attributes)["QueueUrl"]
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return url, found["Attributes"]["QueueArn"]

    def event_queue(self) -> tuple[str, str]:
        """A queue that lets S3 in."""
        url, arn = self.queue()
        policy = {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": "s3.amazonaws.com"},
                    "Action": "sqs:SendMessage",
                    "Resource": arn,
                }
            ],
        }
        self.client("sqs").set_queue_attributes(
            QueueUrl=url, Attributes={"Policy": json.dumps(policy)}
        )
        return url, arn

    def bodies(self, url: str, count: int = 1, wait_s: int = 5) -> list[Any]:
        """At least `count` messages as JSON, deleted; fewer when they do not come."""
        sqs = self.client("sqs")
        found: list[Any] = []
        ends_s = time.monotonic() + wait_s
        while len(found) < count and time.monotonic() < ends_s:
            answer = sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=min(wait_s, 2)
            )
            for message in answer.get("Messages", ()):
                found.append(json.loads(message["Body"]))
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return found

    def function(self, source: str, **arguments: Any) -> str:
        """The name of a new function with this `app.py`."""
        name = self.unique("function")
        self.client("lambda").create_function(
            **{
                "FunctionName": name,
                "Runtime": "python3.11",
                "Role": f"arn:aws:iam::{self.account}:role/contract",
                "Handler": "app.handle",
                "Code": {"ZipFile": zipped(source)},
                "Timeout": 30,
                **arguments,
            }
        )
        return name


@pytest.fixture(scope="session", params=PROGRAMS)
def running_cloud(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CloudUnderTest]:
    folder = tmp_path_factory.mktemp(request.param)
    ready = folder / "ready.json"
    command = [sys.executable, "-m", PROGRAMS[request.param], "--ready-file", str(ready)]
    if request.param == "embedded":
        command += ["--state", str(folder / "state")]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        cloud = None
        try:
            ends_s = time.monotonic() + _START_S_MAX
            while not ready.exists():
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < ends_s, "it does not start"
                time.sleep(0.02)
            cloud = CloudUnderTest(request.param, json.loads(ready.read_text())["endpoint"])
            cloud.account = cloud.client("sts").get_caller_identity()["Account"]
            cloud.client("iam").create_role(RoleName="contract", AssumeRolePolicyDocument=TRUST)
            yield cloud
        finally:
            for client in cloud._clients.values() if cloud else ():
                client.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0, (folder / "log").read_text()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what moto is not asked."""
    left_out = [item for item in items if _is_not_asked(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_not_asked(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or item.originalname not in NOT_ASKED:
        return False
    return item.callspec.params.get("running_cloud") == "moto"


@pytest.fixture
def cloud(running_cloud: CloudUnderTest, request: pytest.FixtureRequest) -> CloudUnderTest:
    """The cloud under test; what is known of moto is expected of it."""
    reason = MOTO_GAPS.get(getattr(request.node, "originalname", ""))
    if running_cloud.name == "moto" and reason is not None:
        request.node.add_marker(pytest.mark.xfail(reason=f"moto: {reason}", strict=True))
    return running_cloud


@pytest.fixture(scope="module", params=ENGINES)
def running_engine(request: pytest.FixtureRequest) -> Iterator[EngineUnderTest]:
    with ENGINES[request.param]() as engine:
        yield engine


@pytest.fixture
def engine(
    running_engine: EngineUnderTest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EngineUnderTest]:
    for name, value in running_engine.environment.items():
        monkeypatch.setenv(name, value)
    try:
        yield running_engine
    finally:
        running_engine.close_all()


@pytest.fixture
def refused() -> Callable[[Callable[[], Any]], str]:
    """The error code with which a call is refused."""

    def run(call: Callable[[], Any]) -> str:
        from botocore.exceptions import ClientError

        with pytest.raises(ClientError) as error:
            call()
        return str(error.value.response["Error"]["Code"])

    return run


@pytest.fixture
def opened(engine: EngineUnderTest, tmp_path: Path) -> Iterator[Callable[..., Journal]]:
    """Opens journals on an address; all are closed after the test."""
    found: list[Journal] = []

    def open_journal(address: str, opener: Opener = open_log) -> Journal:
        retry = RetryLimits(first_s=0.001, most_s=0.01)
        parsed = parse_log_address(address)
        settings = JournalSettings(address=parsed, state=tmp_path, call_s=CALL_S, retry=retry)
        found.append(Journal(settings, opener))
        return found[-1]

    yield open_journal
    for journal in found:
        journal.close()
