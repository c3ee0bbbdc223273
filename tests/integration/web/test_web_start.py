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
from tests.integration.ssgmd.conftest import BUDGET, Endpoints, serving
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


def _free_addresses(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


@pytest.mark.asyncio
async def test_a_console_that_follows_the_events_reads_all_again_after_a_restart(
    tmp_path: Path,
) -> None:
    address, http = _free_addresses(2)
    settings = ConsoleSettings(scheduler=address, events=http, listen="127.0.0.1:0")
    quick = Budget(reconnect_s_max=0.2)
    door = SchedulerDoor(address=address, access=Access(), budget=quick)

    def serves() -> contextlib.AbstractAsyncContextManager[Endpoints]:
        return serving(tmp_path, budget=BUDGET, listen=address, http=http)

    async def job_of(endpoints: Endpoints, holder: str) -> None:
        async with endpoints.peer() as peer:
            assert "ok" in await peer.hello(session="o")
            sent = {"op": "finish", "holder": holder, "outcome": "FAILED", "reason": "NONE"}
            assert "ok" in await peer.ask(**sent, block={"function": "f"})

    async with contextlib.AsyncExitStack() as stack:
        async with serves() as before:
            console, _ = await stack.enter_async_context(running(settings, door, has_keys=False))

            async def knows(job: str) -> bool:
                return console.picture.connected and console.picture.jobs.get(job) is not None

            await job_of(before, "first")
            await until(lambda: knows("first"))

        async def is_lost() -> bool:
            return not console.picture.connected

        await until(is_lost)
        async with serves() as after:
            await job_of(after, "second")  # perhaps before the console is back
            await until(lambda: knows("second"))
            assert await knows("first")
