"""TLS without a network: both state machines in memory, with any bytes in between."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.errors import AppError, ErrorCode
from remote_gpu.client.transport.handshake import tune
from remote_gpu.client.transport.tls import (
    TlsMachine,
    TlsStream,
    client_context,
    secure,
    server_context,
)
from remote_gpu.host.credentials.tls import HostTls
from remote_gpu.wire.errors import WireError
from tests.certificates import certificate


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("pair"))


def connected(pair: tuple[Path, Path]) -> tuple[TlsMachine, TlsMachine]:
    client = TlsMachine(client_context(pair[0].read_text()), server=False)
    server = TlsMachine(server_context(*pair), server=True)
    done = [False, False]
    while not all(done):
        for i, (one, other) in enumerate(((client, server), (server, client))):
            done[i] = done[i] or one.handshake()
            if data := one.take():
                other.give(data)
    return client, server


def test_both_ends_have_one_binding_and_no_other_connection_has_it(pair: tuple[Path, Path]) -> None:
    (one, two), (three, four) = connected(pair), connected(pair)
    assert one.binding == two.binding != three.binding == four.binding
    assert len(one.binding) >= 32


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=40_000), max_size=4), st.integers(1, 20_000))
def test_all_sent_bytes_arrive(pair: tuple[Path, Path], parts: list[bytes], portion: int) -> None:
    client, server = connected(pair)
    sent = b"".join(client.encrypt(memoryview(part)) for part in parts if part)
    got, view = b"", memoryview(bytearray(7_000))
    for at in range(0, len(sent), portion):
        server.give(sent[at : at + portion])
        while (count := server.decrypt(view)) is not None:
            got += bytes(view[:count])
    assert got == b"".join(parts)
    server.give(b"")
    assert server.decrypt(view) == 0  # the end, after all that came


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=600), st.booleans())
def test_any_bytes_in_a_handshake_need_more_or_are_a_wire_error(
    pair: tuple[Path, Path], data: bytes, server: bool
) -> None:
    context = server_context(*pair) if server else client_context(pair[0].read_text())
    machine = TlsMachine(context, server=server)
    machine.handshake()
    machine.give(data)
    try:
        assert not machine.handshake()
    except WireError:
        return
    machine.give(b"")
    with pytest.raises(WireError):
        machine.handshake()


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_changed_byte_of_a_record_ends_the_connection(
    pair: tuple[Path, Path], at: int, by: int
) -> None:
    client, server = connected(pair)
    sent = bytearray(client.encrypt(memoryview(b"x" * 1000)))
    sent[at % len(sent)] ^= by
    server.give(bytes(sent))
    view = memoryview(bytearray(2000))
    try:
        assert server.decrypt(view) is None  # a length that now says more is to come
    except OSError:
        return


def test_a_stream_carries_two_threads_at_once(pair: tuple[Path, Path]) -> None:
    ends = socket.socketpair()
    streams: list[TlsStream] = []

    def shake(end: socket.socket, server: bool) -> None:
        context = server_context(*pair) if server else client_context(pair[0].read_text())
        streams.append(TlsStream(end, secure(end, context, server=server)))

    threads = [threading.Thread(target=shake, args=(end, i == 1)) for i, end in enumerate(ends)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data = memoryview(bytes(range(256)) * 20_000)
    got = [bytearray(data.nbytes), bytearray(data.nbytes)]

    def receive(stream: TlsStream, into: bytearray) -> None:
        done, view = 0, memoryview(into)
        while done < len(into):
            done += stream.recv_into(view[done:])

    work = [threading.Thread(target=receive, args=p) for p in zip(streams, got, strict=True)]
    work += [threading.Thread(target=stream.sendall, args=(data,)) for stream in streams]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert got == [data, data]
    for stream in streams:
        stream.close()


def test_a_silent_peer_times_out(pair: tuple[Path, Path]) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(0.01)
        with pytest.raises(TimeoutError):
            secure(one, server_context(*pair), server=True)
        other.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(WireError, match="TLS"):
            secure(one, server_context(*pair), server=True)


def test_the_certificate_of_a_host_is_checked(pair: tuple[Path, Path], tmp_path: Path) -> None:
    tls = HostTls.load(*pair, required=False)
    assert tls.authority == pair[0].read_text().strip()
    both = tmp_path / "both.pem"
    both.touch(mode=0o600)
    both.write_text(pair[1].read_text() + pair[0].read_text() + "and more\n")
    assert HostTls.load(both, both, required=False).authority == tls.authority
    sources = ("", "127.0.0.1", "::1", "10.0.0.1", "fe80::1%eth0")
    told = [bool(tls.authority_for(source)) for source in sources]
    assert told == [False, False, False, True, True]
    required = HostTls.load(*pair, required=True)
    assert [bool(required.authority_for(s)) for s in sources] == [False, True, True, True, True]
    with pytest.raises(AppError, match="for TLS") as refused:
        HostTls.load(pair[1], pair[1], required=False)
    assert refused.value.code == ErrorCode.INVALID
    large = tmp_path / "large.pem"
    large.write_text(pair[0].read_text().replace("\n-----END", "\n" + "A" * 4000 + "\n-----END"))
    with pytest.raises(AppError):
        HostTls.load(large, pair[1], required=False)
    open_key = tmp_path / "key.pem"
    open_key.write_bytes(pair[1].read_bytes())
    open_key.chmod(0o644)
    with pytest.raises(AppError, match="chmod") as refused:
        HostTls.load(pair[0], open_key, required=False)
    assert refused.value.code == ErrorCode.DENIED


def test_an_authority_that_is_not_a_certificate() -> None:
    for text in ("x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(WireError, match="not a valid certificate"):
            client_context(text)


def test_keepalive_is_60_s_every_15_s_3_times() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as stream:
        stream.connect(listener.getsockname())
        tune(stream)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        found = [stream.getsockopt(socket.IPPROTO_TCP, option) for option in options]
        assert found == [60, 15, 3]
        assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
