"""What gpud survives, and what must not survive gpud."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from pathlib import Path

import pytest

from remote_gpu.client import Refusal, Refused, Session, connect
from remote_gpu.client.transport.handshake import open_connection
from remote_gpu.wire.connection import parse_access
from remote_gpu.wire.frames import HEADER, MAGIC, VERSION, pack
from remote_gpu.wire.proof import ConnectionRole
from tests.integration.gpud.conftest import Gpud, environment_over_tcp, socket_of, until


def dial(gpud: Gpud) -> socket.socket:
    host, _, port = gpud.gateway.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def answer(stream: socket.socket) -> bytes:
    """All that comes until the gateway closes."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := stream.recv(4096):
            received += part
    return received


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
        HEADER.pack(MAGIC, VERSION, 0, 0, 2**32 - 1, 0),
        HEADER.pack(MAGIC, VERSION, 0, 0, 2, 2**63),
        HEADER.pack(MAGIC, VERSION, 0, 0, 4090, 0) + b" " * 4090,
        pack({}),
        pack({"hello": 5}),
        pack({"hello": {"role": "session"}}),
        pack({"proof": "x"}),
    ],
)
def test_foreign_bytes_are_refused_and_affect_no_other_connection(
    shared_gpud: Gpud, garbage: bytes
) -> None:
    install = shared_gpud.install()
    with shared_gpud.open(install) as session:
        with dial(shared_gpud) as stream:
            stream.sendall(garbage)
            assert b"PROTOCOL" in answer(stream)
        assert session.alive


def test_unauthenticated_connections_are_limited(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    with shared_gpud.open(install) as session:
        idle = [dial(shared_gpud) for _ in range(300)]
        try:
            with connect(environment_over_tcp(session)) as device:  # in the place of an idle one
                assert device.op("noop").values == {}
            assert b"BUSY" in answer(idle[0])
            assert session.alive  # what has proved itself is not disturbed
        finally:
            for stream in idle:
                stream.close()


def test_a_program_that_stops_in_the_middle_of_a_call(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    with shared_gpud.open(install) as session:
        broken = connect(session.environment())
        meta = b'{"op":"noop","in":[1000000]}'
        head = struct.pack("!HBBIIQ", MAGIC, VERSION, 0, 1, len(meta), 1_000_000)
        socket_of(broken).sendall(head + meta + b"only a part")
        broken.close()
        with connect(session.environment()) as device:
            device.op("noop")


def test_bytes_out_of_place_end_their_lane_only(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    with shared_gpud.open(install) as session, connect(session.environment()) as neighbour:
        for garbage in (b"x" * 100, pack({"op": 5}), pack({"op": "noop", "in": [5]})):
            broken = connect(session.environment())
            socket_of(broken).sendall(garbage)
            assert b"EPROTO" in answer(socket_of(broken))
            broken.close()
        assert neighbour.op("noop").values == {}
        assert session.alive


def test_nothing_survives_a_killed_gpud(own_gpud: Gpud) -> None:
    install = own_gpud.install()
    session = own_gpud.open(install)
    device = connect(session.environment())
    device.op("noop")
    below = own_gpud.workers()
    assert len(below) >= 2
    own_gpud.kill()
    until(lambda: not own_gpud.survivors(below))
    until(lambda: not session.alive)
    with pytest.raises(Refused):
        device.op("noop")
    device.close()
    session.close()


def test_sigterm_ends_leases_and_reports_them(own_gpud: Gpud) -> None:
    install = own_gpud.install()
    session = own_gpud.open(install)
    with connect(session.environment()) as device:
        device.op("noop")
        own_gpud.process.terminate()
        assert own_gpud.process.wait(30) == 0
    session.close()
    until(lambda: ("closed", "HOST_LOST") in own_gpud.scheduler.states(install.lease))
    assert own_gpud.log_s(install.lease, "cut")


def test_a_dead_spawner_is_replaced_and_the_lease_goes_on(own_gpud: Gpud) -> None:
    install = own_gpud.install()
    with own_gpud.open(install) as session:
        with connect(session.environment()) as device:
            device.op("noop")
            spawner = next(
                pid
                for pid in own_gpud.workers()
                if b"remote_gpu.worker.spawner" in Path(f"/proc/{pid}/cmdline").read_bytes()
            )
            os.kill(spawner, signal.SIGKILL)
            with pytest.raises(Refused):
                device.op("burn", ms=10_000)

        def works() -> bool:
            with contextlib.suppress(Refused), connect(session.environment()) as again:
                return again.op("noop").values == {}
            return False

        until(works)
        assert session.alive


def test_leases_outlive_the_scheduler_until_their_own_deadlines(own_gpud: Gpud) -> None:
    held, capped, never = (own_gpud.install(memory_mib=100) for _ in range(3))
    own_gpud.scheduler.staged(never, 1.0)
    session, short = own_gpud.open(held), own_gpud.open(capped, cap_s=1.0)
    own_gpud.scheduler.disconnect()
    with connect(session.environment()) as device:
        for lease in (capped.lease, never.lease):
            assert own_gpud.log_s(lease, "cut")
        assert device.op("noop").values == {}
    ends = {e["lease"]: e["reason"] for e in own_gpud.log() if e["event"] == "closed"}
    assert ends == {capped.lease: "CAP", never.lease: "NOT_STARTED"}
    session.close()
    short.close()
    assert own_gpud.log_s(held.lease, "cut")


def test_a_resumed_host_first_ends_overdue_leases(own_gpud: Gpud) -> None:
    """After SIGSTOP past every deadline, open leases are cut before any request is served."""
    old = own_gpud.install(exclusive=True)
    session = own_gpud.open(old, cap_s=60)
    own_gpud.process.send_signal(signal.SIGSTOP)
    new = own_gpud.install(exclusive=True)  # the scheduler gave the share to another meanwhile
    own_gpud.scheduler.end(old)
    until(lambda: not session.alive)  # as long a silence as the host's own deadline
    own_gpud.process.send_signal(signal.SIGCONT)
    with Session.open(own_gpud.connection(new), 10) as second, connect(second.environment()) as d:
        assert d.op("noop").values == {}
    session.close()
    assert own_gpud.log_s(old.lease, "cut") <= own_gpud.log_s(new.lease, "placed")
    own_gpud.check_log()


def test_refusals_are_a_closed_set() -> None:
    words = "CLAIMED NOT_INSTALLED NOT_READY DENIED ENDED BUSY PROTOCOL TIMEOUT UNREACHABLE"
    assert {one.value for one in Refusal} == set(words.split())


@pytest.mark.parametrize("over", ["tcp", "shared memory"])
def test_a_client_that_stops_reading_stops_its_own_lane_and_nothing_else(
    shared_gpud: Gpud, over: str
) -> None:
    """Its worker waits with one answer, however many calls it sends, until the lease ends."""
    install = shared_gpud.install()
    answer_bytes = 32 << 20
    with shared_gpud.open(shared_gpud.install()) as other:
        session = shared_gpud.open(install)
        environment = environment_over_tcp(session) if over == "tcp" else session.environment()
        with connect(environment) as stuck, connect(other.environment()) as neighbour:
            buffer = stuck.buffer(answer_bytes)
            if over != "tcp":
                buffer.write(bytes(answer_bytes))
                assert stuck[0]._memory is not None
            read = pack({"op": "buffer.read", "args": {"buffer": 1, "size": answer_bytes}})
            socket_of(stuck).settimeout(0.2)
            with contextlib.suppress(TimeoutError):  # it takes what the kernel has room for
                for _ in range(100_000):
                    socket_of(stuck).sendall(read)
            assert neighbour.op("noop").values == {}
            assert session.alive
            shared_gpud.scheduler.end(install)
            until(lambda: shared_gpud.scheduler.is_cut(install.lease))
            assert neighbour.op("noop").values == {}
        session.close()


@pytest.mark.soak  # the kernel takes a hundred thousand answers before the gateway has to wait
def test_a_session_that_stops_reading_is_lost_by_its_silence(shared_gpud: Gpud) -> None:
    """A client that sends beats without reading answers: the gateway ends it after a while."""
    install = shared_gpud.install()
    [host] = parse_access(shared_gpud.connection(install)).hosts
    stream, _, _ = open_connection(
        host,
        role=ConnectionRole.SESSION,
        lease=install.lease,
        fence=install.fence,
        session="ab" * 16,
        timeout_s=60,
        cap_s=600,
    )
    assert isinstance(stream, socket.socket)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stream.settimeout(0.5)
    beats = pack({"beat": {}}) * 1000

    def lost() -> bool:
        with contextlib.suppress(OSError):  # unread, or closed
            stream.sendall(beats)
        return ("closed", "SESSION_LOST") in shared_gpud.scheduler.states(install.lease)

    until(lost, 90)
    stream.close()
    until(lambda: shared_gpud.scheduler.is_cut(install.lease))
