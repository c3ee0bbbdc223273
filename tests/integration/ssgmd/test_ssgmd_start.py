"""While the journal is read, health is answered and everything else is not yet."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpu_scheduler.daemon.app import running_daemon
from gpu_scheduler.daemon.log.engines.file import Disk
from gpu_scheduler.daemon.settings import DaemonSettings
from tests.integration.ssgmd.conftest import BUDGET
from tests.unit.gpu_scheduler_daemon.journals import disk_opener


class HeldDisk(Disk):
    """A disk that writes nothing until it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()

    def write(self, fd: int, data: bytes, offset: int) -> None:
        assert self.let.wait(60), "nobody let it"
        super().write(fd, data, offset)


@pytest.fixture
def disk() -> Iterator[HeldDisk]:
    held = HeldDisk()
    yield held
    held.let.set()


async def address_of(caplog: pytest.LogCaptureFixture) -> str:
    """Address of the HTTP endpoint, from the log."""
    async with asyncio.timeout(60):
        while True:
            for record in caplog.records:
                if getattr(record, "event", "") == "recovering":
                    return str(record.__dict__["http"])
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_it_is_not_ready_before_its_journal_is_read(
    tmp_path: Path, disk: HeldDisk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def serve(stop: asyncio.Event, ready: asyncio.Event) -> None:
        async with running_daemon(DaemonSettings(state=tmp_path, budget=BUDGET), disk_opener(disk)):
            ready.set()
            await stop.wait()

    stop, ready = asyncio.Event(), asyncio.Event()
    daemon = asyncio.ensure_future(serve(stop, ready))
    base = f"http://{await address_of(caplog)}"
    async with aiohttp.ClientSession() as http:

        async def ask(path: str) -> tuple[int, Any]:
            async with http.get(base + path) as answer:
                return answer.status, await answer.json()

        assert await ask("/healthz") == (200, {"ok": True, "role": "recovering", "epoch": 0})
        assert await ask("/readyz") == (503, {"ready": False})
        for path in ("/v1/leases", "/metrics", "/v1/watch"):
            status, value = await ask(path)
            assert (status, value["error"]["code"]) == (503, "unavailable")
        disk.let.set()
        await ready.wait()
        assert await ask("/readyz") == (200, {"ready": True})
        assert await ask("/healthz") == (200, {"ok": True, "role": "leader", "epoch": 1})
        assert (await ask("/v1/leases"))[0] == 200
    stop.set()
    await daemon
