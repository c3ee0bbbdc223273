"""A gateway that functions reach through `ssh -R`, with a real sshd, as in docs/how-to/hosts.md.

Where no sshd is installed the test is skipped, and says so. `TESTS_SSHD` names another one.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.model import EndReason
from orchgpu.local.ports import fixed_port
from remote_gpu.client import Session, connect
from remote_gpu.middleware import render
from tests.integration.gpud.conftest import environment_over_tcp, until
from tests.integration.gpud.system import System, reserve, until_leases

SSHD_VARIABLE = "TESTS_SSHD"


def sshd_program() -> str:
    """The path of an sshd; skips the test where there is none."""
    places = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    found = os.environ.get(SSHD_VARIABLE) or shutil.which("sshd", path=places)
    if not found or not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        text = "NOT TESTED: hosts behind NAT; install openssh-server and openssh-client, or name an"
        text += f" sshd in {SSHD_VARIABLE}"
        if sys.__stderr__ is not None:
            sys.__stderr__.write(f"\n{text}\n")
        pytest.skip(text)
    return found


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def process(*command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program for the length of the block."""
    with log.open("wb") as output:
        started = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(30)


@contextmanager
def relay(folder: Path, program: str) -> Iterator[int]:
    """An sshd on the loopback with one key; yields its port."""
    folder.mkdir(mode=0o700)
    for name in ("host", "client"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    public = (folder / "client.pub").read_text()
    (folder / "authorized").write_text(f"restrict,port-forwarding {public}")
    port = fixed_port()
    settings = {
        "Port": str(port),
        "ListenAddress": "127.0.0.1",
        "HostKey": str(folder / "host"),
        "AuthorizedKeysFile": str(folder / "authorized"),
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "GatewayPorts": "clientspecified",
    }
    config = folder / "sshd_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    log = folder / "sshd.log"
    with process(program, "-D", "-e", "-f", str(config), log=log) as daemon:
        until(lambda: listens(port) or daemon.poll() is not None)
        assert daemon.poll() is None, log.read_text()
        yield port


def tunnel(folder: Path, sshd_port: int, public: int, gateway: str) -> list[str]:
    """The command of docs/how-to/hosts.md, with the key of the test."""
    options = {
        "ExitOnForwardFailure": "yes",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
        "BatchMode": "yes",
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": str(folder / "known"),
    }
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    where = ["-i", str(folder / "client"), "-p", str(sshd_port)]
    forward = ["-R", f"127.0.0.1:{public}:{gateway}"]
    return ["ssh", "-N", *given, *where, *forward, f"{getpass.getuser()}@127.0.0.1"]


async def through(system: System, folder: Path, sshd_port: int, public: int) -> None:
    """A lease through the tunnel, until the tunnel breaks."""
    gateway = json.loads((system.folder / "remote_gpu.host.json").read_text())["gateway"]
    command = tunnel(folder, sshd_port, public, gateway)
    async with system.client() as client:
        with process(*command, log=folder / "ssh.log") as ssh:
            until(lambda: listens(public) or ssh.poll() is not None)
            assert ssh.poll() is None, (folder / "ssh.log").read_text()
            granted = await reserve(client, "a")
            # an envelope's environment is JSON
            connection: Any = render("builtin", granted)["connection"]
            assert connection["hosts"][0]["gateway"] == f"127.0.0.1:{public}"
            session = await asyncio.to_thread(Session.open, connection, 30)
            with connect(environment_over_tcp(session)) as device:
                payload = bytes(2**20)
                answer = await asyncio.to_thread(device.op, "noop", payload)
                assert bytes(answer.buffers[0]) == payload
            assert session.alive
        await until_leases(client)  # the tunnel is gone, and the session with it
        until(lambda: not session.alive)
        session.close()
    ends = (system.folder / "gpu-a" / "leases.jsonl").read_text().splitlines()
    closed = [json.loads(line)["reason"] for line in ends if '"closed"' in line]
    assert closed == [EndReason.SESSION_LOST.value]


@pytest.mark.timeout(180)
def test_a_gateway_behind_nat_is_reached_through_ssh(tmp_path: Path) -> None:
    program, folder, public = sshd_program(), tmp_path / "ssh", fixed_port()
    with relay(folder, program) as sshd_port:
        system = System(tmp_path, "--advertise", f"127.0.0.1:{public}")
        try:
            asyncio.run(through(system, folder, sshd_port, public))
        finally:
            system.close()
