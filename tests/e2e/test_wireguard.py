"""A host behind NAT, reached through WireGuard: the files of docs/how-to/hosts.md, word for word.

The host's own address is in a network to which the function has no way; the relay is on the
scheduler's machine. Needs `wg`, `wg-quick` and WireGuard of the kernel or `wireguard-go`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.system_in_namespaces import OWN_CLIENT, WAIT_S, System
from tests.namespaces import Bridge, Machine, why_not
from tests.pages import ROOT

CONNECTS = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"


def _why_not() -> str | None:
    missing = [tool for tool in ("wg", "wg-quick") if shutil.which(tool) is None]
    if missing:
        return f"WireGuard is missing: no {' and no '.join(missing)}"
    if shutil.which("wireguard-go"):
        return None
    in_kernel = ("unshare", "--net", "ip", "link", "add", "wg0", "type", "wireguard")
    if subprocess.run(in_kernel, capture_output=True, check=False).returncode == 0:
        return None
    return "the kernel has no WireGuard, and there is no wireguard-go"


REASON = why_not() or _why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"NOT TESTED: {REASON}")


@dataclass(frozen=True)
class Keys:
    """The key pair of one end."""

    private: str = field(default_factory=lambda: _wg("genkey"))

    @property
    def public(self) -> str:
        return _wg("pubkey", self.private)


def _wg(command: str, text: str = "") -> str:
    done = subprocess.run(["wg", command], input=text, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def written(name: str, own: Keys, peer: Keys, relay: str) -> str:
    """The file of that name in docs/how-to/hosts.md, with keys and the relay's address."""
    page = (ROOT / "docs/how-to/hosts.md").read_text()
    found = re.search(rf"```\n(# /etc/wireguard/{name}\.conf .*?)```", page, re.DOTALL)
    assert found, name
    text = found[1].replace("PrivateKey = …", f"PrivateKey = {own.private}")
    text = text.replace("PublicKey = …", f"PublicKey = {peer.public}")
    assert "…" not in text
    return text.replace("relay.example", relay)


@contextmanager
def interface(machine: Machine, path: Path, text: str) -> Iterator[None]:
    """A WireGuard interface, named as its file."""
    path.touch(mode=0o600)
    path.write_text(text)
    machine.must("wg-quick", "up", str(path))
    try:
        yield
    finally:
        machine.must("wg-quick", "down", str(path))


@contextmanager
def machines_behind_nat() -> Iterator[dict[str, Machine]]:
    """The scheduler's machine, a host that only it reaches, and a function elsewhere."""
    made: dict[str, Machine] = {}
    try:
        for number, name in enumerate(("scheduler", "gpu-a", "function"), 1):
            made[name] = Machine(name, number)
        hub = made["scheduler"]
        Bridge(hub, "br0", "198.18.0", [made["gpu-a"]], device="eth0")
        functions = Bridge(hub, "br1", "10.0.1", [made["function"]], device="eth0")
        made["function"].must("ip", "route", "add", "10.9.0.0/24", "via", functions.address)
        hub.must("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        yield made
    finally:
        for machine in made.values():
            machine.close()


def connects(machine: Machine, address: str) -> bool:
    """Whether a TCP connection from this machine gets there."""
    host, _, port = address.rpartition(":")
    command = machine.command(sys.executable, "-c", CONNECTS, host, port)
    return subprocess.run(command, capture_output=True, timeout=WAIT_S).returncode == 0


@pytest.mark.timeout(180)
def test_a_gateway_behind_nat_is_reached_through_wireguard(tmp_path: Path) -> None:
    host, relay = Keys(), Keys()
    with machines_behind_nat() as made, ExitStack() as stack:
        hub = made["scheduler"].address
        for name, where, own, peer in (
            ("relay", "scheduler", relay, host),
            ("wg0", "gpu-a", host, relay),
        ):
            text = written(name, own, peer, hub)
            stack.enter_context(interface(made[where], tmp_path / f"{name}.conf", text))
        system = System(tmp_path, made)
        stack.callback(system.close)
        system.start_scheduler()
        system.start_host("gpu-a", "10.9.0.21:4711", "--advertise", "10.9.0.21:4711")
        made["function"].hide(tmp_path / "gpu-a")
        assert not connects(made["function"], f"{hub}:{system.scheduler.rpartition(':')[2]}")
        assert connects(made["function"], "10.9.0.21:4711")
        assert system.run_on_lease("builtin", 1, OWN_CLIENT).split() == ["True"]
