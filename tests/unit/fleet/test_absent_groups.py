"""A fleet whose groups are not there yet waits for them."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from corekit.budget import Budget
from gpu_scheduler.client import SchedulerClient
from orchgpu.fleet.ports.memory import MemoryFleet
from orchgpu.fleet.program import Fleet, MemoryFile

OFFERS = "offers: [{name: gpu-a, kind: cuda, memory: 14GiB, max: 1}]"


def test_it_waits_for_a_group_that_a_stack_makes_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "offers.yaml"
    file.write_text(OFFERS)
    caplog.set_level(logging.WARNING)
    client = SchedulerClient("127.0.0.1:1", budget=Budget())  # not reached before the groups are
    fleet = Fleet(client, MemoryFleet(time.time, ()), file, MemoryFile(None), time.time)

    async def lived() -> None:
        running = asyncio.create_task(fleet.run(0.0))
        while caplog.text.count("the fleet waits: there is no group 'gpu-a'") < 2:
            assert not running.done(), running
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(lived())
