"""Relays of a real gpud: an unmodified client, the forwarder, the gateway, a server per lease."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corekit.errors import EXIT_STATUS, ErrorCode
from corekit.ids import AttemptId, HostId
from gpu_scheduler.model import Door, GrantedLease, Lease, LeaseLifetime, LeaseState
from gpu_scheduler.protocol.host import Install
from remote_gpu.client import Refusal, Refused, Session
from remote_gpu.client.transport.handshake import open_connection
from remote_gpu.forwarder import Forwarder, client_variables
from remote_gpu.host.environment import INHERITED
from remote_gpu.host.servers.visible import visible_devices
from remote_gpu.middleware import find, names, render
from remote_gpu.middleware.base import ServerLease
from remote_gpu.wire.connection import Access
from remote_gpu.wire.proof import ConnectionRole
from tests.drivers import needs_cpu_driver
from tests.integration.gpud.conftest import Gpud, over_tcp, running_gpud, until

WAIT_S = 60.0
OTHERS = tuple(name for name in names() if name != "builtin")


def program(folder: Path, name: str, ports: int = 1) -> Path:
    """The stand-in as a program of its own."""
    path = folder / name
    source = Path(__file__).with_name("standin.py").read_text()
    source = source.replace("\nPORTS = 1\n", f"\nPORTS = {ports}\n")
    path.write_text(f"#!{sys.executable} -S\n{source}")
    path.chmod(0o755)
    return path


@functools.cache
def refused_here(name: str = "pocl") -> str | None:
    """The reason why this machine may not offer a middleware, as one with several cards."""
    return find(name).refusal(asyncio.run(visible_devices(HostId("here"))))


@pytest.fixture(scope="module")
def gpud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    folder = tmp_path_factory.mktemp("gpud")
    programs = {
        name: program(folder, name, find(name).server_ports)
        for name in OTHERS
        if not refused_here(name)
    }
    programs["cricket"] = program(folder, "broken-cricket")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCHGPU_SCHEDULER_NOTE", "not for children")
        with running_gpud(folder, middlewares=programs) as found:
            yield found


class Client:
    """Speaks the stand-in's frames; knows nothing of leases."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.stream = socket.create_connection((address, port), 60)
        self._words = self.stream.makefile("rb")

    def hear(self) -> bytes:
        """The next frame; empty at the end."""
        try:
            head = self._words.read(4)
            return self._words.read(struct.unpack("!I", head)[0]) if head else b""
        except ConnectionError:
            return b""

    def ask(self, body: bytes) -> bytes:
        self.stream.sendall(struct.pack("!I", len(body)) + body)
        return self.hear()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._words.close()
        self.stream.close()


def refuses_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 60).close()
    except ConnectionRefusedError:
        return True
    return False


def rendered(gpud: Gpud, install: Install, name: str) -> dict[str, str]:
    """The variables as the orchestrator puts them into an envelope."""
    lease = Lease(
        id=install.lease,
        attempt=AttemptId("j:1"),
        holder=None,
        fence=install.fence,
        state=LeaseState.RESERVED,
        shares=install.shares,
    )
    granted = GrantedLease(
        lease=lease, epoch=1, gateways={"gpu-a": gpud.gateway}, secrets={"gpu-a": install.secret}
    )
    return render(name, granted)["variables"]


def address(name: str, variables: dict[str, str]) -> int:
    """The forwarder's port in the variables, or in the file that one of them names."""
    loopback = re.escape(find(name).client.address)
    for value in variables.values():
        if found := re.search(rf"\b{loopback}[:@](\d+)", value):
            return int(found[1])
        if Path(value).is_file() and (found := re.search(r'"(\d{4,5})"', Path(value).read_text())):
            return int(found[1])
    raise AssertionError(variables)


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "cricket"])
def test_an_unmodified_client_reaches_its_own_server(gpud: Gpud, tmp_path: Path, name: str) -> None:
    if why := refused_here(name):
        pytest.skip(f"this machine may not offer {name}: {why}")
    install = gpud.install()
    given = rendered(gpud, install, name)
    with (
        gpud.open(install) as session,
        client_variables(session.view(), name, given, tmp_path) as variables,
    ):
        port = address(name, variables)
        if (reached := find(name).client.ports) < find(name).server_ports:
            assert refuses_connections(port + reached), "a port for other servers stays shut"
        with Client(port) as one, Client(port) as two:
            assert one.hear() == two.hear() == b"port 0"  # the server speaks first
            assert two.ask(b"two") == b"two"
            assert one.ask(b"one") == b"one"
            facts = json.loads(one.ask(b"facts"))
        for number in range(1, reached):
            with Client(port + number) as other:
                assert other.hear() == b"port %d" % number
        environ = facts["environ"]
        assert environ["CUDA_VISIBLE_DEVICES"] == ""  # the lease has no CUDA device
        command = find(name).server_command(
            ServerLease(fence=install.fence, shares=install.shares, port=1)
        )
        assert command is not None
        for variable, value in command.variables.items():
            if value == "{folder}":
                assert Path(environ[variable]).parent == gpud.state / "servers"
        known = {*INHERITED, *find(name).inherited, *command.variables}
        assert set(environ) - known <= {"LC_CTYPE"}, "which Python sets itself"
        session.give_back()
        until(lambda: not gpud.survivors([facts["pid"], facts["parent"]]))
    until(lambda: not list((gpud.state / "servers").iterdir()))


def opened(gpud: Gpud, session: Session, name: str = "lupine", **changes: Any) -> None:
    """Open one relay; raises Refused."""
    view = session.view()
    host = replace(view.hosts[0], **{k: v for k, v in changes.items() if k == "secret"})
    stream, _, _ = open_connection(
        host,
        role=ConnectionRole.RELAY,
        lease=view.lease,
        fence=view.fence,
        session=view.session,
        timeout_s=60.0,
        middleware=name,
        port=changes.get("port", 0),
    )
    stream.close()


def test_a_client_without_a_proof_starts_no_server(gpud: Gpud) -> None:
    install = gpud.install()
    with gpud.open(install) as session:
        view = session.view()
        forged = replace(view.hosts[0], secret="ab" * 32)
        below = gpud.workers()
        with pytest.raises(Refused) as refused:
            opened(gpud, session, secret="ab" * 32)
        assert refused.value.code == Refusal.DENIED
        wrong = Access(view.lease, view.fence, (forged,), view.session)
        with Forwarder(wrong, "lupine") as forwarder, Client(forwarder.ports[0]) as client:
            assert client.hear() == b""
        with pytest.raises(Refused, match="does not offer 'builtin'"):
            opened(gpud, session, "builtin")
        with pytest.raises(Refused, match="no port number 1"):
            opened(gpud, session, port=1)
        assert set(gpud.workers()) <= set(below)
        if not refused_here():
            with pytest.raises(Refused, match="pocl has no port number 2"):  # for other servers
                opened(gpud, session, "pocl", port=2)
    with gpud.open(gpud.install(middleware="rcuda")) as session:
        with pytest.raises(Refused, match="is for rcuda only"):
            opened(gpud, session)
        assert set(gpud.workers()) <= set(below)


def test_a_program_that_does_not_serve_is_refused_as_not_ready(gpud: Gpud) -> None:
    install = gpud.install()
    with gpud.open(install) as session:
        with pytest.raises(Refused, match="did not begin to serve") as refused:
            opened(gpud, session, "cricket")
        assert refused.value.code == Refusal.NOT_READY
        (line,) = gpud.logged("server ended by itself")
        assert (line["status"], line["output"]) == (1, "no device for me")
        with pytest.raises(Refused, match="runs cricket already"):
            opened(gpud, session, "lupine")


def test_a_revoked_lease_leaves_no_connection_and_no_process(gpud: Gpud) -> None:
    install = gpud.install()
    session = gpud.open(install)
    with Forwarder(session.view(), "lupine") as forwarder, Client(forwarder.ports[0]) as client:
        assert client.hear() == b"port 0"
        facts = json.loads(client.ask(b"facts"))
        gpud.scheduler.end(install)
        assert client.hear() == b""
        until(lambda: gpud.scheduler.is_cut(install.lease))
        assert not gpud.survivors([facts["pid"], facts["parent"]])
        with Client(forwarder.ports[0]) as late:
            assert late.hear() == b""
        until(lambda: refuses_connections(forwarder.ports[0]))  # it connects no more for nothing
    session.close()


def transfer_cut(gpud: Gpud, view_of: Callable[[Session], Access]) -> None:
    """A lease ends while its relays carry large frames both ways: all of them end, with it."""
    body = bytes(1 << 20)
    install = gpud.install()
    with (
        gpud.open(install) as session,
        Forwarder(view_of(session), "lupine") as forwarder,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(Client(forwarder.ports[0])) for _ in range(8)]
        assert {client.hear() for client in clients} == {b"port 0"}
        served = [json.loads(client.ask(b"facts")) for client in clients]

        def send(client: Client) -> None:
            with contextlib.suppress(OSError):
                while True:
                    client.stream.sendall(struct.pack("!I", len(body)) + body)

        senders = [threading.Thread(target=send, args=(client,)) for client in clients]
        for sender in senders:
            sender.start()
        for client in clients:
            assert client.hear() == body
        gpud.scheduler.end(install)
        until(lambda: gpud.scheduler.is_cut(install.lease))
        for client, sender in zip(clients, senders, strict=True):
            while client.hear() == body:  # what was on the way
                pass
            sender.join(WAIT_S)
            assert not sender.is_alive()
        pids = {fact["pid"] for fact in served} | {fact["parent"] for fact in served}
        assert not gpud.survivors([*pids])


def test_the_end_of_a_lease_cuts_transfers_in_their_middle(gpud: Gpud) -> None:
    transfer_cut(gpud, over_tcp)


def both_ways(gpud: Gpud, view_of: Callable[[Session], Access]) -> None:
    """Frames both ways at once, to the last byte of a half-closed connection."""
    body = bytes(range(256)) * (1 << 15)  # 8 MiB: more than all buffers on the way
    install = gpud.install()
    with (
        gpud.open(install) as session,
        Forwarder(view_of(session), "lupine") as forwarder,
        Client(forwarder.ports[0]) as client,
    ):
        assert client.hear() == b"port 0"

        def send() -> None:
            for _ in range(2):
                client.stream.sendall(struct.pack("!I", len(body)) + body)
            client.stream.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        assert client.hear() == body
        assert client.hear() == body
        assert client.hear() == b""  # it heard that no more comes, and so did we
        sender.join()


def test_a_server_that_died_is_replaced(gpud: Gpud) -> None:
    install = gpud.install()
    with (
        gpud.open(install) as session,
        Forwarder(session.view(), "lupine") as forwarder,
    ):
        with Client(forwarder.ports[0]) as client:
            assert client.hear() == b"port 0"
            dead = json.loads(client.ask(b"facts"))["parent"]
            client.ask(b"die")
        until(lambda: not gpud.survivors([dead]))
        with Client(forwarder.ports[0]) as client:
            assert client.hear() == b"port 0"
            second = json.loads(client.ask(b"facts"))["parent"]
            assert second != dead
        gpud.scheduler.end(install)
        until(lambda: gpud.scheduler.is_cut(install.lease))
    (died,) = [line for line in gpud.logged("server ended by itself") if line["pid"] == dead]
    assert died["level"] == "warning"
    assert (died["status"], died["output"]) == (-9, "the last words of a server")
    (ended,) = [line for line in gpud.logged("server was ended") if line["pid"] == second]
    assert (ended["level"], ended["lease"]) == ("info", install.lease)


def test_servers_die_with_gpud(tmp_path: Path) -> None:
    servers = {"cricket": program(tmp_path, "cricket")}
    with running_gpud(tmp_path, middlewares=servers) as gpud:
        session = gpud.open(gpud.install())
        # and Cricket's takes a port of its own choice
        with (
            Forwarder(session.view(), "cricket") as forwarder,
            Client(forwarder.ports[0], "127.0.0.2") as client,
        ):
            assert client.hear() == b"port 0"
            # its client compares these, and would take the server for one on its own machine
            assert client.stream.getsockname()[0] != client.stream.getpeername()[0]
            facts = json.loads(client.ask(b"facts"))
            gpud.kill()
            assert client.hear() == b""
        until(lambda: not gpud.survivors([facts["pid"], facts["parent"]]))
        session.close()


@pytest.mark.parametrize("view_of", [Session.view, over_tcp])
def test_both_ways_at_once_to_the_last_byte(
    gpud: Gpud, view_of: Callable[[Session], Access]
) -> None:
    both_ways(gpud, view_of)


def test_a_port_of_a_lease_leads_to_its_middleware(gpud: Gpud) -> None:
    """As classic rCUDA has it: no proof, the server's bytes from the first one on."""
    install = gpud.install(
        hold=LeaseLifetime.DEADLINE,
        door=Door.PORT,
        cap_s=600.0,
        sources=("127.0.0.0/8",),
        middleware="rcuda",
    )

    def addresses() -> list[str]:
        messages = gpud.scheduler.messages
        return [f["address"] for op, f in messages if op == "door" and f["lease"] == install.lease]

    until(addresses)
    with Client(int(addresses()[0].rpartition(":")[2])) as client:
        assert client.hear() == b"port 0"
        assert client.ask(b"one") == b"one"
        facts = json.loads(client.ask(b"facts"))
        gpud.scheduler.end(install)
        assert client.hear() == b""
    until(lambda: gpud.scheduler.is_cut(install.lease))
    assert not gpud.survivors([facts["pid"], facts["parent"]])


@needs_cpu_driver
def test_a_host_with_two_opencl_devices_does_not_offer_pocl(tmp_path: Path) -> None:
    """A real second device: PoCL's other driver for the same CPU."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "remote_gpu.host",
            "--host-id",
            "gpu-a",
            "--scheduler",
            "127.0.0.1:1",
            "--state",
            str(tmp_path / "state"),
            "--no-nvml",
            "--middleware",
            f"pocl={program(tmp_path, 'pocld')}",
        ],
        env={**os.environ, "POCL_DEVICES": "pthread basic"},
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == EXIT_STATUS[ErrorCode.INVALID]
    assert "--middleware pocl is refused on this host: pocld shows every OpenCL" in done.stderr
    assert not (tmp_path / "state").exists()
