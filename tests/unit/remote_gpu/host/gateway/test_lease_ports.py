"""Ports of leases: who may come in, and where they lie."""

from __future__ import annotations

import asyncio
import socket

import pytest

from corekit.aio.supervise import Nursery
from corekit.ids import LeaseId
from gpu_scheduler.model import Door, LeaseLifetime
from gpu_scheduler.protocol.host import Install
from remote_gpu.client.reply import connection_of
from remote_gpu.host.gateway.lease_ports import LeasePorts, PortSettings, admits
from remote_gpu.wire.connection import parse_access
from remote_gpu.wire.errors import Refused
from tests.installs import install_of


def install(*sources: str) -> Install:
    held = {"hold": LeaseLifetime.DEADLINE, "cap_s": 60.0}
    return install_of(1, door=Door.PORT, sources=sources, **held)


@pytest.mark.parametrize(
    ("sources", "address", "may"),
    [
        (("10.0.0.0/8",), "10.1.2.3", True),
        (("10.0.0.0/8",), "11.1.2.3", False),
        (("10.0.0.7",), "10.0.0.7", True),
        (("10.0.0.7",), "::ffff:10.0.0.7", True),
        (("::1", "10.0.0.7"), "::1", True),
        (("fe80::/10",), "fe80::1%eth0", True),
        ((), "127.0.0.1", False),
        (("0.0.0.0/0",), "::1", False),
    ],
)
def test_a_port_admits_the_networks_of_its_lease(
    sources: tuple[str, ...], address: str, may: bool
) -> None:
    assert admits(sources, address) is may


@pytest.mark.asyncio
async def test_a_port_serves_its_lease_and_closes_with_it() -> None:
    seen: list[tuple[LeaseId, str]] = []

    async def serve(served: Install, stream: socket.socket, source: str) -> None:
        seen.append((served.lease, source))
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert [stream.getsockopt(socket.IPPROTO_TCP, one) for one in options] == [60, 15, 3]
        await asyncio.get_running_loop().sock_sendall(stream, b"hello")

    settings = PortSettings(listen="127.0.0.1", advertise="gpu-a.example")
    async with Nursery("test") as nursery:
        ports = LeasePorts(settings, serve, nursery)
        address = ports.open(install("127.0.0.0/8"))
        assert ports.open(install()) == address, "a lease has one"
        host, _, port = address.rpartition(":")
        assert host == "gpu-a.example"
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        assert await reader.read() == b"hello"
        writer.close()
        assert seen == [("l1", "127.0.0.1")]
        ports.close(LeaseId("l1"))
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", int(port))


@pytest.mark.asyncio
async def test_other_networks_are_refused_and_ports_run_out() -> None:
    async def serve(served: Install, stream: socket.socket, source: str) -> None:
        raise AssertionError("no connection is admitted")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = PortSettings(listen="127.0.0.1", advertise="::1", ports=range(port, port + 1))
        async with Nursery("test") as nursery:
            with pytest.raises(OSError, match="every port of --door-ports is in use"):
                LeasePorts(settings, serve, nursery).open(install())
    async with Nursery("test") as nursery:
        ports = LeasePorts(PortSettings(listen="127.0.0.1", advertise="::1"), serve, nursery)
        address = ports.open(install("10.0.0.0/8"))
        assert address.startswith("[::1]:")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        assert await reader.read() == b""
        writer.close()
        ports.close_all()


def test_a_classic_reply_is_a_connection() -> None:
    reply = "SSGM_ERROR=0;JOB=l;RCUDA_DEVICE_COUNT=2;"
    reply += "RCUDA_DEVICE_0=h@9000:0;RCUDA_DEVICE_1=h@9000:2;"
    access = parse_access(connection_of(reply))
    assert (access.lease, [host.gateway for host in access.hosts]) == ("l", ["h:9000"])
    assert [device.index for _, device in access.devices] == [0, 2]
    for wrong in ("", "SSGM_ERROR=2;", "SSGM_ERROR=0;JOB=l;RCUDA_DEVICE_COUNT=1;"):
        with pytest.raises(Refused):
            connection_of(wrong)
