"""The devices that a host reports: its cores, those of its drivers, and failures of probes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corekit.errors import AppError, ErrorCode
from corekit.ids import DeviceId, HostId
from gpu_scheduler.model import Device, DeviceKind, Health, Usage
from remote_gpu.host.devices.offer import KeptContents, Offer
from remote_gpu.host.devices.probe import (
    CpuSettings,
    HostCpuProbe,
    HostProbe,
    default_memory_mib,
    parse_cpus,
)
from remote_gpu.host.workers.pool import Ready

CORE = min(os.sched_getaffinity(0))


def cpu_probe(**fields: Any) -> HostCpuProbe:
    settings = CpuSettings(host=HostId("gpu-a"), cpus=(CORE,), memory_mib=512, **fields)
    return HostCpuProbe(settings, lambda: [os.getpid()])


class OtherProbe:
    """A second source of devices, which may fail."""

    def __init__(self) -> None:
        self.broken = False

    async def devices(self) -> tuple[Device, ...]:
        if self.broken:
            raise AppError(ErrorCode.UNAVAILABLE, "the driver hangs")
        return (
            Device(
                id=DeviceId("uuid"), index=0, kind=DeviceKind.CUDA, model="L4", memory_mib=23000
            ),
        )

    async def usage(self) -> tuple[Usage, ...]:
        await self.devices()
        return (Usage(device=DeviceId("uuid"), memory_used_mib=1, utilisation_pct=2),)

    async def close(self) -> None:
        """Holds nothing."""


def test_cores() -> None:
    assert parse_cpus("") == tuple(sorted(os.sched_getaffinity(0)))
    assert parse_cpus(f"{CORE},{CORE}") == (CORE,)
    assert parse_cpus(f"{CORE}-{CORE}") == (CORE,)
    for wrong in ("a", "1-", "-1", "1,,2", "2-1", "99999", " 0"):
        with pytest.raises(AppError, match="--cpus"):
            parse_cpus(wrong)


def test_the_cpu_device() -> None:
    device = cpu_probe(shared_with=("gpu-b",)).device()
    assert (device.id, device.kind, device.memory_mib) == ("gpu-a/cpu0", DeviceKind.CPU, 512)
    assert "gpu-b" in device.detail
    assert "gpu-b" not in cpu_probe().device().detail
    assert default_memory_mib() > 0


@pytest.mark.asyncio
async def test_usage_is_that_of_the_workers() -> None:
    probe = cpu_probe()
    [usage] = await probe.usage()
    assert (usage.processes, usage.memory_used_mib > 1) == (1, True)
    assert 0 <= usage.utilisation_pct <= 100


@pytest.mark.asyncio
async def test_a_failing_probe_affects_its_own_devices_only() -> None:
    other = OtherProbe()
    probe = HostProbe([cpu_probe(), other], 20.0)
    assert [(d.index, d.kind.value, d.health is Health.OK) for d in await probe.devices()] == [
        (0, "cpu", True),
        (1, "cuda", True),
    ]
    assert len(await probe.usage()) == 2
    other.broken = True
    devices = await probe.devices()
    assert [d.health is Health.OK for d in devices] == [True, False]
    assert "hangs" in devices[1].detail
    assert len(await probe.usage()) == 1
    late = HostProbe([other, cpu_probe()], 20.0)
    assert [(d.kind.value, d.index) for d in await late.devices()] == [("cpu", 0)]
    other.broken = False
    assert [(d.kind.value, d.index) for d in await late.devices()] == [("cuda", 1), ("cpu", 0)]
    assert [d.health is Health.OK for d in await probe.devices()] == [True, True]
    await probe.close()


@pytest.mark.asyncio
async def test_a_missing_figure_is_not_taken_for_free_memory() -> None:
    other, device = OtherProbe(), DeviceId("uuid")
    for bad_after_s, silent_mib in ((20.0, None), (0.0, 0)):
        probe = HostProbe([cpu_probe(), other], bad_after_s)
        assert await probe.used_mib(device) == 1
        other.broken = True
        assert await probe.used_mib(device) == silent_mib
        other.broken = False
        assert await probe.used_mib(device) == 1
    assert await probe.used_mib(DeviceId("a slice that was taken away")) == 0


class SlowProbe(OtherProbe):
    """Its figures are those of the newest look, as of a driver in a process of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.figures: tuple[Usage, ...] = ()
        self.answers = asyncio.Event()
        self.answers.set()

    async def devices(self) -> tuple[Device, ...]:
        self.figures = ()
        await self.answers.wait()
        self.answers.clear()
        self.figures = (Usage(device=DeviceId("uuid"), memory_used_mib=1, utilisation_pct=2),)
        return await super().devices()

    async def usage(self) -> tuple[Usage, ...]:
        return self.figures


@pytest.mark.asyncio
async def test_concurrent_readings_lose_no_figure(tmp_path: Path) -> None:
    slow, offer = SlowProbe(), Offer(SimpleNamespace(ready=Ready()), KeptContents(tmp_path))
    probe = HostProbe([slow], 20.0, offer)
    asked = asyncio.create_task(probe.used_mib(DeviceId("uuid")))
    looking = asyncio.create_task(probe.devices())
    assert await asked == 1
    slow.answers.set()
    assert len(await looking) == 1


def test_a_process_that_has_ended_counts_no_time() -> None:
    pids = [os.getpid()]
    settings = CpuSettings(host=HostId("gpu-a"), cpus=(CORE,), memory_mib=512)
    probe = HostCpuProbe(settings, lambda: pids)
    asyncio.run(probe.usage())
    probe._busy_s[2**22 + 1] = 1e6  # its pid is read once more after its end
    pids.append(2**22 + 1)
    (usage,) = asyncio.run(probe.usage())
    assert usage.utilisation_pct >= 0
