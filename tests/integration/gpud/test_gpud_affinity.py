"""Runs of graphs that name no device, on a lease with two devices of a real gpud."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from corekit.ids import HostId
from gpu_scheduler.model import DeviceKind
from remote_gpu.client import Devices, Graph, OpFailed, Session, aio, connect
from tests.installs import share_of
from tests.integration.gpud.conftest import Gpud, running_gpud, until

FILE = """
devices:
- kind: vpu
  model: Movidius NCS
  count: 2
  memory_mib: 512
  operations:
    noop: {warm_ms: 50}
    detect: {warm_ms: 1, cold_ms: 1, memory_mib: 48}
- kind: cuda
  model: Quadro K600
  memory_mib: 512
  operations:
    noop: {warm_ms: 1}
"""


@pytest.fixture(scope="module")
def gpud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    folder = tmp_path_factory.mktemp("affinity")
    (folder / "devices.yaml").write_text(FILE)
    with running_gpud(folder, "--emulate", str(folder / "devices.yaml")) as found:
        yield found


def opened(gpud: Gpud, *indices: int) -> Session:
    """A session of a lease with emulated devices."""
    shares = tuple(
        share_of(
            f"gpu-a/emulated{index - 1}",
            host=HostId("gpu-a"),
            index=index,
            kind=DeviceKind.VPU if index < 3 else DeviceKind.CUDA,
            model=f"emulated {'Movidius NCS' if index < 3 else 'Quadro K600'}",
            memory_mib=64,
        )
        for index in indices
    )
    lent: list[dict[str, Any]] = [
        {"index": one.index, "kind": one.kind.value, "model": one.model, "memory_mib": 64}
        for one in shares
    ]
    return Session.open(gpud.connection(gpud.install(shares=shares), devices=lent), 60.0)


def echo(temporary: int = 0) -> Graph:
    graph = Graph()
    graph.op("noop", graph.input("x", 4), out=[graph.output("y", 4)])
    if temporary:
        graph.temporary("rest", temporary)
    return graph


def used(devices: Devices, graph: Graph) -> list[bool]:
    """Whether each device has the graph."""
    return [one.has(graph) for one in devices]


def test_runs_one_after_another_stay_where_their_graph_is(gpud: Gpud) -> None:
    graph = echo()
    with opened(gpud, 1, 2) as session, connect(session.environment()) as devices:
        for number in range(3):
            assert bytes(devices.run(graph, x=bytes([number] * 4)).outputs["y"]) == bytes(
                [number] * 4
            )
        assert used(devices, graph) == [True, False]
        devices[1].run(graph, x=b"here")
        assert used(devices, graph) == [True, True]


def test_concurrent_runs_use_both_devices_and_their_answers_are_the_same(gpud: Gpud) -> None:
    graph = echo()
    inputs = [bytes([number] * 4) for number in range(8)]
    with opened(gpud, 1, 2) as session, connect(session.environment()) as devices:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda x: bytes(devices.run(graph, x=x).outputs["y"]), inputs))
        assert found == inputs
        assert used(devices, graph) == [True, True]


@pytest.mark.asyncio
async def test_awaited_runs_use_both_devices(gpud: Gpud) -> None:
    graph = echo()
    with opened(gpud, 1, 2) as session:
        async with await aio.connect(session.environment()) as devices:
            runs = [devices.run(graph, x=bytes([number] * 4)) for number in range(6)]
            found = [bytes(one.outputs["y"]) for one in await asyncio.gather(*runs)]
            assert found == [bytes([number] * 4) for number in range(6)]
            blocking: Any = devices._devices
            assert used(blocking, graph) == [True, True]


def test_a_run_goes_to_the_device_that_no_other_lease_uses(gpud: Gpud) -> None:
    graph, stop = echo(), threading.Event()

    def busy(session: Session) -> None:
        with connect(session.environment()) as device:
            while not stop.is_set():
                device.op("noop", b"x")

    with (
        opened(gpud, 1) as other,
        opened(gpud, 1, 2) as session,
        connect(session.environment()) as devices,
    ):
        devices[0].run(graph, x=bytes(4))
        thread = threading.Thread(target=busy, args=(other,))
        thread.start()
        try:
            until(lambda: not loads(devices)[0][0])
            assert loads(devices) == [(False, 2.0), (True, 1.0)]
            devices.run(graph, x=bytes(4))
        finally:
            stop.set()
            thread.join()
        assert used(devices, graph) == [True, True]


def loads(devices: Devices) -> Sequence[tuple[bool, float]]:
    found = devices.op("device.loads").values["devices"]
    return [(free, slowdown) for free, slowdown in (found["1"], found["2"])]


def test_a_device_of_another_model_is_used_by_its_name_only(gpud: Gpud) -> None:
    graph = echo()
    with opened(gpud, 1, 3) as session, connect(session.environment()) as devices:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: devices.run(graph, x=bytes(4)), range(4)))
        assert used(devices, graph) == [True, False]


def test_a_graph_that_fits_the_lease_once_stays_on_one_device(gpud: Gpud) -> None:
    """The lease has 128 MiB on both devices: the graph's memory fits once."""
    graph = echo(temporary=80 << 20)
    with opened(gpud, 1, 2) as session, connect(session.environment()) as devices:
        devices.run(graph, x=bytes(4))
        with ThreadPoolExecutor(4) as threads:
            found = list(
                threads.map(lambda _: bytes(devices.run(graph, x=b"same").outputs["y"]), range(4))
            )
        assert found == [b"same"] * 4
        assert used(devices, graph) == [True, False]
        with pytest.raises(OpFailed, match="ENOMEM"):
            devices.run(echo(temporary=200 << 20), x=bytes(4))
