"""A function's record that a newer deploy wrote: older orchestrators go on serving it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping

import pytest

from corekit.aio.clock import SystemClock
from corekit.decode import encode, encode_json
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from local_cloud.model.cloud import Cloud
from local_cloud.model.s3.body import MemoryBodies
from orchgpu.adapters.registry import CHANGED_KEY, LISTED_EVERY, PREFIX, StoreRegistry
from orchgpu.ports import StoredObject
from simulator.faults.memory_cloud import MemoryStore
from tests.unit.orchgpu.jobs import FUNCTION
from tests.unit.orchgpu.runs.run_world import step, workflow


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


class CountingStore(MemoryStore):
    """The calls of a registry."""

    def __init__(self, cloud: Cloud, bodies: MemoryBodies) -> None:
        super().__init__(cloud, bodies, SystemClock())
        self.listings = 0
        self.denied = False

    async def etags(self, bucket: str, prefix: str) -> Mapping[str, str]:
        self.listings += prefix == PREFIX
        return await super().etags(bucket, prefix)

    async def head(self, bucket: str, key: str) -> StoredObject:
        if self.denied:
            raise AppError(ErrorCode.DENIED, "AccessDenied")
        return await super().head(bucket, key)


class Deploys:
    """A state bucket that deploys write to, and an orchestrator's registry."""

    def __init__(self) -> None:
        self._bodies = MemoryBodies()
        self._cloud = Cloud(bodies=self._bodies)
        self._cloud.create_bucket(0.0, "state")
        self.store = CountingStore(self._cloud, self._bodies)
        self._registry = StoreRegistry(self.store, "state")

    def put(self, key: str, body: bytes) -> None:
        self._cloud.put_object(0.0, "state", key, self._bodies.add(body))

    def record(self, name: str) -> None:
        self.put(f"functions/{name}.json", encode_json(replace(FUNCTION, name=name)))

    def poll(self, times: int = 1) -> list[str]:
        for _ in range(times):
            found = asyncio.run(self._registry.functions())
        return sorted(found)

    def workflows(self) -> list[str]:
        return sorted(self._registry.workflows())


def test_an_unchanged_registry_is_not_listed() -> None:
    """Low: a LIST every two seconds costs about 6.5 USD a month and replica."""
    deploys = Deploys()
    deploys.record("a")
    deploys.put(CHANGED_KEY, b"1")
    assert deploys.poll(LISTED_EVERY) == ["a"]
    assert deploys.store.listings == 1
    deploys.record("b")
    deploys.put(CHANGED_KEY, b"2")
    assert (deploys.poll(), deploys.store.listings) == (["a", "b"], 2), "a deploy is seen at once"
    deploys.record("c")  # by a version that does not write the object
    assert deploys.poll(LISTED_EVERY) == ["a", "b"]
    assert (deploys.poll(), deploys.store.listings) == (["a", "b", "c"], 3)


def test_without_the_object_or_the_right_to_read_it_every_poll_lists() -> None:
    deploys = Deploys()
    deploys.record("a")
    assert (deploys.poll(3), deploys.store.listings) == (["a"], 3)
    deploys.put(CHANGED_KEY, b"1")
    deploys.store.denied = True
    assert (deploys.poll(3), deploys.store.listings) == (["a"], 6)


def test_a_workflow_is_served_once_all_its_functions_are() -> None:
    deploys = Deploys()
    flow = workflow(step("a"), step("b", "a"))
    deploys.record("a")
    deploys.put("workflows/films.json", encode_json(flow))
    deploys.put(CHANGED_KEY, b"1")
    deploys.poll()
    assert deploys.workflows() == []
    deploys.record("b")
    deploys.put(CHANGED_KEY, b"2")
    deploys.poll()
    assert deploys.workflows() == ["films"]
