"""Graphs on a real gpud: a device of kind opencl, kernels that never end, graphs of any bytes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corekit.ids import HostId
from gpu_scheduler.model import DeviceKind
from gpu_scheduler.protocol.host import Install
from remote_gpu.client import Graph, OpFailed, Refused, Session, connect
from tests.drivers import needs_cpu_driver
from tests.installs import share_of

from .conftest import Gpud, running_gpud, until

SCALE = "__kernel void scale(__global float *x, float k) { x[get_global_id(0)] *= k; }"
ENDLESS = "__kernel void endless(__global volatile int *x) { while (x[0] == 0) { } }"

pytestmark = needs_cpu_driver


@pytest.fixture(scope="module")
def gpud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    with running_gpud(tmp_path_factory.mktemp("gpud"), "--opencl", "all") as started:
        yield started


def scaled() -> Graph:
    graph = Graph(SCALE)
    graph.launch("scale", (16,), (4,), graph.inout("x", 64), 3.0)
    return graph


def check_works(session: Session) -> str:
    with connect(session.environment()) as device:
        result = device.run(scaled(), x=np.ones(16, np.float32))
    assert np.frombuffer(result.outputs["x"], np.float32).tolist() == [3.0] * 16
    return str(result.implementation)


def end(gpud: Gpud, *installs: Install) -> None:
    for install in installs:
        gpud.scheduler.end(install)
        until(functools.partial(gpud.scheduler.is_cut, install.lease))


def test_an_opencl_device_is_lent_as_it_is_named(gpud: Gpud) -> None:
    lent = gpud.devices[1]
    assert (lent["kind"], "graph" in lent["operations"]) == ("opencl", True)
    assert "graph" in gpud.devices[0]["operations"]
    about = {"index": 1, "kind": DeviceKind.OPENCL, "model": lent["model"], "memory_mib": 64}
    share = share_of(lent["id"], host=HostId("gpu-a"), **about)
    install = gpud.install(shares=(share,))
    device = {"index": 1, "kind": "opencl", "model": "m", "memory_mib": 64}
    with Session.open(gpud.connection(install, devices=[device]), 60.0) as session:
        assert check_works(session).startswith("opencl: PoCL")
        big = Graph(SCALE)
        big.launch("scale", (16,), (4,), big.temporary("x", 65 << 20), 3.0)
        with connect(session.environment()) as lane, pytest.raises(OpFailed, match="ENOMEM"):
            lane.run(big)
    end(gpud, install)


def test_an_endless_kernel_ends_with_its_lease_and_nothing_else_does(gpud: Gpud) -> None:
    greedy, modest = gpud.install(64), gpud.install(64)
    failed: list[Refused] = []
    with gpud.open(greedy) as session, gpud.open(modest) as neighbour:

        def run() -> None:
            graph = Graph(ENDLESS)
            graph.launch("endless", (1,), (1,), graph.inout("x", 4))
            try:
                with connect(session.environment()) as device:
                    device.run(graph, x=bytes(4))
            except Refused as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        check_works(neighbour)
        end(gpud, greedy)
        thread.join(60)
        assert [error.code for error in failed] == ["ENDED"]
        check_works(neighbour)
    end(gpud, modest)


@pytest.fixture(scope="module")
def lane(gpud: Gpud) -> Iterator[Any]:
    install = gpud.install(64)
    with gpud.open(install, 600.0) as session, connect(session.environment()) as device:
        yield device
    end(gpud, install)


def _mutations() -> st.SearchStrategy[Any]:
    """A right graph with one of its values in another's place."""
    numbers = st.sampled_from([-1, 0, 1, 2**70])  # none makes a grid that writes far outside
    values: st.SearchStrategy[object] = (
        st.none() | numbers | st.text(max_size=3) | st.just([]) | st.floats()
    )
    return st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=4), values)


def _changed(value: Any, path: list[int], new: Any) -> Any:
    if not path or not isinstance(value, (dict, list)) or not value:
        return new
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[path[0] % len(keys)]
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = _changed(copy[key], path[1:], new)
    return copy


@given(_mutations(), st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_graph_gets_an_answer_and_the_lane_goes_on(lane: Any, mutation: Any, run: bool) -> None:
    path, new = mutation
    if isinstance(new, float) and new != new:
        new = 0.5  # NaN is not JSON: the client itself refuses it
    meta = _changed(scaled().spec.to_meta(), path, new)
    try:
        name = lane.op("graph.put", graph=meta).values["graph"]
        if run:
            lane.op("graph.run", bytes(64), graph=name)
        lane.op("graph.free", graph=name)
    except (OpFailed, ValueError) as error:
        assert getattr(error, "code", "EINVAL") in ("EINVAL", "ENOENT", "ENOMEM", "E2BIG")  # noqa: PT017
    assert lane.op("noop").values == {}
