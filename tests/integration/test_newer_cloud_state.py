"""The embedded cloud starts on what a newer version wrote: all is there, the new keys are named."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from local_cloud.model.cloud import Cloud
from local_cloud.model.functions.functions import FunctionSettings
from local_cloud.model.s3.body import MemoryBodies
from local_cloud.server.restore import restore
from local_cloud.server.state_log import StateLog

NEW = {"NewKey": "new"}


def opened(folder: Path) -> tuple[Cloud, StateLog]:
    state = StateLog(folder, lambda flush: None)
    cloud = Cloud(recorder=state)
    restore(cloud, state, 10.0)
    return cloud, state


def filled(folder: Path) -> None:
    """One of each kind of thing the cloud keeps."""
    cloud, state = opened(folder)
    cloud.create_bucket(0.0, "inputs")
    cloud.put_object(0.0, "inputs", "a", MemoryBodies().add(b"body"))
    cloud.queues.create(0.0, "jobs").send(0.0, "hello")
    function = cloud.functions.create(0.0, FunctionSettings(name="resize", given={"Timeout": 7}))
    cloud.invoke_later(0.0, function.arn, "{}")
    state.close()


def newer(value: Any) -> Any:
    """The same with one more key in every object."""
    if isinstance(value, dict):
        return {**{key: newer(item) for key, item in value.items()}, **NEW}
    return value


def test_a_newer_clouds_state_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path)
    log = tmp_path / "cloud.jsonl"
    lines = [json.loads(line) for line in log.read_bytes().splitlines()]
    assert {key.partition("/")[0] for key, _ in lines} >= {
        "bucket",
        "object",
        "queue",
        "message",
        "function",
        "invocation",
    }
    written = [[key, newer(value)] for key, value in lines]
    log.write_text("".join(json.dumps(line) + "\n" for line in written))
    with caplog.at_level(logging.WARNING):
        cloud, state = opened(tmp_path)
    state.close()
    assert cloud.bucket("inputs") is not None
    assert [m.body for m in cloud.queues.get("jobs").receive(10.0)] == ["hello"]
    assert cloud.functions.get("resize").settings.timeout_s == 7
    assert "message.NewKey is of a newer version" in caplog.text
    assert b"NewKey" in log.read_bytes(), "what is not written again stays as it was"
