"""The embedded cloud in this process, for commands that run in it too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest

from local_cloud.server.application import Options, running
from local_cloud.server.context import Context
from orchgpu.cli.commands.jobs import logs
from orchgpu.jobs import following, scheduler
from orchgpu.local.programs import cloud_environment
from tests.integration.cli.deployed import STATE, deploy


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    folder: Path = tmp_path_factory.mktemp("cloud")
    found: list[Context] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with running(Options(state=folder / "state")) as context:
            found.append(context)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(60)
    yield found[0]
    stop.set()
    thread.join(60)


@pytest.fixture
def s3(cloud: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A deployed function `f`, and nobody who serves it."""
    for name, value in cloud_environment(cloud.endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ORCHGPU_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ORCHGPU_SCHEDULER", raising=False)
    monkeypatch.setattr(following, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(logs, "AFTER_END_S", 0.0)
    monkeypatch.setattr(logs, "ASK_EVERY_S", 0.01)
    monkeypatch.setattr(scheduler, "ANSWER_WITHIN_S", 0.05)
    monkeypatch.chdir(tmp_path)
    with closing(boto3.client("s3")) as client:
        there = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
        for bucket in {STATE, "inputs", "middle", "outputs"} - there:
            client.create_bucket(Bucket=bucket)
        versioned = {"Status": "Enabled"}  # as deploy makes them
        client.put_bucket_versioning(Bucket="inputs", VersioningConfiguration=versioned)
        for bucket in ("inputs", "middle", "outputs"):
            for entry in client.list_objects_v2(Bucket=bucket).get("Contents", []):
                client.delete_object(Bucket=bucket, Key=entry["Key"])
        deploy(client, "1")
        yield client
