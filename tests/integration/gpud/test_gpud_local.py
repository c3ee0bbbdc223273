"""Programs of the host's own machine: a Unix socket in place of TCP, found and left by itself."""

from __future__ import annotations

import os
import socket
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from remote_gpu.client import Lane, OpFailed, Refusal, Refused, connect
from remote_gpu.wire.connection import Access
from remote_gpu.wire.frames import SHARED, pack
from tests.integration.gpud.conftest import Gpud, environment_over_tcp, socket_of


def at(view: Access, path: str) -> Access:
    return replace(view, hosts=tuple(replace(host, unix=path) for host in view.hosts))


def test_a_program_of_this_machine_gets_the_unix_socket(shared_gpud: Gpud) -> None:
    with shared_gpud.open(shared_gpud.install()) as session:
        [host] = session.view().hosts
        assert stat.S_IMODE(os.stat(host.unix).st_mode) == 0o600
        for environment, family in (
            (session.environment(), socket.AF_UNIX),
            (environment_over_tcp(session), socket.AF_INET),
        ):
            with connect(environment) as device:
                assert socket_of(device).family == family
                assert bytes(device.op("noop", b"abc").buffers[0]) == b"abc"


def test_a_foreign_unix_socket_falls_back_to_tcp(shared_gpud: Gpud, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(foreign))
        listener.listen()

        def refuse() -> None:
            stream, _ = listener.accept()
            with stream:
                stream.recv(100)

        thread = threading.Thread(target=refuse)
        thread.start()
        with shared_gpud.open(shared_gpud.install()) as session:
            for path in (str(foreign), str(tmp_path / "nothing"), "\0", "x" * 107):
                with Lane.open(at(session.view(), path)) as lane:
                    assert isinstance(lane._stream, socket.socket)
                    assert lane._stream.family == socket.AF_INET
        thread.join()


def test_a_refusal_over_the_unix_socket_is_final_where_tcp_would_say_the_same(
    shared_gpud: Gpud,
) -> None:
    session = shared_gpud.open(shared_gpud.install())
    view = session.view()
    session.close()
    with pytest.raises(Refused) as refused:
        Lane.open(view)
    assert refused.value.code == Refusal.ENDED


def test_large_payloads_go_through_shared_memory_both_ways(shared_gpud: Gpud) -> None:
    data = os.urandom(1 << 20) * 3 + b"the end"
    with shared_gpud.open(shared_gpud.install()) as session:
        for environment, shared in (
            (session.environment(), True),
            (environment_over_tcp(session), False),
        ):
            with connect(environment) as device:
                buffer = device.buffer(len(data))
                buffer.write(data[:10])
                assert device[0]._memory is None  # small ones do not need it
                buffer.write(data)
                assert bytes(buffer.read()) == data
                assert (device[0]._memory is not None) == shared
                device.post("noop", data)
                device.post("buffer.write", data, buffer=99)  # refused after its payload
                with pytest.raises(OpFailed, match="no buffer 99"):
                    device.sync()
                assert bytes(device.op("noop", data, b"x").buffers[0]) == data
                with pytest.raises(ValueError, match="do not fit"):
                    device.op("noop", data, out=[bytearray(1)])
                assert bytes(buffer.read(size=len(data))) == data
        with connect(session.environment()) as device:  # results alone show that it pays
            assert bytes(device.op("noop", data[:1000]).buffers[0]) == data[:1000]
            held = device.buffer(1 << 20)
            for _ in range(3):
                held.read()
            assert device[0]._memory is not None


def test_a_client_that_dies_in_shared_memory_leaves_a_worker_that_serves(shared_gpud: Gpud) -> None:
    with shared_gpud.open(shared_gpud.install()) as session:
        with connect(session.environment()) as device:
            device.op("noop", bytes(1 << 20))
            head = pack(
                {"op": "noop", "in": [1 << 30]}, call=9, flags=SHARED, payload_bytes=1 << 30
            )
            socket_of(device).sendall(head)
            assert device[0]._memory is not None
            device[0]._memory.segment.put([memoryview(bytes(3 << 20))])  # and no more
        with connect(session.environment()) as device:
            assert bytes(device.op("noop", b"abc").buffers[0]) == b"abc"
