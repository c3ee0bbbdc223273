"""OpenCL devices as the driver of this machine tells them; skipped where there is none."""

from __future__ import annotations

import asyncio

import pytest

from corekit.errors import AppError
from gpu_scheduler.model import Device, DeviceKind, Health
from gpu_scheduler.monitor.child import ChildProbe
from gpu_scheduler.versions import is_version


def test_devices_of_this_machine() -> None:
    async def look() -> tuple[Device, ...]:
        probe = ChildProbe("gpu_scheduler.monitor.opencl", "OpenCL", "here", 60.0)
        try:
            return await probe.devices()
        except AppError as error:
            pytest.skip(error.message)
        finally:
            await probe.close()

    devices = asyncio.run(look())
    assert len({device.id for device in devices}) == len(devices)
    for index, device in enumerate(devices):
        assert device.id.startswith("here/")
        assert (device.index, device.kind, device.health) == (index, DeviceKind.OPENCL, Health.OK)
        assert device.memory_mib > 0
        assert is_version(device.runtime)
