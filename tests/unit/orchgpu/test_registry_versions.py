"""A function's record that a newer deploy wrote: older orchestrators go on serving it."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from corekit.aio.clock import SystemClock
from corekit.decode import encode
from local_cloud.model.cloud import Cloud
from local_cloud.model.s3.body import MemoryBodies
from orchgpu.adapters.memory import MemoryStore
from orchgpu.adapters.registry import StoreRegistry
from tests.unit.orchgpu.jobs import FUNCTION


def test_a_record_with_one_more_key_is_served(caplog: pytest.LogCaptureFixture) -> None:
    bodies = MemoryBodies()
    cloud = Cloud(bodies=bodies)
    cloud.create_bucket(0.0, "state")
    record = {**encode(FUNCTION), "colour": "blue"}
    record["request"] = {**record["request"], "near": "h2"}
    deep = b"[" * 100_000 + b"]" * 100_000
    broken = json.dumps({"name": "broken", "reques": 1}).encode()
    for name, value in (
        (FUNCTION.name, json.dumps(record).encode()),
        ("broken", broken),
        ("deep", deep),
    ):
        content = bodies.add(value)
        cloud.put_object(0.0, "state", f"functions/{name}.json", content)
    registry = StoreRegistry(MemoryStore(cloud, bodies, SystemClock()), "state")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert asyncio.run(registry.functions()) == {FUNCTION.name: FUNCTION}
    assert caplog.text.count("functions/search.json.colour is of a newer version") == 1
    assert caplog.text.count("functions/search.json.request.near is of a newer version") == 1
    assert "skipping functions/broken.json" in caplog.text, "what is missing cannot be guessed"
    assert caplog.text.count("skipping functions/deep.json") == 1
