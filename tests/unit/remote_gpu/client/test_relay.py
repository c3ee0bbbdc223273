"""The relay: both directions, half-closed ones, cuts, and closed sockets at the end.

Each guarantee holds between two plain sockets, where the kernel splices bulk transfers, and where
the outer side is in TLS.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import random
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from ssl import SSLContext
from types import ModuleType

import pytest

from remote_gpu.client.transport.handshake import Carrier
from remote_gpu.client.transport.relay import Relay
from remote_gpu.client.transport.tls import TlsStream, client_context, secure, server_context
from tests.certificates import certificate
from tests.leaks import open_files

END_S = 20.0
BULK = random.Random(1).randbytes(3 << 20)  # no multiple of any buffer reads as another part
#: More than all socket buffers on the way can grow to; below it a relay would have to store bytes.
BUFFERS_BYTES = 64 << 20
Contexts = tuple[SSLContext, SSLContext]
Splice = Callable[[int, int, int], int]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    pair = certificate(tmp_path_factory.mktemp("pair"))
    return client_context(pair[0].read_text()), server_context(*pair)


def connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection; a call on the first one ends within END_S."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname(), END_S)
        return one, listener.accept()[0]


def in_tls(
    one: socket.socket, other: socket.socket, contexts: Contexts
) -> tuple[TlsStream, TlsStream]:
    found: list[TlsStream] = []

    def serve() -> None:
        found.append(TlsStream(other, secure(other, contexts[1], server=True)))

    thread = threading.Thread(target=serve)
    thread.start()
    client = TlsStream(one, secure(one, contexts[0], server=False))
    thread.join()
    return client, found[0]


class Relayed:
    """client ── relay ── server, with the two inner ends held by the relay."""

    def __init__(self, kind: str, contexts: Contexts) -> None:
        family = socket.socketpair if kind == "unix" else connected
        self.raw, one = family()
        self.server, other = family()
        self.inner = (one, other)
        self.ends: list[str] = []
        self.over = threading.Event()
        self.client: Carrier = self.raw
        outer: Carrier = one
        if kind == "tls":
            self.client, outer = in_tls(self.raw, one, contexts)
        self.relay = Relay(outer, other)
        self.relay.start(self._ended)
        for stream in (self.raw, self.server):
            stream.settimeout(END_S)

    def _ended(self) -> None:
        self.ends.append("over")
        self.over.set()

    def close(self) -> None:
        """Every relay ends: once, without a thread, with its sockets closed."""
        self.relay.cut()
        assert self.relay.join(END_S)
        assert self.ends == ["over"]
        assert all(stream.fileno() == -1 for stream in self.inner)
        self.client.close()
        self.server.close()


@pytest.fixture(params=["plain", "unix", "tls"])
def relayed(request: pytest.FixtureRequest, contexts: Contexts) -> Iterator[Relayed]:
    found = Relayed(request.param, contexts)
    yield found
    found.close()


def received(stream: Carrier, count: int = 1 << 30) -> bytes:
    """So many bytes, or all to the end."""
    found, buffer = bytearray(), bytearray(1 << 16)
    while len(found) < count and (
        size := stream.recv_into(buffer, min(1 << 16, count - len(found)))
    ):
        found += buffer[:size]
    return bytes(found)


@contextlib.contextmanager
def beside(act: Callable[[], object]) -> Iterator[None]:
    """Run something in a thread, which ends within the block; a broken connection is no fault."""

    def run() -> None:
        with contextlib.suppress(OSError):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(END_S)
        assert not thread.is_alive()


def filled(stream: socket.socket) -> int:
    """Send until nothing is taken any more, as nothing is read at the other side; how much."""
    sent, writable = 0, select.poll()
    writable.register(stream, select.POLLOUT)
    stream.setblocking(False)
    while writable.poll(200):
        with contextlib.suppress(BlockingIOError):
            sent += stream.send(BULK)
        assert sent < BUFFERS_BYTES
    stream.settimeout(END_S)
    return sent


def test_the_end_of_one_direction_leaves_the_other_open(relayed: Relayed) -> None:
    for question, answer in ((b"question", b"answer"), (BULK, BULK[::-1])):
        with beside(functools.partial(relayed.client.sendall, memoryview(question))):
            assert received(relayed.server, len(question)) == question
        with beside(functools.partial(relayed.server.sendall, answer)):
            assert received(relayed.client, len(answer)) == answer
    relayed.client.shutdown(socket.SHUT_WR)
    assert received(relayed.server) == b""
    with beside(lambda: relayed.server.sendall(BULK)):
        assert received(relayed.client, len(BULK)) == BULK
    relayed.server.close()
    assert received(relayed.client) == b""
    assert relayed.over.wait(END_S)


def test_both_directions_at_once_to_the_last_byte(relayed: Relayed) -> None:
    back = BULK[::-1]

    def answer() -> None:
        relayed.server.sendall(back)
        relayed.server.shutdown(socket.SHUT_WR)

    def ask() -> None:
        relayed.client.sendall(memoryview(BULK))
        relayed.client.shutdown(socket.SHUT_WR)

    found: list[bytes] = []
    with beside(ask), beside(answer), beside(lambda: found.append(received(relayed.server))):
        assert received(relayed.client) == back
    assert found == [BULK]
    assert relayed.over.wait(END_S)


def test_a_reader_that_stops_stops_its_sender(relayed: Relayed) -> None:
    sent = filled(relayed.server)
    relayed.server.shutdown(socket.SHUT_WR)
    assert len(received(relayed.client)) == sent  # and none is lost when it continues


def test_a_cut_ends_a_transfer_in_its_middle(relayed: Relayed) -> None:
    def send() -> None:
        while True:
            relayed.server.sendall(BULK)

    with beside(send):
        assert received(relayed.client, len(BULK)) == BULK
        relayed.relay.cut()
        assert relayed.over.wait(END_S)
        with contextlib.suppress(ConnectionError):  # what was on the way may still come
            received(relayed.client)
    relayed.relay.cut()  # repeating it is no error


def test_a_cut_ends_a_direction_that_waits_for_its_reader(relayed: Relayed) -> None:
    filled(relayed.server)
    relayed.relay.cut()
    assert relayed.over.wait(END_S)


@pytest.mark.parametrize("bulk", [False, True])
def test_a_side_that_resets_ends_the_other(relayed: Relayed, bulk: bool) -> None:
    if bulk:
        with beside(lambda: relayed.client.sendall(memoryview(BULK))):
            assert received(relayed.server, len(BULK)) == BULK
    if relayed.server.family == socket.AF_INET:
        relayed.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    relayed.server.close()
    with contextlib.suppress(ConnectionError):
        assert received(relayed.client) == b""
    with pytest.raises(OSError):
        relayed.client.sendall(memoryview(bytes(1 << 26)))
    assert relayed.over.wait(END_S)


@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_two_hundred_at_once_leave_nothing(kind: str, contexts: Contexts) -> None:
    before, threads = open_files(), threading.active_count()
    large = BULK[: 1 << 18]
    with contextlib.ExitStack() as stack:
        every = []
        for _ in range(200):
            every.append(Relayed(kind, contexts))
            stack.callback(every[-1].close)
        for number, one in enumerate(every):
            one.client.sendall(memoryview(b"%03d" % number))
        for number, one in enumerate(every):
            assert received(one.server, 3) == b"%03d" % number
        for one in every:
            with beside(functools.partial(one.client.sendall, memoryview(large))):
                assert received(one.server, len(large)) == large
    assert threading.active_count() == threads
    assert open_files() <= before


def splicing(calls: list[int], fails: Callable[[int], int]) -> Splice:
    """The kernel's own, with the errors of `fails` by the number of the call; 0 = none."""
    own: Splice = os.splice

    def splice(source: int, sink: int, count: int) -> int:
        calls.append(count)
        if number := fails(len(calls)):
            raise OSError(number, os.strerror(number))
        return own(source, sink, count)

    return splice


def carried(relayed: Relayed) -> None:
    """One direction, small and large messages."""

    def send() -> None:
        for part in (b"small", BULK, b"small", BULK):
            relayed.server.sendall(part)
        relayed.server.shutdown(socket.SHUT_WR)

    with beside(send):
        assert received(relayed.client) == b"small" + BULK + b"small" + BULK


@pytest.mark.parametrize("kind", ["plain", "unix"])
def test_bulk_is_spliced(kind: str, contexts: Contexts, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(os, "splice", splicing(calls, lambda number: 0))
    relayed = Relayed(kind, contexts)
    relayed.server.sendall(b"small")
    assert received(relayed.client, 5) == b"small"
    assert not calls
    carried(relayed)
    assert calls
    relayed.close()


@pytest.mark.parametrize("failing", [1, 2, 3, 4])  # from the socket, or from the pipe
@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EPERM])
def test_bytes_are_copied_where_the_kernel_does_not_splice(
    number: int, failing: int, contexts: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(os, "splice", splicing(calls, lambda at: number if at == failing else 0))
    relayed = Relayed("plain", contexts)
    carried(relayed)
    assert len(calls) == failing
    relayed.close()


@pytest.mark.parametrize("refused", [(os, "pipe", errno.EMFILE), (fcntl, "fcntl", errno.EPERM)])
def test_bytes_are_copied_where_no_pipe_is_left(
    refused: tuple[ModuleType, str, int], contexts: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor, or no more pages of pipes for this user."""
    module, name, number = refused

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    before = open_files()
    relayed = Relayed("plain", contexts)
    monkeypatch.setattr(module, name, refuse)
    carried(relayed)
    relayed.close()
    assert open_files() <= before
