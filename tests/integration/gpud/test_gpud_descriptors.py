"""Programs with more than 1,024 open files, whose numbers select() cannot hold, or too few."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
from collections.abc import Iterator

import pytest

from remote_gpu.client import Refused, connect
from remote_gpu.forwarder import Forwarder
from tests.integration.gpud.conftest import Gpud, environment_over_tcp, running_gpud, until
from tests.integration.gpud.test_gpud_relays import Client, program

_HELD = 1100
#: Becomes the command that follows, with that many open files.
_HOLDING = f"""
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
for _ in range({_HELD}):
    os.set_inheritable(os.dup(0), True)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture(scope="module")
def gpud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    """Every descriptor that it opens is above those that it has held from its start."""
    folder = tmp_path_factory.mktemp("gpud")
    prefix = (sys.executable, "-S", "-c", _HOLDING)
    servers = {"gvirtus": program(folder, "gvirtus")}
    operations = ("noop", "burn")
    with running_gpud(folder, operations=operations, middlewares=servers, prefix=prefix) as found:
        yield found


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process holds as many itself."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(_HELD)]
    yield
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_end_of_a_lease_ends_no_other_one(gpud: Gpud) -> None:
    other = gpud.open(gpud.install())
    first = gpud.install()
    with gpud.open(first) as session, connect(session.environment()) as device:
        device.op("noop")
    until(lambda: gpud.scheduler.is_cut(first.lease))
    with other, connect(other.environment()) as device:
        device.op("noop")


def test_a_program_with_many_files_has_a_session_and_lanes(gpud: Gpud, many_files: None) -> None:
    del many_files
    with gpud.open(gpud.install()) as session, connect(session.environment()) as device:
        for _ in range(3):  # the second is long enough to be slept for
            device.op("burn", ms=5)
        assert session.alive


def test_a_program_with_many_files_has_relays(gpud: Gpud, many_files: None) -> None:
    del many_files
    with (
        gpud.open(gpud.install()) as session,
        Forwarder(session.view(), "gvirtus") as forwarder,
        Client(forwarder.ports[0]) as client,
    ):
        assert client.hear() == b"port 0"
        assert client.ask(b"one") == b"one"


_FEW = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    """It and its workers may have 150 files."""
    folder = tmp_path_factory.mktemp("few")
    prefix = (sys.executable, "-S", "-c", _FEW)
    with running_gpud(folder, prefix=prefix) as found:
        yield found


def test_idle_connections_take_no_descriptors_of_leases(few: Gpud) -> None:
    host, _, port = few.gateway.rpartition(":")
    idle = [socket.create_connection((host, int(port)), 10) for _ in range(300)]
    try:
        with few.open(few.install(1)) as session, connect(environment_over_tcp(session)) as device:
            device.op("noop")
    finally:
        for stream in idle:
            stream.close()


def test_leases_beyond_the_descriptors_are_refused_and_end_no_other_one(few: Gpud) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(few.open(few.install(1)))
        lane = stack.enter_context(connect(first.environment()))
        with pytest.raises(Refused):
            fill(few, stack)
        lane.op("noop")
    until(lambda: all(few.scheduler.is_cut(f"lease-{n}") for n in (1, 2)))
    until(lambda: lease_works(few))


def fill(gpud: Gpud, stack: contextlib.ExitStack) -> None:
    """Begin more leases than there are descriptors for. Raises Refused."""
    for _ in range(60):
        session = stack.enter_context(gpud.open(gpud.install(1), timeout_s=5))
        stack.enter_context(connect(session.environment())).op("noop")


def lease_works(gpud: Gpud) -> bool:
    """The descriptors of ended leases are free a moment later."""
    try:
        with gpud.lane(1) as device:
            return device.op("noop").values == {}
    except Refused:
        return False
