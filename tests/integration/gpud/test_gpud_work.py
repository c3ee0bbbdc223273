"""Work on a real gpud: operations, resident buffers, pipelining, the quota, workers that crash."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from remote_gpu.client import (
    Device,
    Devices,
    Graph,
    Local,
    Operations,
    OpFailed,
    Refused,
    Session,
    connect,
)
from tests.drivers import needs_cpu_driver
from tests.integration.gpud.conftest import Gpud, environment_over_tcp, relu_model, socket_of


@pytest.fixture
def session(shared_gpud: Gpud) -> Iterator[Session]:
    with shared_gpud.open(shared_gpud.install(memory_mib=128)) as opened:
        yield opened


@pytest.fixture
def device(session: Session) -> Iterator[Devices]:
    with connect(session.environment()) as lane:
        yield lane


@pytest.fixture
def local() -> Iterator[Local]:
    with Local() as device:
        yield device


@pytest.fixture(params=["device", "local"])
def anywhere(request: pytest.FixtureRequest) -> Device:
    """The same operations give the same results on a lent device and without a lease."""
    device: Device = request.getfixturevalue(request.param)
    return device


def test_sgemm_is_right(anywhere: Device) -> None:
    rng = np.random.default_rng(7)
    a = rng.standard_normal((33, 65), dtype=np.float32)
    b = rng.standard_normal((65, 17), dtype=np.float32)
    result = anywhere.op("sgemm", a, b, m=33, n=17, k=65)
    got = np.frombuffer(result.buffers[0], np.float32).reshape(result.values["shape"])
    np.testing.assert_allclose(
        got, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-4
    )
    assert result.implementation.startswith("numpy")


def test_onnx_by_content(anywhere: Device) -> None:
    model = relu_model()
    name = "sha256:" + hashlib.sha256(model).hexdigest()
    x = np.array([-1.5, 0, 2.5], np.float32)
    described = [{"name": "x", "shape": [3]}]
    with pytest.raises(OpFailed) as failed:
        anywhere.op("onnx", x, model=name, inputs=described)
    assert failed.value.code == "ENOENT"
    with Operations(anywhere) as operations:
        loaded = operations.resource("model", model)
        found = operations.run("onnx", model=loaded).values
        assert [one["name"] for one in found["inputs"] + found["outputs"]] == ["x", "y"]
        result = operations.run("onnx", x, model=loaded, inputs=described)
    with pytest.raises(OpFailed, match="ENOENT"):  # freed with its session
        anywhere.op("onnx", x, model=name, inputs=described)
    assert np.frombuffer(result.buffers[0], np.float32).tolist() == [0, 0, 2.5]
    assert result.values["outputs"] == [{"name": "y", "dtype": "float32", "shape": [3]}]


@pytest.mark.parametrize(
    "described",
    [
        None,
        [],
        [{"name": "x"}],
        [{"name": "z", "shape": [3]}],
        [{"name": "x", "shape": [4]}],
        [{"name": "x", "shape": [-3]}],
        [{"name": "x", "shape": [2**39] * 9}],
        [5],
    ],
)
def test_onnx_inputs_that_do_not_fit(local: Local, described: object) -> None:
    with Operations(local) as operations:
        model = operations.resource("model", relu_model())
        with pytest.raises(OpFailed, match="EINVAL"):
            operations.run("onnx", np.zeros(3, np.float32), model=model, inputs=described)


@pytest.mark.parametrize("model", ["data:nothing", "data:../../etc/passwd", "/etc/passwd", "", 5])
def test_onnx_models_that_do_not_exist(local: Local, model: object) -> None:
    with pytest.raises(OpFailed):
        local.op("onnx", model=model)


def test_buffers_stay_on_the_device(anywhere: Device) -> None:
    buffer = anywhere.buffer(1 << 20)
    data = os.urandom(1 << 20)
    buffer.write(data)
    buffer.write(b"abc", offset=10)
    expected = data[:10] + b"abc" + data[13:]
    assert bytes(buffer.read()) == expected
    target = bytearray(5)
    assert bytes(buffer.read(offset=9, size=5, out=target)) == expected[9:14] == bytes(target)
    assert bytes(anywhere.op("noop", buffer, b"x").buffers[0]) == expected
    for bad in ({"offset": 1 << 20, "size": 1}, {"offset": -1}, {"size": 1 << 60}):
        with pytest.raises(OpFailed, match="EINVAL"):
            buffer.read(**bad)
    other = anywhere.buffer((1 << 20) + 1)
    other.write(buffer, offset=1)
    assert bytes(other.read()) == b"\0" + expected
    for wrong in ((), (b"x", b"y"), (other,)):
        with pytest.raises(OpFailed, match="EINVAL"):
            anywhere.op("buffer.write", *wrong, buffer=buffer.handle)
    with Operations(anywhere) as operations:
        other.write(operations.resource("data", b"resource"))
    assert bytes(other.read(size=10)) == b"resource" + expected[7:9]
    buffer.free()
    with pytest.raises(OpFailed, match="ENOENT"):
        buffer.read()


def test_results_that_do_not_fit_are_the_callers_error(device: Devices) -> None:
    with pytest.raises(ValueError, match="fit"):
        device.op("noop", b"abc", out=[bytearray(2)])
    assert bytes(device.op("noop", b"abc").buffers[0]) == b"abc"


def test_posted_calls_keep_their_first_error_until_sync(anywhere: Device) -> None:
    anywhere.post("noop", b"x")
    anywhere.post("nonsense")
    anywhere.post("burn", ms="x")
    with pytest.raises(OpFailed, match="ENOENT"):
        anywhere.op("noop")
    with pytest.raises(OpFailed, match="ENOENT"):
        anywhere.sync()
    anywhere.sync()
    assert anywhere.op("noop").values == {}


def test_the_quota_is_checked_before_anything_is_allocated(
    device: Devices, session: Session
) -> None:
    with pytest.raises(OpFailed) as failed:
        device.buffer(1 << 40)
    assert failed.value.code == "ENOMEM"
    first = device.buffer(75 << 20)
    with pytest.raises(OpFailed, match="ENOMEM"):
        device.buffer(75 << 20)
    with pytest.raises(OpFailed, match="ENOMEM"):  # what it would receive counts as well
        device.op("noop", bytearray(75 << 20))
    first.free()
    device.buffer(75 << 20).free()
    device.post("noop", bytearray(75 << 20))
    device.buffer(100 << 20).free()  # where that call's inputs were is nobody's
    with connect(session.environment()) as other:
        held = device.buffer(75 << 20)
        with pytest.raises(OpFailed, match="ENOMEM"):  # the lease's, not the lane's
            other.buffer(75 << 20)
        held.free()


def test_a_closed_lane_gives_its_memory_back(device: Devices, session: Session) -> None:
    for _ in range(3):
        with connect(session.environment()) as other:
            other.buffer(100 << 20)
        deadline_s = time.monotonic() + 20
        while True:
            try:
                device.buffer(100 << 20).free()
                break
            except OpFailed:
                assert time.monotonic() < deadline_s


def test_a_graph_runs_in_one_round_trip(anywhere: Device) -> None:
    graph = Graph()
    a, b = graph.input("a", 16), graph.constant("b", np.eye(2, dtype=np.float32) * 2)
    c = graph.temporary("c", 16)
    graph.op("sgemm", a, b, out=[c], m=2, n=2, k=2)
    graph.op("sgemm", c, b, out=[graph.output("d", 16)], m=2, n=2, k=2)
    for factor in (1, 3):
        given = np.full((2, 2), factor, np.float32)
        result = anywhere.run(graph, a=given)
        assert np.frombuffer(result.outputs["d"], np.float32).tolist() == [4.0 * factor] * 4


@needs_cpu_driver
def test_a_wild_kernel_is_a_fault_with_its_line(shared_gpud: Gpud) -> None:
    graph = Graph("\n__kernel void wild(__global char *x, ulong far) { x[far] = 1; }")
    graph.launch("wild", (1,), (1,), graph.inout("x", 64), graph.scalar("ulong", 1 << 46))
    with shared_gpud.lane() as device:
        with pytest.raises(OpFailed) as failed:
            device.run(graph, x=bytes(64))
        assert "EINVAL: kernel 'wild', line 2: access outside" in str(failed.value)
        assert device.op("noop").values == {}


def test_lanes_are_limited(device: Devices, session: Session) -> None:
    others = [connect(session.environment()) for _ in range(15)]
    with pytest.raises(Refused, match="BUSY"):
        connect(session.environment())
    others.pop().close()
    deadline_s = time.monotonic() + 20
    while True:
        try:
            others.append(connect(session.environment()))
            break
        except Refused:
            assert time.monotonic() < deadline_s
    for lane in others:
        lane.close()


def test_two_lanes_work_at_the_same_time(device: Devices, session: Session) -> None:
    def burn() -> None:
        with contextlib.suppress(Refused):  # the lease ends before its minute is over
            device.op("burn", ms=60_000)

    with connect(session.environment()) as other:
        thread = threading.Thread(target=burn)
        thread.start()
        other.op("noop")
        assert thread.is_alive()
    session.close()
    thread.join()


def endless(session: Session) -> threading.Thread:
    """A program that computes until its session is cut."""

    def compute() -> None:
        with contextlib.suppress(Refused), connect(session.environment()) as lane:
            lane.op("burn", ms=600_000)

    thread = threading.Thread(target=compute)
    thread.start()
    return thread


def cpu_s(gpud: Gpud) -> dict[int, float]:
    """What each worker has computed, in seconds."""
    ticks = os.sysconf("SC_CLK_TCK")
    spent = {}
    for pid in gpud.workers():
        with contextlib.suppress(OSError):  # workers come and go
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            spent[pid] = (int(fields[11]) + int(fields[12])) / ticks
    return spent


def test_an_endless_operation_leaves_the_others_their_share(shared_gpud: Gpud) -> None:
    greedy = shared_gpud.open(shared_gpud.install(guarantee_pct=50))
    thread = endless(greedy)
    with shared_gpud.lane(guarantee_pct=50) as device:
        for _ in range(5):
            device.op("burn", ms=50)
        assert device.op("noop").values == {}
    greedy.close()
    thread.join()


@pytest.mark.soak  # seconds of computing on an otherwise idle machine
def test_shares_of_computing_are_as_granted(shared_gpud: Gpud) -> None:
    """Counted in processor time of the workers, so that a loaded machine does not matter."""
    cores = len(os.sched_getaffinity(shared_gpud.process.pid))  # as many turns at once
    guarantees = [75 // cores] * cores + [25 // cores] * cores
    sessions = [shared_gpud.open(shared_gpud.install(guarantee_pct=pct)) for pct in guarantees]
    lanes = [connect(environment_over_tcp(session)) for session in sessions]
    pids = [worker_of(shared_gpud, lane) for lane in lanes]
    threads = [endless(session) for session in sessions]
    deadline_s = time.monotonic() + 60
    spent = [0.0]
    while sum(spent) < 5.0 * cores:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
        now = cpu_s(shared_gpud)
        spent = [now[pid] for pid in pids]
    for session in sessions:
        session.close()
    for thread in threads:
        thread.join()
    for lane in lanes:
        lane.close()
    assert 0.65 < sum(spent[:cores]) / sum(spent) < 0.85


def worker_of(gpud: Gpud, lane: Devices) -> int:
    """The pid of the process in which a lane ends."""
    ours, theirs = (
        f":{end[1]:04X}" for end in (socket_of(lane).getsockname(), socket_of(lane).getpeername())
    )
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inode = next(
        fields[9]
        for fields in lines
        if fields[1].endswith(theirs) and fields[2].endswith(ours) and fields[9] != "0"
    )
    for pid in gpud.workers():
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # descriptors come and go
                if str(entry.readlink()) == f"socket:[{inode}]":
                    return pid
    raise AssertionError("no worker holds the lane")


def test_a_worker_that_crashes_harms_its_own_lease_only(shared_gpud: Gpud) -> None:
    one, other = shared_gpud.install(), shared_gpud.install()
    with (
        shared_gpud.open(one) as session,
        shared_gpud.open(other) as neighbour,
        connect(neighbour.environment()) as untouched,
    ):
        device = connect(environment_over_tcp(session))
        kept = untouched.buffer(4)
        kept.write(b"safe")
        # a fault of its own ends it as well; the first of a namespace is deaf to other signals
        os.kill(worker_of(shared_gpud, device), signal.SIGKILL)
        with pytest.raises(Refused, match=r"ENDED: the lane to .* ended: its worker died, or"):
            device.op("burn", ms=60_000)  # the signal may need a moment
        device.close()
        assert bytes(kept.read()) == b"safe"
        with connect(environment_over_tcp(session)) as again:  # a new worker, the same lease
            assert again.op("noop").values == {}
        assert session.alive
        assert neighbour.alive


def test_a_lane_given_to_a_dying_worker_gets_a_new_one(shared_gpud: Gpud) -> None:
    with shared_gpud.open(shared_gpud.install()) as session:
        with connect(environment_over_tcp(session)) as device:
            dying = worker_of(shared_gpud, device)
        os.kill(dying, signal.SIGSTOP)  # it holds its sockets, and takes nothing any more
        answers: list[object] = []

        def ask() -> None:
            with connect(environment_over_tcp(session)) as lane:
                answers.append(lane.op("noop").values)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(0.3)  # time for the lane to be handed over; right either way
        os.kill(dying, signal.SIGKILL)
        thread.join()
        assert answers == [{}]


def test_the_kernel_enforces_the_quota(shared_gpud: Gpud) -> None:
    """A worker has a limit of its own on private memory, not far above the lease's."""
    install = shared_gpud.install(memory_mib=128)
    with shared_gpud.open(install) as session, connect(environment_over_tcp(session)) as device:
        limits = Path(f"/proc/{worker_of(shared_gpud, device)}/limits").read_text()
        line = next(line for line in limits.splitlines() if line.startswith("Max data size"))
        assert int(line.split()[3]) < 4 << 30


def test_a_worker_does_not_inherit_gpuds_environment(shared_gpud: Gpud) -> None:
    """There the scheduler's key may be, and a tenant's kernel reads its worker's memory."""
    with (
        shared_gpud.open(shared_gpud.install()) as session,
        connect(environment_over_tcp(session)) as one,
    ):
        environment = Path(f"/proc/{worker_of(shared_gpud, one)}/environ").read_text()
    names = {item.partition("=")[0] for item in environment.split("\0") if item}
    assert {"PATH", "OMP_NUM_THREADS"} <= names
    assert [name for name in names if name.startswith(("ORCHGPU", "PYTEST", "AWS"))] == []
