"""An error at any await of a daemon's tasks ends one thing, never the daemon.

gpud: `gpud/test_gpud_interrupted.py`; the orchestrator: `tests/unit/orchgpu/test_interrupted.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corekit.budget import Budget
from corekit.errors import AppError
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.client.access import Access
from gpu_scheduler.model import LeaseLifetime, Request
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.monitor.probes import FileProbe
from gpu_scheduler.monitor.watched import WatchedHost
from orchgpu.web.app import running
from orchgpu.web.console import ConsoleSettings
from orchgpu.web.doors import SchedulerDoor
from tests.integration.ssgmd.conftest import Endpoints, serving
from tests.interruptions import Interruptions, interruptions

#: Beats, reports and rounds several times a second.
BUDGET = Budget().scaled(0.05)
#: The core and its journal: an error ends ssgmd, whose next start reads the journal.
OF_THE_DAEMON = {"driver", "sync", "room", "beats"}


async def reached(found: Interruptions) -> None:
    """Let loops run until the due await was reached; a loop that has fewer awaits is left."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            while not found.is_reached:  # noqa: ASYNC110 - it may be any task
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def daemons(folder: Path) -> AsyncIterator[tuple[Endpoints, SchedulerClient, HostLink, str]]:
    """ssgmd, a client, ssgm-monitor and the web console; the console's address."""
    inventory = folder / "inventory.yaml"
    inventory.write_text("devices: [{kind: cuda, model: m, memory_mib: 10}]\n")
    async with contextlib.AsyncExitStack() as stack:
        ssgmd = await stack.enter_async_context(serving(folder / "state", budget=BUDGET))
        address = ssgmd.daemon.socket
        client = await stack.enter_async_context(
            SchedulerClient(address, budget=BUDGET, deadline_s=60)
        )
        link = HostLink(
            address,
            host="k80",
            control=WatchedHost(),
            probe=FileProbe(inventory, "k80"),
            gateway=None,
            budget=BUDGET,
        )
        await stack.enter_async_context(link)
        await link.registered()
        door = SchedulerDoor(address=address, access=Access(), budget=BUDGET)
        settings = ConsoleSettings(scheduler=address, listen="127.0.0.1:0")
        _, console = await stack.enter_async_context(running(settings, door, False))
        yield ssgmd, client, link, console


@pytest.mark.asyncio
async def test_ssgmd_the_monitor_and_the_console_live_on(tmp_path: Path) -> None:
    with interruptions() as found:
        async with daemons(tmp_path) as (ssgmd, client, link, console):

            async def served(number: int) -> None:
                asked = Request(advisory=True)
                got = await client.reserve(
                    f"j:{number}", asked, hold=LeaseLifetime.DEADLINE, lease_s=60
                )
                if got.granted is not None:
                    await client.release(got.granted.lease.id)
                assert (await ssgmd.ask("GET", "/v1/inventory")).status == 200
                async with ssgmd.http.get(f"http://{console}/api/session") as answer:
                    assert answer.status == 200

            await served(0)
            for kind in sorted(found.kinds - OF_THE_DAEMON):
                for number, _ in enumerate(found.points(kind), 1):
                    with contextlib.suppress(AppError):
                        await served(number)
                    await reached(found)
                await link.registered()
                await served(0)
    assert not found.failures
