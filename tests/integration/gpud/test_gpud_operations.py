"""Sessions of operations on a real gpud: resources of a tenant, joined calls, programs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote_gpu.client import Devices, Operations, OpFailed, Refused, Resource, Session, connect
from tests.integration.gpud.conftest import Gpud, running_gpud, until

OPERATIONS = ("noop", "onnx", "exec", "burn")
WAIT_S = 60.0


#: Marks the processes of the listed program, which cannot report them.
MARK = str(10**8 + os.getpid())


@pytest.fixture(scope="module")
def _gpud_of_this_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    endless = f"endless=/bin/sh -c 'setsid sleep {MARK} & wait'"
    folder, options = tmp_path_factory.mktemp("gpud"), ("--program", endless)
    with running_gpud(folder, *options, operations=OPERATIONS) as gpud:
        yield gpud


@contextlib.contextmanager
def lane(gpud: Gpud, **install: Any) -> Iterator[tuple[Devices, Session]]:
    with gpud.open(gpud.install(**install)) as session, connect(session.environment()) as device:
        yield device, session


def test_bytes_are_sent_once_to_a_tenant_and_never_found_by_another(shared_gpud: Gpud) -> None:
    data = os.urandom(2000)
    for tenant, missing in (("one", True), ("one", False), ("two", True)):
        with lane(shared_gpud, tenant=tenant) as (device, _), Operations(device) as operations:
            asked: dict[str, Any] = {"session": operations.id, "type": "data"}
            resource = content_of(data)
            found = device.op("resource.register", content=resource, **asked).values
            assert found == {"missing": missing}
            registered = operations.resource("data", data)
            assert registered.content == resource
            assert bytes(operations.run("noop", registered).buffers[0]) == data


def content_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def test_a_resource_is_the_leases_not_the_lanes(shared_gpud: Gpud) -> None:
    with lane(shared_gpud) as (device, session), connect(session.environment()) as other:
        operations = Operations(device)
        resource = operations.resource("data", b"shared")
        assert bytes(other.op("noop", resource).buffers[0]) == b"shared"
        with pytest.raises(OpFailed, match="ENOENT"):  # but a session is its lane's
            other.op("session.free", session=operations.id)
        operations.close()
        with pytest.raises(OpFailed, match="ENOENT"):
            other.op("noop", resource)


def test_a_lane_that_is_gone_takes_its_sessions_along(shared_gpud: Gpud) -> None:
    with lane(shared_gpud) as (device, session):
        with connect(session.environment()) as other:
            resource = Operations(other).resource("data", b"gone")
        until(lambda: is_gone(device, resource))


def test_a_call_states_its_wait_for_the_device_and_its_copies(shared_gpud: Gpud) -> None:
    cores = len(os.sched_getaffinity(shared_gpud.process.pid))  # as many turns at once
    with contextlib.ExitStack() as stack:
        lanes = [stack.enter_context(lane(shared_gpud))[0] for _ in range(cores + 1)]
        device, *others = lanes
        operations = stack.enter_context(Operations(device))
        operations.run("noop", os.urandom(1 << 20), out=[device.buffer(1 << 20)])
        assert operations.regions().copied_us > 0
        for other in others:
            for _ in range(100):
                other.post("burn", ms=10)

        def waits() -> bool:
            operations.run("burn", ms=1)
            return operations.regions().queued_us > 1000

        until(waits)


def is_gone(device: Devices, resource: Resource) -> bool:
    try:
        device.op("noop", resource)
    except OpFailed as error:
        return error.code == "ENOENT"
    return False


def marked() -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if MARK.encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


def test_a_program_ends_with_its_lease(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    with shared_gpud.open(install) as session:

        def run() -> None:
            with contextlib.suppress(Refused), connect(session.environment()) as device:
                device.op("exec", program="endless", timeout_s=600)

        thread = threading.Thread(target=run)
        thread.start()
        until(marked)
        processes = marked()
        session.close()
        thread.join()
    until(lambda: shared_gpud.scheduler.is_cut(install.lease))
    assert shared_gpud.survivors(processes) == [], "its shares are free when no process is left"
