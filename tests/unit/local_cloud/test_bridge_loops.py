"""The bridge continues after unexpected answers of moto."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corekit.aio.clock import SystemClock
from corekit.aio.supervise import Nursery
from local_cloud.bridge import bridge as bridge_module
from local_cloud.bridge.bridge import Bridge
from local_cloud.process import CloudClock


class Babbling:
    """A server whose first answers lack what every answer has."""

    region = "us-east-1"

    def __init__(self) -> None:
        self.observed = self.received = 0

    def create_queue(self, _name: str) -> tuple[str, str]:
        return "url", "arn:aws:sqs:us-east-1:123456789012:bridge"

    def observe(self, _queue: str) -> list[Any]:
        self.observed += 1
        if 1 < self.observed < 4:
            raise KeyError("Rules")
        return []

    def receive(self, _url: str, _wait_s: float) -> list[Any]:
        self.received += 1
        raise TypeError("'NoneType' object is not subscriptable")


@pytest.mark.asyncio
async def test_an_unexpected_answer_does_not_end_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "DISCOVER_S", 0.01)
    monkeypatch.setattr(bridge_module, "_BACK_OFF_S", 0.01)
    moto: Any = Babbling()
    sandbox: Any = SimpleNamespace()
    async with Nursery("bridge") as nursery:
        clock = CloudClock(SystemClock())
        bridge = await Bridge.start(moto, sandbox, tmp_path, nursery, clock)
        failing = nursery.start(nursery.failed(), "failing")
        for _ in range(6000):
            if moto.observed >= 5 and moto.received >= 3:
                break
            await asyncio.sleep(0.01)
        assert (moto.observed >= 5, moto.received >= 3) == (True, True)
        assert not failing.done()
        bridge.close()
