"""TLS of a real gpud: encrypted connections, and no man in the middle, even with stolen keys."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remote_gpu.client import Lane, Refusal, Refused, Session
from remote_gpu.client.transport.tls import TlsStream, client_context, secure, server_context
from remote_gpu.forwarder import Forwarder
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.connection import Access
from remote_gpu.wire.frames import HANDSHAKE, Meta
from tests.certificates import certificate
from tests.integration.gpud.conftest import Gpud, over_tcp, running_gpud, until
from tests.integration.gpud.test_gpud_relays import Client, both_ways, program, transfer_cut

MARK = b"nobody else may read this. " * 8


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def gpud(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    folder = tmp_path_factory.mktemp("gpud")
    options = ("--tls-cert", str(pair[0]), "--tls-key", str(pair[1]), "--require-tls")
    servers = {"lupine": program(folder, "lupine")}
    with running_gpud(folder, *options, middlewares=servers) as found:
        yield found


class Between:
    """Takes a client's connection and its own to the gateway, and acts as a test demands."""

    def __init__(self, gateway: str, act: Callable[[socket.socket, socket.socket], None]) -> None:
        host, _, port = gateway.rpartition(":")
        self._to, self._act = (host, int(port)), act
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, socket.create_connection(self._to, 60) as gateway:
                    client.settimeout(60)
                    with contextlib.suppress(Exception):
                        self._act(client, gateway)

    def __enter__(self) -> Between:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def carry(source: Channel, sink: Channel, change: Callable[[Meta], Meta] = dict) -> Meta:
    received = source.receive()
    assert received is not None
    sink.send(change(received[1]))
    return received[1]


def relay(heard: bytearray) -> Callable[[socket.socket, socket.socket], None]:
    """Passes on all there is, and keeps it."""

    def act(client: socket.socket, gateway: socket.socket) -> None:
        def pump(source: socket.socket, sink: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    heard.extend(data)
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)

        back = threading.Thread(target=pump, args=(gateway, client))
        back.start()
        pump(client, gateway)
        back.join()

    return act


def through(view: Access, address: str) -> Access:
    return replace(view, hosts=tuple(replace(host, gateway=address) for host in view.hosts))


def test_session_lane_and_relay_are_encrypted(gpud: Gpud) -> None:
    install = gpud.install()
    heard = bytearray()
    with Between(gpud.gateway, relay(heard)) as between, gpud.open(install) as session:
        with Lane.open(through(over_tcp(session), between.address)) as lane:
            result = lane.op("noop", MARK * 10_000, mark=MARK.decode())  # many records
            assert bytes(result.buffers[0]) == MARK * 10_000
            lane.post("noop", b"x" * 100_000)
            lane.sync()
        assert len(heard) > 2 * len(MARK) * 10_000
        assert MARK[:20] not in heard
        view = through(over_tcp(session), between.address)
        with Forwarder(view, "lupine") as forwarder, Client(forwarder.ports[0]) as client:
            assert client.hear() == b"port 0"
            assert client.ask(MARK * 2_000) == MARK * 2_000
        assert MARK[:20] not in heard
        session.give_back()
    until(lambda: ("closed", "DONE") in gpud.scheduler.states(install.lease))


def test_relays_in_tls_end_as_others_do(gpud: Gpud) -> None:
    """A client that sends no more still gets every answer; the end of the lease cuts the rest."""
    both_ways(gpud, over_tcp)
    transfer_cut(gpud, over_tcp)


@pytest.mark.parametrize("what", ["session", "lane"])
def test_a_stolen_host_key_does_not_pass_the_channel_binding(
    gpud: Gpud, pair: tuple[Path, Path], what: str
) -> None:
    """He passes the proof on, then ends both TLS connections: their bindings differ."""

    def act(client: socket.socket, gateway: socket.socket) -> None:
        inner, outer = Channel(client, HANDSHAKE), Channel(gateway, HANDSHAKE)
        carry(inner, outer)
        carry(outer, inner)
        carry(inner, outer)
        assert "tls" in carry(outer, inner)
        stolen = secure(client, server_context(*pair), server=True)
        own = secure(gateway, client_context(pair[0].read_text()), server=False)
        inner = Channel(TlsStream(client, stolen), HANDSHAKE)
        outer = Channel(TlsStream(gateway, own), HANDSHAKE)
        carry(inner, outer)
        carry(outer, inner)

    install = gpud.install()
    with Between(gpud.gateway, act) as between:
        if what == "session":
            with pytest.raises(Refused) as refused:
                Session.open(gpud.connection(install, gateway=between.address), 10)
            assert refused.value.code == Refusal.DENIED
        else:
            with gpud.open(install) as session, pytest.raises(Refused) as refused:
                Lane.open(through(over_tcp(session), between.address))
            # the worker closes without a word
            assert refused.value.code in (Refusal.UNREACHABLE, Refusal.DENIED)
    if what == "session":
        gpud.open(install).close()  # nothing was claimed


def test_another_certificate_is_not_taken(gpud: Gpud, tmp_path: Path) -> None:
    other = certificate(tmp_path)

    def act(client: socket.socket, gateway: socket.socket) -> None:
        inner, outer = Channel(client, HANDSHAKE), Channel(gateway, HANDSHAKE)
        for source, sink in ((inner, outer), (outer, inner), (inner, outer), (outer, inner)):
            carry(source, sink)
        secure(client, server_context(*other), server=True)

    install = gpud.install()
    with Between(gpud.gateway, act) as between, pytest.raises(Refused) as refused:
        Session.open(gpud.connection(install, gateway=between.address), 10)
    assert refused.value.code == Refusal.DENIED
    assert "TLS" in refused.value.message


@pytest.mark.parametrize("authority", ["", "his own"])
def test_tls_cannot_be_downgraded_nor_its_authority_replaced(
    gpud: Gpud, authority: str, tmp_path: Path
) -> None:
    named = certificate(tmp_path)[0].read_text() if authority else ""

    def weaker(meta: Meta) -> Meta:
        return {"challenge": {**meta["challenge"], "authority": named}}

    def act(client: socket.socket, gateway: socket.socket) -> None:
        inner, outer = Channel(client, HANDSHAKE), Channel(gateway, HANDSHAKE)
        carry(inner, outer)
        carry(outer, inner, weaker)
        carry(inner, outer)

    install = gpud.install()
    with Between(gpud.gateway, act) as between, pytest.raises(Refused) as refused:
        Session.open(gpud.connection(install, gateway=between.address), 10)
    assert refused.value.code == Refusal.DENIED
    assert "does not know the secret" in refused.value.message


def test_a_proven_client_without_tls_is_dropped(gpud: Gpud) -> None:
    def act(client: socket.socket, gateway: socket.socket) -> None:
        inner, outer = Channel(client, HANDSHAKE), Channel(gateway, HANDSHAKE)
        for source, sink in ((inner, outer), (outer, inner), (inner, outer), (outer, inner)):
            carry(source, sink)
        gateway.sendall(b"no TLS at all" * 10)
        while gateway.recv(4096):
            pass

    install = gpud.install()
    with Between(gpud.gateway, act) as between, pytest.raises(Refused):
        Session.open(gpud.connection(install, gateway=between.address), 10)
    gpud.open(install).close()
