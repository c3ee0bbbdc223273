"""Registrations of killed servers are removed from rpcbind, which keeps them otherwise."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from remote_gpu.host.gateway.relays import Relays
from remote_gpu.host.servers import server as module
from remote_gpu.host.servers.server import unregister
from remote_gpu.isolation.policy import IsolationPolicy
from remote_gpu.isolation.sandboxes import Sandboxes
from remote_gpu.middleware.base import RpcProgram, VisibleDevices
from tests.installs import install_of

CRICKET = RpcProgram(number=99, version=41)
OTHER = RpcProgram(number=99, version=42)
#: A server that registers with nothing, and sends the version that it was given.
SERVER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
while True:
    stream, _ = listener.accept()
    stream.sendall(sys.argv[1].encode())
    stream.close()
"""
LEASE = install_of(41)


class Rpcbind:
    """Its local socket and version 4 of its protocol (RFC 1833), as far as `UNSET`."""

    def __init__(self, path: Path, *, answers: bool = True) -> None:
        self.registered = {(99, 41), (99, 42)}
        self._answers = answers
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            with stream, stream.makefile("rb") as words:
                if self._answers:
                    stream.sendall(self._answer(words.read(4), words.read))

    def _answer(self, mark: bytes, read: Callable[[int], bytes]) -> bytes:
        (length,) = struct.unpack(">I", mark)
        assert length & 1 << 31, "one fragment"
        xid, *fields = struct.unpack(">15I", read(length & 0x7FFFFFFF))
        call, rpc, program, version, procedure, *auth, number, of_program, net, address, owner = (
            fields
        )
        assert (call, rpc, program, version, procedure) == (0, 2, 100_000, 4, 2)
        assert not any(auth)
        assert (net, address, owner) == (0, 0, 0), "of all transports, by the caller's user"
        self.registered.discard((number, of_program))
        body = struct.pack(">7I", xid, 1, 0, 0, 0, 0, 1)  # accepted, success, true
        return struct.pack(">I", 1 << 31 | len(body)) + body

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rpcbind.sock"


@pytest.fixture
def rpcbind(path: Path) -> Iterator[Rpcbind]:
    found = Rpcbind(path)
    yield found
    found.close()


def test_one_version_of_a_program_is_removed(path: Path, rpcbind: Rpcbind) -> None:
    unregister(CRICKET, path)
    assert rpcbind.registered == {(99, 42)}
    unregister(CRICKET, path)
    unregister(OTHER, path)
    assert rpcbind.registered == set()


def test_a_servers_registration_is_removed_before_its_start_and_after_its_end(
    tmp_path: Path, path: Path, rpcbind: Rpcbind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RPCBIND_SOCKET", path)
    program = tmp_path / "cricket"
    program.write_text(f"#!{sys.executable} -S\n{SERVER}")
    program.chmod(0o755)

    async def lease() -> None:
        async with Nursery("host") as nursery:
            sandboxes = Sandboxes(IsolationPolicy(), tmp_path / "kept")
            servers, visible = tmp_path / "s", VisibleDevices()
            relays = Relays({"cricket": program}, servers, Budget(), nursery, visible, sandboxes)
            client, stream = socket.socketpair()
            with client:
                served = nursery.start(relays.serve_port(LEASE, "cricket", stream), "served")
                assert await asyncio.to_thread(client.recv, 64) == b"41"
                assert rpcbind.registered == {(99, 42)}
                rpcbind.registered.add((99, 41))  # as a real one does when it starts
            await served
            server = relays.leave(LEASE.lease)
            assert server is not None
            await server.gone

    asyncio.run(lease())
    assert rpcbind.registered == {(99, 42)}


def test_a_machine_without_rpcbind_has_no_registrations(path: Path) -> None:
    unregister(CRICKET, path)
    path.touch()
    unregister(CRICKET, path)


def test_an_rpcbind_that_closes_the_connection_is_no_error(path: Path) -> None:
    found = Rpcbind(path, answers=False)
    unregister(CRICKET, path)
    found.close()
    assert found.registered == {(99, 41), (99, 42)}
