"""Inventory files of operators: short to write, every mistake named with its place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from corekit.errors import AppError
from gpu_scheduler.model import Device, DeviceKind
from gpu_scheduler.monitor.probes import CpuProbe, FileProbe, probe_of

TWICE = "{kind: cpu, model: A, memory_mib: 1, id: x}"


def devices(path: Path) -> tuple[Device, ...]:
    return asyncio.run(FileProbe(path, "k80").devices())


def test_ids_and_indices_are_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text("devices:\n  - {kind: cuda, model: Tesla K80, memory_mib: 12GiB}\n" * 1)
    (device,) = devices(path)
    assert (device.id, device.index, device.memory_mib) == ("k80/cuda0", 0, 12 * 1024)
    assert device.kind is DeviceKind.CUDA


def test_json_will_do(tmp_path: Path) -> None:
    path = tmp_path / "inventory.json"
    path.write_text('{"devices": [{"kind": "vpu", "model": "M", "memory_mib": 512, "id": "v"}]}')
    assert devices(path)[0].id == "v"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "devices: [{kind: cuda, modl: K80, memory_mib: 1}]",
            r"devices\[0\].*did you mean 'model'",
        ),
        ("devices: [{kind: gpu, model: K80, memory_mib: 1}]", r"devices\[0\].kind: 'gpu'"),
        ("devices: [3]", r"devices\[0\]: expected an object"),
        (f"devices: [{TWICE}, {TWICE}]", r"devices\[1\]: id 'x' is taken"),
        ("devices: 3", "must be a list"),
        ("device: []", "write `devices:`"),
        ("devices: [", "not YAML or JSON"),
        ("devices: [{kind: cuda, model: K80, memory_mib: 12 apples}]", "memory size"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    with pytest.raises(AppError, match=named):
        devices(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AppError, match=r"nothing\.yaml"):
        devices(tmp_path / "nothing.yaml")


def test_the_cpu_is_a_device_with_figures() -> None:
    async def look() -> None:
        probe = probe_of("cpu", "here", 5.0)
        assert isinstance(probe, CpuProbe)
        (device,) = await probe.devices()
        (usage,) = await probe.usage()
        assert device.id == usage.device == "here/cpu0"
        assert device.memory_mib > 0
        assert 0 <= usage.utilisation_pct <= 100
        await probe.close()

    asyncio.run(look())


def test_an_edit_of_the_file_takes_effect(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"

    async def look() -> None:
        probe = FileProbe(path, "k80")
        path.write_text("devices: [{kind: cuda, model: K80, memory_mib: 1}]")
        assert len(await probe.devices()) == 1
        assert await probe.devices() is await probe.devices()
        path.write_text("devices: [{kind: cuda, model: K80, memory_mib: 1}, 3]")
        with pytest.raises(AppError, match=r"devices\[1\]"):
            await probe.devices()
        path.write_text("devices: []")
        assert await probe.devices() == ()

    asyncio.run(look())


def test_an_unknown_probe_is_refused() -> None:
    with pytest.raises(AppError, match="cpu, nvml, opencl"):
        probe_of("tpu", "h", 5.0)
