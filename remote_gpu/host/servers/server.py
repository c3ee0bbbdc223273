"""The server of another middleware: the operator's program, in a process group of its own.

It is ended by SIGKILL to the whole group, and gone when nobody of the group is left. What it forks
into other sessions ends with its sandbox, where that has a user or a cgroup of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from remote_gpu.host.servers.variables import INHERITED
from remote_gpu.host.workers.cells import HostSandbox
from remote_gpu.middleware import ServerCommand

_GUARD = Path(__file__).with_name("guard.py")
#: What it inherits of gpud's own environment.
_PASSED = (*INHERITED, "GVIRTUS_HOME", "VACCEL_PLUGINS")
_LOOK_S = 0.02  #: between looks at what a server listens on, or at what is left of it
#: Below those that Linux gives to outgoing connections (ip_local_port_range): what is free stays
#: so until the server takes it, but for another server.
_PORTS = range(20_000, 32_000)
_PORT_TRIES = 50
_SAID_BYTES = 2000  #: of its last words, for the log
_LISTENING = "0A"  #: state of a socket in /proc/net/tcp, <net/tcp_states.h>


class Server:
    """One process group, from start to its certain end."""

    def __init__(
        self,
        program: Path,
        command: ServerCommand,
        folder: Path,
        sandbox: HostSandbox | None = None,
    ) -> None:
        """Start it in `folder`, which is made now and removed at its end, as its sandbox does.

        Raises OSError.
        """
        folder.mkdir(parents=True)
        user = -1 if sandbox is None else sandbox.sandbox.user
        for name, contents in command.files.items():
            (folder / name).write_text(contents)
            os.chown(folder / name, user, user)
        os.chown(folder, user, user)
        self._cell = sandbox
        variables = {
            name: value.replace("{folder}", str(folder))
            for name, value in command.variables.items()
        }
        arguments = [str(os.getpid()), str(user), str(program), *command.arguments]
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        self._output, inner = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), *arguments],
                cwd=folder,
                env=passed | variables,
                stdin=subprocess.PIPE,
                stdout=inner,
                stderr=inner,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(inner)
        self._folder = folder
        self._said = b""
        self.pid = self._process.pid
        self._begin()
        self.exited = asyncio.Event()  #: its first process has ended
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pidfd = os.pidfd_open(self.pid)
        os.set_blocking(self._output, False)
        asyncio.get_running_loop().add_reader(self._pidfd, self.exited.set)
        asyncio.get_running_loop().add_reader(self._output, self._hear)

    def _begin(self) -> None:
        """Once it is in its sandbox, so that all it starts is. Raises OSError."""
        assert self._process.stdin is not None, "it is a pipe"
        try:
            with self._process.stdin as stdin:
                if self._cell is not None:
                    self._cell.admit(self.pid)
                stdin.write(b"\n")
        except OSError:
            self._process.kill()
            self._process.wait()
            os.close(self._output)
            raise

    @property
    def said(self) -> str:
        """The end of what it wrote."""
        return self._said.decode("utf-8", "replace").strip()

    async def watch(self) -> None:
        """Run beside it: makes `gone` true once nothing of it is left."""
        loop = asyncio.get_running_loop()
        try:
            await self.exited.wait()
            self.kill()  # what it forked does not outlive it
        finally:
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            loop.remove_reader(self._output)
            self._hear()
            os.close(self._output)
        self._process.wait()  # only now may its number become anybody else's
        while _group_lives(self.pid):  # noqa: ASYNC110 - the kernel tells nobody of a group's end
            await asyncio.sleep(_LOOK_S)
        if self._cell is not None:
            await self._cell.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.gone.set_result(None)

    def kill(self) -> None:
        """End the group now. Safe to repeat; await `gone` for the certainty."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        if self._cell is not None:
            self._cell.kill()

    async def listens(self, port: int, wait_s: float) -> int:
        """The port it serves on, once it does: `port`, or for 0 its lowest; 0 = it does not.

        Nobody connects to find out: some servers take the first connection for their only client.
        """
        until_s = time.monotonic() + wait_s
        while not self.exited.is_set() and time.monotonic() < until_s:
            ports = _listening(self.pid)
            if ports and (not port or port in ports):
                return port or min(ports)
            await asyncio.sleep(_LOOK_S)
        return 0

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if words := os.read(self._output, 1 << 16):
                self._said = (self._said + words)[-_SAID_BYTES:]
            else:  # closed by all of the group, and readable for ever
                asyncio.get_running_loop().remove_reader(self._output)


def free_port(count: int) -> int:
    """The first of `count` consecutive ports that nobody uses now. Raises OSError when none is."""
    for first in random.sample(_PORTS, _PORT_TRIES):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise OSError(f"no {count} consecutive ports are free")


def _group_lives(group: int) -> bool:
    """Somebody of it is more than an entry that its new parent has yet to remove."""
    with contextlib.suppress(PermissionError):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of_group = entry.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(of_group) == group and state not in "ZX":
                return True
    return False


def _listening(pid: int) -> set[int]:
    """The TCP ports that a process or one below it listens on."""
    own = {inode for one in _family(pid) for inode in _sockets(one)}
    found: set[int] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and fields[9] in own:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def _family(pid: int) -> list[int]:
    found = [pid]
    for parent in found:  # grows meanwhile
        for thread in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, thread.read_text().split())
    return found


def _sockets(pid: int) -> list[str]:
    """Inodes of the sockets a process has open; none of one that is not ours to look at."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                names.append(str(descriptor.readlink()))
    return [name[8:-1] for name in names if name.startswith("socket:[")]
