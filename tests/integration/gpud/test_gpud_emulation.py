"""Emulated devices of a real gpud: labels, slots that calls share, cold and warm calls."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from corekit.ids import HostId
from gpu_scheduler.model import DeviceKind, Share
from gpu_scheduler.protocol.host import Install
from remote_gpu.client import Graph, OpFailed, Session, connect
from tests.installs import share_of
from tests.integration.gpud.conftest import Gpud, at_once, running_gpud, until

FILE = """
devices:
- kind: cuda
  model: Quadro K600
  memory_mib: 1GiB
  slots: 2
  operations:
    noop: {warm_ms: 150, cold_ms: 50}
- kind: vpu
  model: Movidius NCS
  memory_mib: 512
  operations:
    noop: {warm_ms: 20}
    detect: {warm_ms: 20, cold_ms: 1, memory_mib: 3}
"""


@pytest.fixture(scope="module")
def gpud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    folder = tmp_path_factory.mktemp("emulation")
    (folder / "devices.yaml").write_text(FILE)
    with running_gpud(folder, "--emulate", str(folder / "devices.yaml")) as found:
        yield found


def share(index: int, kind: DeviceKind, memory_mib: int = 128) -> Share:
    return share_of(
        f"gpu-a/emulated{index - 1}",
        host=HostId("gpu-a"),
        index=index,
        kind=kind,
        model="emulated Quadro K600" if kind is DeviceKind.CUDA else "emulated Movidius NCS",
        memory_mib=memory_mib,
    )


def opened(gpud: Gpud, one: Share) -> Session:
    install: Install = gpud.install(shares=(one,))
    connection: dict[str, Any] = gpud.connection(
        install,
        devices=[{"index": one.index, "kind": one.kind.value, "model": one.model, "memory_mib": 1}],
    )
    return Session.open(connection, 60.0)


def scaled() -> Graph:
    graph = Graph("__kernel void scale(__global float *x) { x[get_global_id(0)] *= 2; }")
    graph.launch("scale", (4,), (4,), graph.inout("x", 16))
    return graph


def test_the_devices_are_published_with_their_label(gpud: Gpud) -> None:
    cpu, cuda, vpu = gpud.devices
    assert (cpu["kind"], cuda["kind"], vpu["kind"]) == ("cpu", "cuda", "vpu")
    assert (cuda["index"], vpu["index"]) == (1, 2)
    assert cuda["model"] == "emulated Quadro K600"
    assert cuda["detail"].startswith("emulated: 2 slot(s)")
    assert cuda["operations"] == ["noop"]
    assert vpu["operations"] == ["detect", "noop"]
    assert not cpu["model"].startswith("emulated")


def test_a_program_uses_an_emulated_device_as_any_other(gpud: Gpud) -> None:
    with (
        opened(gpud, share(2, DeviceKind.VPU)) as session,
        connect(session.environment()) as device,
    ):
        found = device.op("detect", b"picture")
        assert found.buffers == [b"picture"]
        assert found.implementation == "emulated (results are the inputs)"
        assert found.values["emulated"]["device"] == "gpu-a/emulated1"
        with pytest.raises(OpFailed, match="is emulated: it has named operations and no kernels"):
            device.run(scaled(), x=bytes(16))
    messages = gpud.scheduler.messages
    until(lambda: any(one.get("loaded_mib") == 3 for _, one in messages))


def test_no_more_calls_run_at_a_time_than_the_device_has_slots(gpud: Gpud) -> None:
    times: list[tuple[float, float]] = []

    def work() -> None:
        one = share(1, DeviceKind.CUDA)
        with opened(gpud, one) as session, connect(session.environment()) as device:
            for _ in range(2):
                found = device.op("noop", b"x").values["emulated"]
                times.append((found["started_s"], found["ended_s"]))

    at_once(*[work] * 4)
    assert len(times) == 8
    changes = sorted([(start, 1) for start, _ in times] + [(end, -1) for _, end in times])
    running = [sum(change for _, change in changes[: n + 1]) for n in range(len(changes))]
    assert max(running) == 2
    assert all(earlier[0] <= later[0] for earlier, later in pairwise(changes))
