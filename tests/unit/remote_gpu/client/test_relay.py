"""The relay: both directions, half-closed ones, cuts, and closed sockets at the end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from remote_gpu.client.transport.relay import Relay

END_S = 20.0


class Relayed:
    """client ── relay ── server, with the two inner ends held by the relay."""

    def __init__(self) -> None:
        self.client, one = socket.socketpair()
        self.server, other = socket.socketpair()
        self.inner = (one, other)
        self.ends: list[str] = []
        self.over = threading.Event()
        self.relay = Relay(one, other)
        self.relay.start(self._ended)
        for stream in (self.client, self.server):
            stream.settimeout(END_S)

    def _ended(self) -> None:
        self.ends.append("over")
        self.over.set()


@pytest.fixture
def relayed() -> Iterator[Relayed]:
    found = Relayed()
    yield found
    found.relay.cut()
    assert found.relay.join(END_S)
    assert found.ends == ["over"]
    assert all(stream.fileno() == -1 for stream in found.inner)
    found.client.close()
    found.server.close()


def test_the_end_of_one_direction_leaves_the_other_open(relayed: Relayed) -> None:
    relayed.client.sendall(b"question")
    relayed.client.shutdown(socket.SHUT_WR)
    assert relayed.server.recv(100) == b"question"
    assert relayed.server.recv(100) == b""
    relayed.server.sendall(b"answer")
    assert relayed.client.recv(100) == b"answer"
    relayed.server.close()
    assert relayed.client.recv(100) == b""
    assert relayed.over.wait(END_S)


def test_a_cut_ends_a_blocked_direction(relayed: Relayed) -> None:
    relayed.client.setblocking(False)
    with pytest.raises(BlockingIOError):
        relayed.client.sendall(bytes(1 << 26))  # the server takes nothing: all buffers fill
    relayed.relay.cut()
    assert relayed.over.wait(END_S)
    relayed.relay.cut()  # repeating it is no error


def test_a_broken_side_ends_the_other(relayed: Relayed) -> None:
    relayed.server.close()
    assert relayed.client.recv(100) == b""
    with pytest.raises(OSError):
        relayed.client.sendall(bytes(1 << 26))
    assert relayed.over.wait(END_S)
