"""Machines of a test: network namespaces with a /dev/shm of their own, joined by one bridge.

Needs root, `ip` and `bridge` (Debian: iproute2) and `unshare` (util-linux); `why_not()` gives what
is missing. Another user may be root in namespaces of its own (`unshared`), where the kernel
allows that. Nothing of it is visible outside, and all of it is gone with its last process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

_TOOLS = ("ip", "bridge", "unshare", "nsenter", "mount")
_NET = "198.18.0"  #: for tests of networks alone, RFC 2544
#: States of a bridge's port (`bridge link set`): frames are dropped, or pass.
_DISABLED, _FORWARDING = "0", "3"


def why_not() -> str | None:
    """Why this machine cannot have them; None: it can."""
    if os.geteuid() != 0:
        return "network namespaces with interfaces of their own need root"
    return _why_not(("unshare", "--net", "--mount"))


def unshared() -> tuple[str, ...]:
    """The command before one that shall run as root in namespaces of its own."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return ("unshare", *user, "--net", "--mount")


def why_not_unshared() -> str | None:
    """Why `unshared` does not give a program such namespaces here; None: it does."""
    return _why_not(unshared())


def _why_not(prefix: Sequence[str]) -> str | None:
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need root's tools: no {', '.join(missing)}"
    tried = _run(*prefix, "ip", "link", "add", "try0", "type", "bridge")
    if tried.returncode:
        return f"{' '.join(prefix)} gives no network namespace here: {tried.stderr.strip()}"
    return None


class Here:
    """The namespaces of this process."""

    name = "here"

    def command(self, *arguments: str) -> list[str]:
        """The command that runs `arguments` there."""
        return [*arguments]

    def must(self, *arguments: str) -> None:
        """Run a command that has to succeed."""
        done = _run(*self.command(*arguments))
        assert done.returncode == 0, f"{self.name}: {arguments}: {done.stderr}"


class Machine(Here):
    """One namespace of network and mounts, held open by a process."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.address = f"{_NET}.{number}"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", "echo; exec sleep infinity"],
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()  # it is within its namespaces now
        self.pid = self._holder.pid
        self.must("ip", "link", "set", "lo", "up")
        self.must("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")

    def command(self, *arguments: str) -> list[str]:
        return ["nsenter", "--target", str(self.pid), "--net", "--mount", *arguments]

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[Any]:
        """A program there; its working directory is this process's."""
        command = self.command("env", "-C", os.getcwd(), *arguments)
        return subprocess.Popen(command, env={**os.environ, **environment}, **options)

    def hide(self, folder: os.PathLike[str]) -> None:
        """Another machine's files are not here."""
        self.must("mount", "-t", "tmpfs", "tmpfs", str(folder))

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


class Bridge:
    """A network with a port for each machine, which can be cut: every frame is dropped then."""

    def __init__(
        self, hub: Here, name: str, net: str, machines: Sequence[Machine], *, device: str
    ) -> None:
        """The hub has address .1 of `net`, each machine that of its number, on `device`."""
        self.address = f"{net}.1"
        self._hub = hub
        self._net = net
        self._ports = {machine.name: f"{name}-{machine.number}" for machine in machines}
        hub.must("ip", "link", "add", name, "type", "bridge")
        hub.must("ip", "addr", "add", f"{self.address}/24", "dev", name)
        hub.must("ip", "link", "set", name, "up")
        for machine in machines:
            port = self._ports[machine.name]
            peer = ("peer", "name", device, "netns", str(machine.pid))
            hub.must("ip", "link", "add", port, "type", "veth", *peer)
            hub.must("ip", "link", "set", port, "master", name, "up")
            machine.must("ip", "addr", "add", f"{self.address_of(machine)}/24", "dev", device)
            machine.must("ip", "link", "set", device, "up")

    def address_of(self, machine: Machine) -> str:
        """The address of a machine in this network."""
        return f"{self._net}.{machine.number}"

    def cut(self, machine: str) -> None:
        """Drop every frame from and to this machine; its interface stays up."""
        self._set(machine, _DISABLED)

    def restore(self, machine: str) -> None:
        """Let frames pass again."""
        self._set(machine, _FORWARDING)

    def _set(self, machine: str, state: str) -> None:
        self._hub.must("bridge", "link", "set", "dev", self._ports[machine], "state", state)


@contextmanager
def machines(*names: str) -> Iterator[dict[str, Machine]]:
    """Joined by a bridge in the first one's namespace; addresses from .1 on."""
    made: dict[str, Machine] = {}
    try:
        for number, name in enumerate(names, 1):
            made[name] = Machine(name, number)
        hub, *others = made.values()
        Bridge(hub, "br0", _NET, others, device="eth0")
        yield made
    finally:
        for machine in made.values():
            machine.close()


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
