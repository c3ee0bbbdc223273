"""Warm workers of a real gpud: kept, handed to the next lease of their workload, evicted."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.protocol.host import Install, WarmLimits
from gpu_scheduler.warm import workload_key
from remote_gpu.client import Devices, Graph, Operations, OpFailed, connect
from tests.drivers import needs_cpu_driver
from tests.integration.gpud.conftest import Gpud, lives, relu_model, running_gpud, until

MODEL = relu_model()
WORKLOAD = "relu"
#: Lines of the log when the present test began, of the gpud that tests share.
BEGAN: dict[Gpud, int] = {}
#: Jobs until one leaves a warm worker.
WARMED_WITHIN = 20
KERNEL = "__kernel void f(__global int *y) { y[get_global_id(0)] = 7; }"


def relu(device: Devices) -> None:
    """Compute with a model of the tenant."""
    with Operations(device) as operations:
        model = operations.resource("model", MODEL)
        x = struct.pack("2f", -1.0, 2.0)
        answer = operations.run("onnx", x, model=model, inputs=[{"name": "x", "shape": [2]}])
        assert bytes(answer.buffers[0]) == struct.pack("2f", 0.0, 2.0)


def then(name: str, *buffers: bytes, **args: Any) -> Callable[[Devices], None]:
    """A job that computes with the model, then runs an operation."""

    def work(device: Devices) -> None:
        relu(device)
        device.op(name, *buffers, **args)

    return work


def run_job(gpud: Gpud, work: Any = relu, **fields: Any) -> Install:
    """A lease with one session and its lane, to its end."""
    install = gpud.install(**({"workload": WORKLOAD} | fields))
    with gpud.open(install) as session, connect(session.environment()) as device:
        work(device)
    until(lambda: gpud.scheduler.is_cut(install.lease))
    return install


def events(gpud: Gpud, event: str) -> list[dict[str, Any]]:
    """The lines of the log with an event, since this test began."""
    return [line for line in gpud.log()[BEGAN.get(gpud, 0) :] if line["event"] == event]


def limit(gpud: Gpud, **limits: Any) -> None:
    gpud.scheduler.limit(WarmLimits(**limits))


def residents(gpud: Gpud) -> dict[str, dict[str, Any]]:
    """The warm workers that the scheduler knows."""
    return gpud.scheduler.residents


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


def warmed(gpud: Gpud, work: Any = relu, **fields: Any) -> str:
    """The warm worker that a job leaves behind. On a busy machine a worker may take too long to
    give up its lanes; it is killed then, and the job is repeated."""
    for _ in range(WARMED_WITHIN):
        before = len(events(gpud, "warm_kept"))
        run_job(gpud, work, **fields)  # a worker is kept before its lease is cut
        if len(events(gpud, "warm_kept")) > before:
            return kept(gpud)
    raise AssertionError(f"{WARMED_WITHIN} jobs left no warm worker")


def pid_of(name: str) -> int:
    """Of a warm worker: its id begins with it."""
    return int(name.removeprefix("w").partition("-")[0])


@pytest.fixture
def gpud(shared_gpud: Gpud) -> Iterator[Gpud]:
    """The process of this file, without warm workers before and after."""
    BEGAN[shared_gpud] = len(shared_gpud.log())
    yield shared_gpud
    limit(shared_gpud, workers_max=0)
    until(lambda: residents(shared_gpud) == {})
    limit(shared_gpud)


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


@pytest.mark.parametrize("returns", [True, False], ids=["freed", "closed"])
def test_a_warm_worker_is_published_before_its_share_is_free(gpud: Gpud, returns: bool) -> None:
    """The scheduler grants again as soon as it knows that the share is free."""
    install = gpud.install(workload=WORKLOAD)
    known_at_end: dict[str, list[str]] = gpud.scheduler.known_at_end
    with gpud.open(install) as session, connect(session.environment()) as device:
        relu(device)
        if returns:
            session.give_back()
            until(lambda: f"{install.lease} freed" in known_at_end)
    until(lambda: f"{install.lease} closed" in known_at_end)
    name = kept(gpud)
    assert known_at_end[f"{install.lease} {'freed' if returns else 'closed'}"] == [name]


@pytest.mark.parametrize(
    "fields", [{"tenant": "other"}, {"workload": "other"}, {"workload": None}, {"memory_mib": 1}]
)
def test_no_other_lease_gets_the_worker(gpud: Gpud, fields: dict[str, Any]) -> None:
    """Even when its install names it: the host compares tenant, workload and memory itself."""
    name = warmed(gpud)
    run_job(gpud, lambda device: device.op("noop"), residents=(name,), **fields)
    assert events(gpud, "warm_start") == []
    assert name in residents(gpud)
    assert lives(pid_of(name))


def test_a_waiting_lease_of_the_workload_gets_it_unnamed(gpud: Gpud) -> None:
    """The scheduler grants again before it knows the worker of the lease that ends."""
    first = gpud.install(exclusive=True, memory_mib=1024, workload=WORKLOAD)
    second = gpud.install(exclusive=True, memory_mib=1024, workload=WORKLOAD)
    for install in (first, second):
        with gpud.open(install) as session, connect(session.environment()) as device:
            relu(device)
    until(lambda: gpud.scheduler.is_cut(second.lease))
    assert [line["lease"] for line in events(gpud, "warm_start")] == [second.lease]


@needs_cpu_driver
def test_a_worker_that_ran_a_kernel_ends_with_its_lease(gpud: Gpud) -> None:
    def both(device: Devices) -> None:
        relu(device)
        graph = Graph(KERNEL)
        y = graph.output("y", 4)
        graph.launch("f", (1,), (1,), y)
        device.run(graph)

    run_job(gpud, both)
    assert events(gpud, "warm_kept") == []
    name = warmed(gpud)  # and one that was warm before
    run_job(gpud, both, residents=(name,))
    assert len(events(gpud, "warm_start")) == 1
    assert len(events(gpud, "warm_kept")) == 1
    until(lambda: residents(gpud) == {})


def test_a_worker_that_ran_a_program_ends_with_its_lease(tmp_path: Path) -> None:
    options, operations = ("--program", "true=/bin/true"), ("onnx", "exec")
    with running_gpud(tmp_path, *options, operations=operations) as gpud:
        run_job(gpud, then("exec", program="true"))
        assert events(gpud, "warm_kept") == []


def test_a_worker_whose_library_keeps_data_ends_with_its_lease(gpud: Gpud) -> None:
    """BLAS packs matrices into a work area that it never frees."""
    ones = struct.pack("4f", *[1.0] * 4)
    run_job(gpud, then("sgemm", ones, ones, m=2, n=2, k=2))
    assert events(gpud, "warm_kept") == []


def test_a_worker_that_loaded_nothing_or_still_computes_ends_with_its_lease(gpud: Gpud) -> None:
    run_job(gpud, lambda device: device.op("noop"))

    def busy(device: Devices) -> None:
        relu(device)
        device.post("burn", ms=60_000)

    run_job(gpud, busy)
    assert events(gpud, "warm_kept") == []


def test_a_revoked_lease_keeps_no_worker(gpud: Gpud) -> None:
    install = gpud.install(workload=WORKLOAD)
    with gpud.open(install) as session, connect(session.environment()) as device:
        relu(device)
        gpud.scheduler.end(install)
        until(lambda: gpud.scheduler.is_cut(install.lease))
    assert events(gpud, "warm_kept") == []


def test_named_workers_are_gone_before_the_lease_is_placed(gpud: Gpud) -> None:
    name = warmed(gpud)
    install = gpud.install(evict=(name,))
    with gpud.open(install):
        assert not lives(pid_of(name))
    order = [line["event"] for line in gpud.log() if name in line.get("warm", ())]
    assert order == ["warm_kept", "evict", "warm_gone"]
    assert gpud.log_s(install.lease, "placed") >= events(gpud, "warm_gone")[0]["at_s"]
    until(lambda: residents(gpud) == {})


def test_limits_are_live(gpud: Gpud) -> None:
    first = warmed(gpud)
    limit(gpud, idle_s_max=0.0)
    until(lambda: not lives(pid_of(first)))
    until(lambda: residents(gpud) == {})
    limit(gpud)
    warmed(gpud)
    limit(gpud, memory_pct_max=0)
    until(lambda: residents(gpud) == {})
    run_job(gpud)
    assert residents(gpud) == {}


def test_a_worker_that_dies_is_withdrawn_and_not_missed(gpud: Gpud) -> None:
    name = warmed(gpud)
    os.kill(pid_of(name), signal.SIGKILL)
    until(lambda: residents(gpud) == {})
    second = run_job(gpud, residents=(name,))
    assert events(gpud, "warm_start") == []
    assert (loading_s(gpud, second)[0] or 0) > 0


def test_a_worker_that_dies_while_it_is_handed_over_is_replaced(gpud: Gpud) -> None:
    name = warmed(gpud)
    os.kill(pid_of(name), signal.SIGSTOP)  # it takes neither its lease nor its lane
    install = gpud.install(workload=WORKLOAD, residents=(name,))
    with gpud.open(install) as session:
        threading.Timer(0.2, os.kill, (pid_of(name), signal.SIGKILL)).start()
        with connect(session.environment()) as device:
            relu(device)
    until(lambda: gpud.scheduler.is_cut(install.lease))
    assert gpud.scheduler.states(install.lease)[-1] == ("closed", "DONE")


def test_a_lease_that_ends_before_its_first_lane_leaves_the_worker_warm(gpud: Gpud) -> None:
    name = warmed(gpud)
    install = gpud.install(workload=WORKLOAD, residents=(name,))
    with gpud.open(install):
        until(lambda: name not in residents(gpud))
    until(lambda: gpud.scheduler.is_cut(install.lease))
    assert pid_of(kept(gpud)) == pid_of(name)


def test_nothing_of_a_lease_is_left_for_the_next(gpud: Gpud) -> None:
    """Neither handles nor bytes: the whole memory of the process is searched."""
    mark = secrets.token_bytes(32)
    data = mark * 8192

    def work(device: Devices) -> None:
        relu(device)
        buffer = device.buffer(len(data))
        buffer.write(data)
        device.op("noop", data)
        device.post("noop", buffer)
        with Operations(device) as operations:
            operations.run("noop", operations.resource("data", data))
            operations.resource("data", mark)

    def work_after(device: Devices) -> None:
        with pytest.raises(OpFailed, match="ENOENT"):
            device.op("buffer.read", buffer=1, offset=0, size=1)
        with pytest.raises(OpFailed, match="ENOENT"):
            device.op("session.free", session=1)
        relu(device)

    name = warmed(gpud, work)
    if os.geteuid() == 0:  # the process hides its memory from every other user
        assert marks_in(pid_of(name), mark) == 0
    scratch = [path for path in (gpud.state / "scratch").iterdir() if os.listdir(path)]
    assert [os.listdir(path) for path in scratch] == [["machine"]]
    run_job(gpud, work_after, residents=(name,))
    assert len(events(gpud, "warm_start")) == 1


def marks_in(pid: int, mark: bytes) -> int:
    """How often some bytes occur in the memory of a process."""
    count = 0
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            first, last = (int(word, 16) for word in line.split()[0].split("-"))
            if line.split()[1].startswith("rw"):
                with contextlib.suppress(OSError, ValueError):
                    memory.seek(first)
                    count += memory.read(last - first).count(mark)
    return count


def test_a_new_quota_applies_to_the_next_lease(gpud: Gpud) -> None:
    name = warmed(gpud, memory_mib=128)

    def more(device: Devices) -> None:
        relu(device)
        device.buffer(300 << 20).write(bytes(64))
        with pytest.raises(OpFailed, match="ENOMEM"):
            device.buffer(300 << 20)

    run_job(gpud, more, memory_mib=512, residents=(name,))
    assert len(events(gpud, "warm_start")) == 1


def test_a_hello_names_all(gpud: Gpud) -> None:
    name = warmed(gpud)
    published: list[dict[str, Any]] = []
    while [one["id"] for change in published for one in change["added"]] != [name]:
        published = gpud.scheduler.hellos.get(timeout=60).get("residents", [])
    assert [change["device"] for change in published] == [gpud.device["id"]]


def test_an_operator_may_switch_them_off(tmp_path: Path) -> None:
    with running_gpud(tmp_path, "--no-warm-workers", operations=("onnx",)) as gpud:
        run_job(gpud)
        assert events(gpud, "warm_kept") == []
