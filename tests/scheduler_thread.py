"""An ssgmd in a thread of the test's process, with hosts that a test plays: no process to start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from corekit.budget import Budget
from gpu_scheduler.daemon.app import running_daemon
from gpu_scheduler.daemon.settings import DaemonSettings
from gpu_scheduler.model import Device

#: Production's, but for hosts: those of these tests report seldom, and stay UP.
BUDGET = replace(Budget(), host_stale_s=600.0, host_lost_s=1200.0)


@contextmanager
def scheduler_in_thread(
    state: Path, listen: str = "127.0.0.1:0", capacity: tuple[Device, ...] | None = None
) -> Iterator[str]:
    """The address of its socket endpoint; it ends with the block."""
    found: list[str] = []
    started = threading.Event()
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        over = asyncio.Event()
        settings = DaemonSettings(state=state, budget=BUDGET, listen=listen, capacity=capacity)
        async with running_daemon(settings) as daemon:
            found.append(daemon.socket)
            stop.append((asyncio.get_running_loop(), over))
            started.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="ssgmd")
    thread.start()
    try:
        assert started.wait(60)
        yield found[0]
    finally:
        for loop, over in stop:
            loop.call_soon_threadsafe(over.set)
        thread.join(60)
