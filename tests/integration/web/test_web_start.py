"""The console begins while the scheduler is away, and finds it when it is there."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import aiohttp
import pytest

from corekit.budget import Budget
from gpu_scheduler.client.access import Access
from orchgpu.web.app import running
from orchgpu.web.console import ConsoleSettings
from orchgpu.web.doors import SchedulerDoor
from tests.integration.ssgmd.conftest import BUDGET, serving
from tests.integration.web.conftest import until


@pytest.mark.asyncio
async def test_a_console_starts_without_its_scheduler_and_connects_later(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = ConsoleSettings(scheduler=address, listen="127.0.0.1:0")
    door = SchedulerDoor(address=address, access=Access(), budget=Budget(reconnect_s_max=0.2))
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        )
        _, console = await stack.enter_async_context(running(settings, door, has_keys=False))

        async def connected() -> bool:
            async with http.get(f"http://{console}/healthz") as answer:
                return bool((await answer.json())["connected"])

        assert not await connected()
        await stack.enter_async_context(serving(tmp_path, budget=BUDGET, listen=address))
        await until(connected)
