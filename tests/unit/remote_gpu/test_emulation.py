"""Emulated devices: their file, their labels, the times of their calls, and their operations."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from corekit.errors import AppError
from corekit.ids import HostId
from gpu_scheduler.model import DeviceKind, Share
from remote_gpu.host.devices.emulation import EmulatedDevices, EmulatedProbe, real_shares
from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.arguments import Arguments
from remote_gpu.worker.emulation.devices import EmulatedDevice, Emulation, OperationTimes, call_s
from remote_gpu.worker.emulation.operation import emulate
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from remote_gpu.worker.registry import Registry, load_registry
from tests.installs import share_of

FILE = """
seed: 3
time_scale: 0.5
devices:
- kind: cuda
  model: Quadro K600
  count: 2
  memory_mib: 1GiB
  slots: 2
  operations:
    noop: {warm_ms: 4, cold_ms: 20, spread_pct: 30, memory_mib: 1}
- kind: vpu
  model: Movidius NCS
  memory_mib: 512
  operations:
    noop: {warm_ms: 2}
    detect: {warm_ms: 2}
"""
IDS = ("gpu-a/emulated0", "gpu-a/emulated1", "gpu-a/emulated2")


def emulated(tmp_path: Path, text: str = FILE) -> EmulatedDevices:
    path = tmp_path / "devices.yaml"
    path.write_text(text)
    return EmulatedDevices.read(path, HostId("gpu-a"))


def registry_of(devices: EmulatedDevices, slept: list[float] | None = None) -> Registry:
    registry, taken = load_registry(["noop"]), [] if slept is None else slept
    emulate(registry, devices.emulation, list(devices.by_id), taken.append)
    return registry


def call(
    registry: Registry, context: Context, name: str, args: Arguments, data: bytes = b"x"
) -> tuple[dict[str, Any], list[Any]]:
    operation = registry.find(name, context.kind)
    return operation.run(context, args, [memoryview(data)])


def test_a_file_describes_devices_and_each_is_labelled(tmp_path: Path) -> None:
    devices = emulated(tmp_path)
    assert tuple(devices.by_id) == IDS
    probe = EmulatedProbe(devices, lambda _: 100, lambda _: 1)
    first, second, vpu = asyncio.run(probe.devices())
    assert (first.model, vpu.model) == ("emulated Quadro K600", "emulated Movidius NCS")
    assert (first.kind, vpu.kind) == (DeviceKind.CUDA, DeviceKind.VPU)
    assert (first.memory_mib, second.memory_mib, vpu.memory_mib) == (1024, 1024, 512)
    assert vpu.operations == ("detect", "noop")
    assert first.detail == ("emulated: 2 slot(s), stated times, times × 0.5; no real accelerator")
    usage = asyncio.run(probe.usage())
    assert [one.utilisation_pct for one in usage] == [50, 50, 100]
    assert {one.memory_used_mib for one in usage} == {100}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("devices: []", "has no devices"),
        ("seed: 1", "write `devices:` and a list below it"),
        ("devices: [", "is not YAML or JSON"),
        ("devices: [{kind: cpu, model: m, memory_mib: 1, operations: {}}]", "cannot be emulated"),
        ("devices: [{kind: tpu, model: m, memory_mib: 1, operations: {}}]", "tpu"),
        ("devices: [{kind: vpu, model: m, memory_mib: 1x, operations: {}}]", "memory_mib"),
        ("devices: [{kind: vpu, model: m, operations: {}}]", "memory_mib"),
        (
            "devices: [{kind: vpu, model: m, memory_mib: 1, operations: {graph: {warm_ms: 1}}}]",
            "'graph'",
        ),
        (
            "devices: [{kind: vpu, model: m, memory_mib: 1, operations: {a: {warm_ms: -1}}}]",
            "warm_ms",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(AppError, match=r"--emulate") as refused:
        emulated(tmp_path, text)
    assert named in refused.value.message
    with pytest.raises(AppError, match="cannot read"):
        EmulatedDevices.read(tmp_path / "absent", HostId("gpu-a"))


def test_times_are_seeded_symmetric_and_scaled() -> None:
    device = EmulatedDevice(
        kind=DeviceKind.VPU,
        model="m",
        memory_mib=1,
        operations={"a": OperationTimes(warm_ms=1000, spread_pct=30)},
    )

    def times(emulation: Emulation) -> list[float]:
        inputs = [[memoryview(str(n).encode())] for n in range(2000)]
        return [call_s(emulation, device, "a", {}, views) for views in inputs]

    drawn = times(Emulation(devices=(device,), seed=1))
    assert drawn == times(Emulation(devices=(device,), seed=1))
    assert drawn != times(Emulation(devices=(device,), seed=2))
    assert statistics.mean(drawn) == pytest.approx(1.0, abs=0.03)
    assert statistics.median(drawn) == pytest.approx(1.0, abs=0.03)
    assert statistics.pstdev(drawn) == pytest.approx(0.3, abs=0.03)
    assert min(drawn) >= 0.099
    half = times(Emulation(devices=(device,), seed=1, time_scale=0.5))
    assert half == pytest.approx([one / 2 for one in drawn])


def test_only_the_first_call_of_a_workload_in_a_worker_loads(tmp_path: Path) -> None:
    slept: list[float] = []
    registry = registry_of(emulated(tmp_path), slept)
    worker = Context(kind="cuda", device=IDS[0], quota=Quota(10 << 20))
    first, results = call(registry, worker, "noop", {"model": "a"})
    again, _ = call(registry, worker, "noop", {"model": "a"})
    other, _ = call(registry, worker, "noop", {"model": "b"})
    assert [s for s in slept if s == 0.01] == [0.01, 0.01]
    assert len(slept) == 5  # two loadings, three calls
    assert again["emulated"]["loading_ms"] == 0
    assert other["emulated"]["loading_ms"] > 0
    assert worker.quota.used_bytes == 2 << 20
    assert [bytes(one) for one in results] == [b"x"]
    assert first["emulated"]["model"] == "emulated Quadro K600"
    assert first["emulated"]["started_s"] <= first["emulated"]["ended_s"] <= time.time()
    assert first["args"] == {"model": "a"}  # of the implementation on the CPU


def test_each_answer_names_what_its_results_are(tmp_path: Path) -> None:
    registry = registry_of(emulated(tmp_path))
    assert registry.find("noop", "vpu").implementation == "emulated (results are those of none)"
    assert registry.find("detect", "vpu").implementation == "emulated (results are the inputs)"
    assert registry.find("noop", "vpu", "emulated").name == "noop"
    assert registry.find("noop", "cpu").implementation == "none"  # the CPU itself is real
    assert registry.names("opencl") == ("noop",)
    context = Context(kind="vpu", device=IDS[2])
    values, results = call(registry, context, "detect", {}, b"picture")
    assert bytes(results[0]) == b"picture"
    assert values["emulated"]["device"] == IDS[2]


def test_a_device_answers_its_own_operations_only_and_runs_no_kernels(tmp_path: Path) -> None:
    registry = registry_of(emulated(tmp_path))
    with pytest.raises(OpFailed) as refused:
        registry.find("detect", "cuda")
    assert refused.value.code == OpCode.ENOTSUP
    with pytest.raises(OpFailed, match="not emulated on gpu-a/other"):
        call(registry, Context(kind="vpu", device="gpu-a/other"), "detect", {})
    context = Context(kind="cuda", device=IDS[0], emulated=frozenset(IDS))
    with pytest.raises(OpFailed, match="is emulated: it has named operations and no kernels"):
        context.open_backend()


def test_a_loaded_workload_must_fit_the_share(tmp_path: Path) -> None:
    registry = registry_of(emulated(tmp_path))
    context = Context(kind="cuda", device=IDS[0], quota=Quota(1000))
    with pytest.raises(OpFailed) as refused:
        call(registry, context, "noop", {})
    assert refused.value.code == OpCode.ENOMEM


def test_workers_of_emulated_devices_need_no_driver() -> None:
    def share(model: str) -> Share:
        return share_of(kind=DeviceKind.CUDA, model=model)

    assert real_shares((share("emulated L4"), share("L4"))) == (share("L4"),)
