"""A blocking `alloc` while ssgmd goes away and comes back: it waits on, and is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from corekit.budget import Budget
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.client.commands.allocation import Ask, allocate
from gpu_scheduler.client.pushes import OnPush
from gpu_scheduler.daemon.app import running_daemon
from gpu_scheduler.daemon.settings import DaemonSettings
from gpu_scheduler.model import Request, Sharing
from orchgpu.local.ports import fixed_address
from tests.integration.ssgm.played_host import PlayedHost

BUDGET = Budget().scaled(0.2)
WHOLE = Request(sharing=Sharing.EXCLUSIVE)
DEVICE = {"kind": "cuda", "model": "M", "memory_mib": 1000}


@asynccontextmanager
async def serving(settings: DaemonSettings) -> AsyncIterator[str]:
    """A daemon with one device; its address."""
    async with running_daemon(settings) as daemon:
        host = await asyncio.to_thread(
            PlayedHost, daemon.socket, "h", "127.0.0.1:1", DEVICE, report_s=0.2
        )
        yield daemon.socket
        await asyncio.to_thread(host.close)


@pytest.mark.asyncio
async def test_a_wait_goes_on_through_a_restart(tmp_path: Path) -> None:
    settings = DaemonSettings(state=tmp_path / "state", listen=fixed_address(), budget=BUDGET)
    async with serving(settings) as address:

        def connect(session: str, on_push: OnPush) -> SchedulerClient:
            return SchedulerClient(address, session=session, budget=BUDGET, on_push=on_push)

        held = await allocate(connect, BUDGET, Ask(request=WHOLE, attempt="first"))
        assert held.granted is not None
        waits = asyncio.Event()
        ask = Ask(request=WHOLE, attempt="second", wait=True)
        waiter = asyncio.create_task(
            allocate(connect, BUDGET, ask, lambda why, waited_s: waits.set())
        )
        await asyncio.wait_for(waits.wait(), 60)
    async with (
        serving(settings),
        SchedulerClient(address, budget=BUDGET) as client,
    ):
        await client.release(held.granted.lease.id)
        outcome = await asyncio.wait_for(waiter, 60)
    assert outcome.granted is not None
    assert outcome.granted.epoch == held.granted.epoch + 1
