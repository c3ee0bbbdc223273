"""Warm workers of a real gpud: kept, handed to the next lease of their workload, evicted."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_scheduler.protocol.host import Install
from gpu_scheduler.warm import workload_key
from remote_gpu.client import Devices, Operations, connect
from tests.integration.gpud.conftest import Gpud, relu_model, until

MODEL = relu_model()
WORKLOAD = "relu"
KERNEL = "__kernel void f(__global int *y) { y[get_global_id(0)] = 7; }"


def relu(device: Devices) -> None:
    """Compute with a model of the tenant."""
    with Operations(device) as operations:
        model = operations.resource("model", MODEL)
        x = struct.pack("2f", -1.0, 2.0)
        answer = operations.run("onnx", x, model=model, inputs=[{"name": "x", "shape": [2]}])
        assert bytes(answer.buffers[0]) == struct.pack("2f", 0.0, 2.0)


def run_job(gpud: Gpud, work: Any = relu, **fields: Any) -> Install:
    """A lease with one session and its lane, to its end."""
    install = gpud.install(**({"workload": WORKLOAD} | fields))
    with gpud.open(install) as session, connect(session.environment()) as device:
        work(device)
    until(lambda: gpud.scheduler.is_cut(install.lease))
    return install


def events(gpud: Gpud, event: str) -> list[dict[str, Any]]:
    return [line for line in gpud.log() if line["event"] == event]


def residents(gpud: Gpud) -> dict[str, dict[str, Any]]:
    """What the scheduler knows: the hello and all differences since, in their order."""
    found: dict[str, dict[str, Any]] = {}
    for report in list(gpud.scheduler.reports):
        for change in report["residents"]:
            found |= {one["id"]: one for one in change["added"]}
            for name in change["removed"]:
                found.pop(name, None)
    return found


def loading_s(gpud: Gpud, install: Install) -> list[float | None]:
    return [
        fields["loading_s"]
        for op, fields in gpud.scheduler.messages
        if op == "session" and fields["lease"] == install.lease and fields["state"] == "closed"
    ]


def kept(gpud: Gpud) -> str:
    """The id of the only warm worker, as published."""
    until(lambda: len(residents(gpud)) == 1)
    (name,) = residents(gpud)
    return name


def pid_of(name: str) -> int:
    """Of a warm worker: its id begins with it."""
    return int(name.removeprefix("w").partition("-")[0])


@pytest.fixture
def gpud(own_gpud: Gpud) -> Iterator[Gpud]:
    yield own_gpud
    own_gpud.check_log()


def test_the_next_lease_of_a_workload_gets_the_worker(gpud: Gpud) -> None:
    first = run_job(gpud)
    name = kept(gpud)
    published = residents(gpud)[name]
    assert published["workload"] == workload_key("t", WORKLOAD)
    assert published["loading_s"] > 0
    assert 0 < published["memory_mib"] <= 256
    (spent_s,) = loading_s(gpud, first)
    assert spent_s is not None
    assert spent_s == pytest.approx(published["loading_s"], abs=1e-3)

    second = run_job(gpud, residents=(name,))
    assert loading_s(gpud, second) == [0.0]
    (start,) = events(gpud, "warm_start")
    assert (start["lease"], start["warm"]) == (second.lease, [name])
    until(lambda: name not in residents(gpud) and len(residents(gpud)) == 1)
    assert pid_of(kept(gpud)) == pid_of(name), "the same process"
