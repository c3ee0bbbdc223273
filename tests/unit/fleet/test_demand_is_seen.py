"""Devices that a fleet may start count for the receive window of an orchestrator."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.daemon.capacity import declared_devices
from gpu_scheduler.model import DeviceKind, Request
from gpu_scheduler.protocol.answers import InventoryAnswer
from gpu_scheduler.protocol.ops import Inventory
from orchgpu.adapters.scheduler import SchedulerAdapter
from tests.scheduler_thread import scheduler_in_thread

OFFERS = "offers:\n- {name: a, kind: cuda, model: M, memory: 8GiB, devices: 2, max: 3}\n"


def test_declared_devices_of_the_kind_count(tmp_path: Path) -> None:
    file = tmp_path / "offers.yaml"
    file.write_text(OFFERS)

    async def counts(address: str) -> tuple[int, int, InventoryAnswer]:
        async with SchedulerClient(address) as client:
            adapter = SchedulerAdapter(client, asyncio.Queue())
            cuda = await adapter.device_count(Request(kinds=(DeviceKind.CUDA,)))
            cpu = await adapter.device_count(Request(kinds=(DeviceKind.CPU,)))
            return cuda, cpu, await client.ask(Inventory())

    with scheduler_in_thread(tmp_path / "state", capacity=declared_devices(file)) as address:
        cuda, cpu, inventory = asyncio.run(counts(address))
    assert (cuda, cpu, len(inventory.declared)) == (6, 0, 6)
