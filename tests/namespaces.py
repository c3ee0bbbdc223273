"""Machines of a test: network namespaces with a /dev/shm of their own, joined by one bridge.

Needs root, `ip` (Debian: iproute2) and `unshare` (util-linux); `why_not()` says what is missing.
Nothing of it is visible outside, and all of it is gone with its last process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

_TOOLS = ("ip", "unshare", "nsenter", "mount")
_NET = "198.18.0"  #: for tests of networks alone, RFC 2544


def why_not() -> str | None:
    """Why this machine cannot have them; None: it can."""
    if os.geteuid() != 0:
        return "network namespaces with interfaces of their own need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need root's tools: no {', '.join(missing)}"
    tried = _run("unshare", "--net", "--mount", "ip", "link", "add", "try0", "type", "bridge")
    if tried.returncode:
        return f"root may not make network namespaces here: {tried.stderr.strip()}"
    return None


class Machine:
    """One namespace of network and mounts, held open by a process."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
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
        """What runs `arguments` there."""
        return ["nsenter", "--target", str(self.pid), "--net", "--mount", *arguments]

    def must(self, *arguments: str) -> None:
        done = _run(*self.command(*arguments))
        assert done.returncode == 0, f"{self.name}: {arguments}: {done.stderr}"

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


@contextmanager
def machines(*names: str) -> Iterator[dict[str, Machine]]:
    """Joined by a bridge in the first one's namespace; addresses from .1 on."""
    made: dict[str, Machine] = {}
    try:
        for number, name in enumerate(names, 1):
            made[name] = Machine(name, number)
        hub, *others = made.values()
        hub.must("ip", "link", "add", "br0", "type", "bridge")
        hub.must("ip", "addr", "add", f"{hub.address}/24", "dev", "br0")
        hub.must("ip", "link", "set", "br0", "up")
        for number, machine in enumerate(others):
            end = f"end{number}"
            peer = ("peer", "name", "eth0", "netns", str(machine.pid))
            hub.must("ip", "link", "add", end, "type", "veth", *peer)
            hub.must("ip", "link", "set", end, "master", "br0", "up")
            machine.must("ip", "addr", "add", f"{machine.address}/24", "dev", "eth0")
            machine.must("ip", "link", "set", "eth0", "up")
        yield made
    finally:
        for machine in made.values():
            machine.close()


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
