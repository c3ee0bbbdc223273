"""Workers of a real gpud that load for a lease granted ahead, while another has the device."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from corekit.ids import HostId
from gpu_scheduler.model import DeviceKind, EndReason, Share
from gpu_scheduler.protocol.host import Install, WarmLimits
from remote_gpu.client import Devices, Session, connect
from tests.installs import share_of
from tests.integration.gpud.conftest import OPERATIONS, Gpud, lives, running_gpud, until
from tests.integration.gpud.test_gpud_advance import book, take_back
from tests.integration.gpud.test_gpud_warm import WARMED_WITHIN, loading_s, relu, residents

#: A model of 300 MiB takes 0.3 s to load, or 2 s.
FILE = """
devices:
- kind: vpu
  model: Emulated
  memory_mib: 1000
  operations:
    detect: {warm_ms: 1, cold_ms: 300, memory_mib: 300}
    study: {warm_ms: 1, cold_ms: 2000, memory_mib: 300}
"""


def emulated(folder: Path) -> tuple[str, str]:
    """The options of a gpud with the emulated device."""
    (folder / "devices.yaml").write_text(FILE)
    return "--emulate", str(folder / "devices.yaml")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    folder = tmp_path_factory.mktemp("ahead")
    with running_gpud(folder, *emulated(folder), operations=OPERATIONS) as found:
        yield found


@pytest.fixture
def gpud(shared: Gpud) -> Iterator[Gpud]:
    """The process of this file, without leases and warm workers before and after."""
    yield shared
    for left in list(shared.scheduler.installs.values()):
        shared.scheduler.end(left)
        until(lambda left=left: shared.scheduler.is_cut(left.lease))  # type: ignore[misc]
    forget(shared)


def forget(gpud: Gpud) -> None:
    """Evict all warm workers; what they have loaded stays known."""
    gpud.scheduler.limit(WarmLimits(workers_max=0))
    until(lambda: residents(gpud) == {})
    gpud.scheduler.limit(WarmLimits())


def share(memory_mib: int = 400) -> Share:
    return share_of(
        "gpu-a/emulated0",
        host=HostId("gpu-a"),
        index=1,
        kind=DeviceKind.VPU,
        model="emulated Emulated",
        memory_mib=memory_mib,
    )


def lease(gpud: Gpud, workload: str, memory_mib: int = 400, **fields: Any) -> Install:
    return gpud.install(shares=(share(memory_mib),), workload=workload, **fields)


def opened(gpud: Gpud, install: Install) -> Session:
    device = {"index": 1, "kind": "vpu", "model": "emulated Emulated", "memory_mib": 1}
    return Session.open(gpud.connection(install, devices=[device]), 60.0)


@contextlib.contextmanager
def lane(gpud: Gpud, install: Install) -> Iterator[Devices]:
    with opened(gpud, install) as session, connect(session.environment()) as device:
        yield device


def run(gpud: Gpud, install: Install, operation: str = "detect") -> float:
    """One job; returns the milliseconds that it loaded."""
    with lane(gpud, install) as device:
        loaded: float = device.op(operation, b"x").values["emulated"]["loading_ms"]
    until(lambda: gpud.scheduler.is_cut(install.lease))
    return loaded


def learned(gpud: Gpud, workload: str, operation: str = "detect") -> None:
    """A job has shown what its workload loads; nothing of it is left."""
    left_warm(gpud, lambda: run(gpud, lease(gpud, workload), operation))


def left_warm(gpud: Gpud, job: Callable[[], object]) -> None:
    """Run a job until it leaves a warm worker, which is evicted: a busy machine may take too long
    to keep one."""
    for _ in range(WARMED_WITHIN):
        before = gpud.logged("a worker stays warm")
        job()
        if len(gpud.logged("a worker stays warm")) > len(before):
            return forget(gpud)
    raise AssertionError(f"{WARMED_WITHIN} jobs left no warm worker")


def loaded(gpud: Gpud, install: Install) -> bool:
    return f"ahead-{install.fence}" in residents(gpud)


def ahead_s(gpud: Gpud, install: Install) -> list[float | None]:
    return [
        fields["loaded_ahead_s"]
        for op, fields in gpud.scheduler.messages
        if op == "session" and fields["lease"] == install.lease and fields["state"] == "closed"
    ]


def of(gpud: Gpud, event: str, install: Install) -> list[dict[str, Any]]:
    name = f"ahead-{install.fence}"
    return [line for line in gpud.log() if line["event"] == event and name in line.get("warm", ())]


def test_the_second_workload_loads_while_the_first_computes(gpud: Gpud) -> None:
    learned(gpud, "second")
    first = lease(gpud, "first")
    with lane(gpud, first) as device:
        device.op("detect", b"x")
        second = lease(gpud, "second", ahead=True)
        until(lambda: loaded(gpud, second))
        assert residents(gpud)[f"ahead-{second.fence}"]["memory_mib"] == 300
        assert device.op("detect", b"x").values["emulated"]["loading_ms"] == 0
    book(gpud, second)
    assert run(gpud, second) == 0
    assert loading_s(gpud, second) == [0.0]
    (seconds,) = ahead_s(gpud, second)
    assert seconds is not None
    assert seconds >= 0.3
    assert ahead_s(gpud, first) == [None]


def test_a_workload_that_this_host_does_not_know_begins_cold(gpud: Gpud) -> None:
    with lane(gpud, lease(gpud, "other")):
        unknown = lease(gpud, "unknown", ahead=True)
        until(lambda: gpud.scheduler.installs)
    book(gpud, unknown)
    assert run(gpud, unknown) > 0
    assert not of(gpud, "load", unknown)


def test_without_room_nothing_is_loaded(gpud: Gpud) -> None:
    learned(gpud, "second")
    with lane(gpud, lease(gpud, "large", 800)) as device:
        second = lease(gpud, "second", ahead=True)
        assert device.op("detect", b"x").values["emulated"]["loading_ms"] > 0
        assert not of(gpud, "load", second)
        book(gpud, second)  # once the large one is gone, there is room to load ahead
    assert run(gpud, second) > 0


def begun(gpud: Gpud) -> Install:
    """A lease ahead for which a worker loads for 2 s."""
    learned(gpud, "second", "study")
    second = lease(gpud, "second", ahead=True)
    until(lambda: of(gpud, "warm_loading", second))
    return second


def test_a_lease_that_needs_the_memory_ends_the_load(gpud: Gpud) -> None:
    with lane(gpud, lease(gpud, "first")):
        second = begun(gpud)
        with lane(gpud, lease(gpud, "third", 500)):
            assert of(gpud, "warm_gone", second)
    assert not of(gpud, "warm_kept", second)
    book(gpud, second)
    assert run(gpud, second, "study") > 0


def test_a_lease_that_comes_before_its_load_ends_waits_for_the_rest(gpud: Gpud) -> None:
    with lane(gpud, lease(gpud, "first")):
        second = begun(gpud)
    assert not of(gpud, "warm_kept", second)
    book(gpud, second)
    assert run(gpud, second, "study") == 0


def test_a_lease_that_loses_its_shares_keeps_what_loads_for_it(gpud: Gpud) -> None:
    with lane(gpud, lease(gpud, "first")):
        second = begun(gpud)
    book(gpud, second)
    assert gpud.log_s(second.lease, "placed")
    take_back(gpud, second)
    assert gpud.log_s(second.lease, "unplaced")
    until(lambda: loaded(gpud, second))
    book(gpud, second)
    assert run(gpud, second, "study") == 0


@pytest.mark.parametrize("is_booked", [False, True])
def test_a_lease_that_ends_while_it_loads_leaves_nothing(gpud: Gpud, is_booked: bool) -> None:
    with lane(gpud, lease(gpud, "first")):
        second = begun(gpud)
        if is_booked:
            book(gpud, second)
            assert gpud.log_s(second.lease, "placed")
        gpud.scheduler.end(second, EndReason.WITHDRAWN)
        until(lambda: gpud.scheduler.is_cut(second.lease))
        until(lambda: is_booked or of(gpud, "warm_gone", second))
        assert loading_pid(gpud) is None
    assert not of(gpud, "warm_kept", second)


def test_a_lease_withdrawn_later_leaves_a_warm_worker(gpud: Gpud) -> None:
    learned(gpud, "second")
    second = lease(gpud, "second", ahead=True)
    until(lambda: loaded(gpud, second))
    gpud.scheduler.end(second, EndReason.WITHDRAWN)
    until(lambda: gpud.scheduler.is_cut(second.lease))
    assert run(gpud, lease(gpud, "second")) == 0


def loading_pid(gpud: Gpud) -> int | None:
    """The worker of which a thread has the lowest priority."""
    for pid in gpud.workers():
        with contextlib.suppress(OSError):
            tasks = [int(one.name) for one in Path(f"/proc/{pid}/task").iterdir()]
            if any(os.getpriority(os.PRIO_PROCESS, task) == 19 for task in tasks):
                return pid
    return None


def test_a_worker_that_dies_while_it_loads_is_not_missed(gpud: Gpud) -> None:
    second = begun(gpud)
    until(lambda: loading_pid(gpud))
    os.kill(loading_pid(gpud) or 0, signal.SIGKILL)
    until(lambda: of(gpud, "warm_gone", second))
    book(gpud, second)
    assert run(gpud, second, "study") > 0
    forget(gpud)
    third = lease(gpud, "second", ahead=True)
    until(lambda: of(gpud, "warm_loading", third))


def test_a_worker_that_dies_in_its_lease_before_it_has_loaded_is_replaced(gpud: Gpud) -> None:
    second = begun(gpud)
    until(lambda: loading_pid(gpud))
    pid = loading_pid(gpud) or 0
    book(gpud, second)
    assert gpud.log_s(second.lease, "placed")
    os.kill(pid, signal.SIGKILL)
    assert run(gpud, second, "study") > 0


def test_a_stop_ends_a_load(tmp_path: Path) -> None:
    with running_gpud(tmp_path, *emulated(tmp_path)) as gpud:
        begun(gpud)
        until(lambda: loading_pid(gpud))
        pid = loading_pid(gpud) or 0
    assert not lives(pid)


def relu_job(gpud: Gpud, install: Install) -> None:
    with gpud.open(install) as session, connect(session.environment()) as device:
        relu(device)
    until(lambda: gpud.scheduler.is_cut(install.lease))


def test_a_model_of_the_tenant_is_loaded_ahead_on_a_cpu(gpud: Gpud) -> None:
    left_warm(gpud, lambda: relu_job(gpud, gpud.install(workload="relu")))
    with gpud.lane(workload="other") as device:
        second = gpud.install(workload="relu", ahead=True)
        until(lambda: loaded(gpud, second))
        device.op("noop")
    book(gpud, second)
    relu_job(gpud, second)
    assert loading_s(gpud, second) == [0.0]


def test_no_other_tenant_gets_what_is_loaded(gpud: Gpud) -> None:
    learned(gpud, "second")
    second = lease(gpud, "second", ahead=True, tenant="u")
    other = lease(gpud, "second", ahead=True)
    until(lambda: loaded(gpud, other))
    assert not of(gpud, "warm_loading", second)
