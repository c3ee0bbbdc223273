"""The sender of wake-ups by SQS, on the embedded cloud and on moto."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.waker import sender_of

Cloud = Any


@pytest.fixture
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.mark.usefixtures("_keys")
def test_wake_ups_are_messages_of_the_named_queue(cloud: Cloud) -> None:
    url, _ = cloud.queue()
    base, _, name = url.rpartition("/")
    send = sender_of(f"sqs:{base}")
    send(name, ['{"a": 1}', '{"b": 2}'])
    assert sorted(map(str, cloud.bodies(url, 2))) == ["{'a': 1}", "{'b': 2}"]


@pytest.mark.usefixtures("_keys")
def test_a_queue_that_does_not_exist_is_not_found(cloud: Cloud) -> None:
    send = sender_of(f"sqs:{cloud.endpoint}/{cloud.account}")
    with pytest.raises(AppError) as caught:
        send("unknown", ["{}"])
    assert caught.value.code is ErrorCode.NOT_FOUND
