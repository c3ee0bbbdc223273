"""OpenCL devices as the drivers of this machine report them."""

from __future__ import annotations

import asyncio

import pytest

from corekit.errors import AppError
from gpu_scheduler.constraints import is_version
from gpu_scheduler.model import Device, DeviceKind, Health
from gpu_scheduler.monitor.drivers.child import ChildProbe
from tests.drivers import needs_cpu_driver


async def poll() -> tuple[Device, ...]:
    probe = ChildProbe("gpu_scheduler.monitor.drivers.opencl", "OpenCL", "here", 60.0)
    try:
        return await probe.devices()
    finally:
        await probe.close()


def test_a_machine_without_drivers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCL_ICD_VENDORS", "/nonexistent")
    with pytest.raises(AppError, match="no OpenCL driver answers"):
        asyncio.run(poll())


@needs_cpu_driver
def test_devices_of_this_machine() -> None:
    devices = asyncio.run(poll())
    assert len({device.id for device in devices}) == len(devices)
    for index, device in enumerate(devices):
        assert device.id.startswith("here/")
        assert (device.index, device.kind, device.health) == (index, DeviceKind.OPENCL, Health.OK)
        assert device.memory_mib > 0
        assert is_version(device.runtime)
