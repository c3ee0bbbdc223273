"""What a host publishes beside its devices: operations, warm keys, contents that tenants sent."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from corekit.ids import DeviceId
from gpu_scheduler.model import Device, DeviceKind
from gpu_scheduler.warm import keys_of, tenant_folder
from remote_gpu.host.devices.offer import KEPT_KEYS_MAX, KeptContents, Offer
from remote_gpu.host.workers.pool import Ready
from remote_gpu.wire.graphs import content_id
from remote_gpu.worker.store.contents import Contents


def put(root: Path, tenant: str, data: bytes) -> str:
    """Keep a content; returns the key under which its tenant's requests find it."""
    content = content_id(data)
    Contents.of_tenant(root, tenant).put(content, memoryview(data))
    return keys_of(tenant, content)[1]


def test_contents_are_published_by_keys_that_only_their_tenant_knows(tmp_path: Path) -> None:
    kept = KeptContents(tmp_path / "kept")
    assert kept.keys() == ()
    one, two = put(tmp_path / "kept", "one", b"x"), put(tmp_path / "kept", "two", b"x")
    assert set(kept.keys()) == {one, two}
    assert not any(content_id(b"x") in key or "one" in key for key in (one, two))
    three = put(tmp_path / "kept", "one", b"y")
    assert set(kept.keys()) == {one, two, three}
    (tmp_path / "kept" / tenant_folder("one") / content_id(b"x").partition(":")[2]).unlink()
    assert set(kept.keys()) == {two, three}


def test_only_the_newest_are_published(tmp_path: Path) -> None:
    for tenant in range(2):
        folder = tmp_path / tenant_folder(str(tenant))
        (folder / "compiled").mkdir(parents=True)
        for number in range(KEPT_KEYS_MAX):
            path = folder / f"{number:064x}"
            path.touch()
            os.utime(path, ns=(0, 2 * number + tenant))
    keys = KeptContents(tmp_path).keys()
    assert len(set(keys)) == KEPT_KEYS_MAX
    newest = f"sha256:{KEPT_KEYS_MAX - 1:064x}"
    assert keys[:2] == (keys_of("1", newest)[1], keys_of("0", newest)[1])


class Spawner:
    ready = Ready(
        operations={"cpu": ("graph", "noop"), "cuda": ("graph",)},
        resident=("data:m",),
        libraries={"cpu": {"numpy": "2.1"}, "cuda": {}},
    )


def test_devices_get_the_operations_of_their_kind(tmp_path: Path) -> None:
    key = put(tmp_path, "t", b"weights")
    kinds = (DeviceKind.CPU, DeviceKind.CUDA, DeviceKind.VPU)
    devices = [
        Device(id=DeviceId(kind), index=index, kind=kind, model="m", memory_mib=1)
        for index, kind in enumerate(kinds)
    ]
    offer = Offer(Spawner(), KeptContents(tmp_path))
    cpu, cuda, vpu = asyncio.run(offer.added_to(devices))
    assert (cpu.operations, cpu.resident) == (("graph", "noop"), ("data:m", key))
    assert (cpu.libraries, cuda.libraries) == ({"numpy": "2.1"}, {})
    assert (cuda.operations, cuda.resident) == (("graph",), ("data:m", key))
    assert vpu == devices[2]


@pytest.mark.parametrize("words", [0, 2000])
def test_a_host_reports_no_more_words_than_a_device_may_have(tmp_path: Path, words: int) -> None:
    class Talkative:
        names = tuple(map(str, range(words)))
        ready = Ready(operations={"cpu": names}, resident=names)

    device = Device(id=DeviceId("d"), index=0, kind=DeviceKind.CPU, model="m", memory_mib=1)
    (device,) = asyncio.run(Offer(Talkative(), KeptContents(tmp_path)).added_to([device]))
    assert len(device.operations) <= words
