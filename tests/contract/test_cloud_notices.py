"""Topics and signing keys: SNS and the stores of secrets on moto, as the orchestrator calls them.

The embedded cloud has no SNS; keys are read from it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws.clients import open_cloud
from orchgpu.ports import NoticeSender
from tests.contract.conftest import CloudUnderTest


@pytest.fixture
def running(cloud: CloudUnderTest, monkeypatch: pytest.MonkeyPatch) -> CloudUnderTest:
    monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    return cloud


def with_notices(work: Callable[[NoticeSender], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_cloud() as ports:
            assert ports.notices is not None
            await work(ports.notices)

    asyncio.run(main())


def test_a_topic_gets_the_document(running: CloudUnderTest) -> None:
    if running.name == "embedded":
        pytest.skip("the embedded cloud has no SNS")
    sns = running.client("sns")
    topic = sns.create_topic(Name=running.unique("ends"))["TopicArn"]
    url, arn = running.queue()
    raw = {"RawMessageDelivery": "true"}
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=raw)

    async def work(notices: NoticeSender) -> None:
        await notices.publish(topic, '{"type":"job.ended"}')
        with pytest.raises(AppError) as error:
            await notices.publish(f"{topic}-none", "{}")
        assert error.value.code is ErrorCode.NOT_FOUND

    with_notices(work)
    assert running.bodies(url) == [{"type": "job.ended"}]


def test_a_key_is_read_where_it_is_named(running: CloudUnderTest, tmp_path: Path) -> None:
    name = running.unique("hook")
    manager: Any = running.client("secretsmanager")
    manager.create_secret(Name=name, SecretString='{"key": "whsec_a2V5"}')
    running.client("ssm").put_parameter(Name=f"/{name}", Value="other", Type="SecureString")
    file = tmp_path / "key"
    file.write_text("third")

    async def work(notices: NoticeSender) -> None:
        assert await notices.secret(f"secretsmanager:{name}#key") == b"whsec_a2V5"
        assert await notices.secret(f"ssm:/{name}") == b"other"
        assert await notices.secret(f"file:{file}") == b"third"
        manager.put_secret_value(SecretId=name, SecretString='{"key": "new"}')
        assert await notices.secret(f"secretsmanager:{name}#key") == b"whsec_a2V5", "kept a while"
        for absent in (f"ssm:/{name}/none", f"file:{file}.none"):
            with pytest.raises(AppError) as error:
                await notices.secret(absent)
            assert error.value.code is ErrorCode.NOT_FOUND

    with_notices(work)
