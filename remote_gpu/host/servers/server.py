"""The server of another middleware: the operator's program, in a process group of its own.

The server is ended by SIGKILL to the whole group, and is gone when no process of the group is left.
A process that it forks into another session ends with its sandbox, if that has a user or a cgroup
of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from corekit.aio.process import guarded
from remote_gpu.host.environment import INHERITED
from remote_gpu.isolation.bind_mounts import closed_above
from remote_gpu.isolation.sandboxes import HostSandbox
from remote_gpu.middleware.base import RpcProgram, ServerCommand

_LOOK_S = 0.02  #: between two checks of the ports it listens on, or of the processes left
#: Ports below those of Linux' outgoing connections (ip_local_port_range): a free one stays free
#: until the server takes it, unless another server does.
_PORTS = range(20_000, 32_000)
_PORT_TRIES = 50
_OUTPUT_BYTES = 2000  #: the end of a server's output, for the log
#: The current folder of whichever process of the server opens it: PoCL takes no relative path.
_OWN_FOLDER = "/proc/self/cwd"
_LISTENING = "0A"  #: state of a socket in /proc/net/tcp, <net/tcp_states.h>


class Server:
    """One process group, from start to its certain end."""

    def __init__(
        self,
        program: Path,
        command: ServerCommand,
        folder: Path,
        sandbox: HostSandbox,
        *,
        inherited: Sequence[str] = (),
    ) -> None:
        """Start the server in `folder`, created now and, like its sandbox, removed at its end.

        `inherited`: variables of gpud's own environment, beside `INHERITED`. A user of its own may
        not pass the state folder: `{folder}` is then `_OWN_FOLDER`. Raises OSError.
        """
        folder.mkdir(parents=True)
        user = sandbox.sandbox.user
        for name, contents in command.files.items():
            (folder / name).write_text(contents)
            os.chown(folder / name, user, user)
        os.chown(folder, user, user)
        self._sandbox = sandbox
        self._rpc_program = command.rpc_program
        reached = _OWN_FOLDER if user >= 0 and closed_above(folder) else str(folder)
        variables = {
            name: value.replace("{folder}", reached) for name, value in command.variables.items()
        }
        line = [str(program), *command.arguments]
        passed = {name: os.environ[name] for name in (*INHERITED, *inherited) if name in os.environ}
        self._pipe, inner = os.pipe()
        try:
            self._process = subprocess.Popen(
                guarded(line, signal.SIGKILL, user=user, held=True),
                cwd=folder,
                env=passed | variables,
                stdin=subprocess.PIPE,
                stdout=inner,
                stderr=inner,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(inner)
        self._folder = folder
        self._tail = b""
        self.pid = self._process.pid
        self._begin()
        self.exited = asyncio.Event()  #: its first process has ended
        self.killed = False  #: by this host, not by itself
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pidfd = os.pidfd_open(self.pid)
        os.set_blocking(self._pipe, False)
        asyncio.get_running_loop().add_reader(self._pidfd, self.exited.set)
        asyncio.get_running_loop().add_reader(self._pipe, self._read)

    def _begin(self) -> None:
        """Let it run once it is in its sandbox, which its children inherit. Raises OSError."""
        assert self._process.stdin is not None, "it is a pipe"
        try:
            with self._process.stdin as stdin:
                self._sandbox.admit(self.pid)
                stdin.write(b"\n")
        except OSError:
            self._process.kill()
            self._process.wait()
            os.close(self._pipe)
            raise

    @property
    def status(self) -> int | None:
        """The exit status of its first process, -n for signal n; None before `gone`."""
        return self._process.returncode

    @property
    def output(self) -> str:
        return self._tail.decode("utf-8", "replace").strip()

    async def watch(self) -> None:
        """Set `gone` once no process of it is left; continues where an error interrupted it."""
        try:
            await self.exited.wait()
        except asyncio.CancelledError:
            self._close_descriptors()
            raise
        self._kill_all()  # its children do not outlive it
        self._close_descriptors()
        self._process.wait()  # only now may another process get its number
        while _group_lives(self.pid):  # noqa: ASYNC110 - the kernel has no event for a group's end
            await asyncio.sleep(_LOOK_S)
        await self._sandbox.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._rpc_program is not None:
            await asyncio.to_thread(unregister, self._rpc_program)
        self.gone.set_result(None)

    def _close_descriptors(self) -> None:
        if self._pidfd >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            loop.remove_reader(self._pipe)
            self._read()
            os.close(self._pipe)
            self._pidfd = -1

    def kill(self) -> None:
        """Kill the group. Idempotent; await `gone` for the end."""
        self.killed = self.killed or not self.exited.is_set()
        self._kill_all()

    def _kill_all(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._sandbox.kill()

    async def listens(self, port: int, wait_s: float) -> int:
        """The port that the server listens on: `port`, or its lowest one for 0; 0 = none in time.

        No connection is made: some servers take the first connection for that of their only client.
        """
        until_s = time.monotonic() + wait_s
        while not self.exited.is_set() and time.monotonic() < until_s:
            ports = _listening(self.pid)
            if ports and (not port or port in ports):
                return port or min(ports)
            await asyncio.sleep(_LOOK_S)
        return 0

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if output := os.read(self._pipe, 1 << 16):
                self._tail = (self._tail + output)[-_OUTPUT_BYTES:]
            else:  # the whole group closed it
                asyncio.get_running_loop().remove_reader(self._pipe)


def free_port(count: int) -> int:
    """The first of `count` consecutive free ports. Raises OSError when there are none."""
    for first in random.sample(_PORTS, _PORT_TRIES):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise OSError(f"no {count} consecutive ports are free")


def _group_lives(group: int) -> bool:
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
    own = {inode for member in _family(pid) for inode in _sockets(member)}
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
    names: list[str] = []
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                names.append(str(descriptor.readlink()))
    return [name[8:-1] for name in names if name.startswith("socket:[")]


RPCBIND_SOCKET = Path("/run/rpcbind.sock")
_ANSWER_S = 2.0
_RPCBIND, _RPCBIND_VERSION, _UNSET = 100_000, 4, 2  #: RFC 1833
_CALL, _RPC_VERSION, _AUTH_NONE = 0, 2, 0  #: RFC 5531
_LAST_FRAGMENT = 1 << 31
_NO_TEXT = 0  #: length of an empty string: any transport, any address, the caller's user


def unregister(program: RpcProgram, path: Path | None = None) -> None:
    """Remove a program from rpcbind, on all transports; idempotent. `path`: another socket.

    Nothing happens where no rpcbind answers, or where it may not be removed: the server then
    reports what it lacks. Blocks for `_ANSWER_S` at most.
    """
    call = struct.pack(">6I", 1, _CALL, _RPC_VERSION, _RPCBIND, _RPCBIND_VERSION, _UNSET)
    call += struct.pack(">4I", _AUTH_NONE, 0, _AUTH_NONE, 0)
    call += struct.pack(">5I", program.number, program.version, _NO_TEXT, _NO_TEXT, _NO_TEXT)
    try:
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(_ANSWER_S)
            stream.connect(str(path or RPCBIND_SOCKET))
            stream.sendall(struct.pack(">I", _LAST_FRAGMENT | len(call)) + call)
            stream.recv(64)  # the answer: it is done
    except OSError:
        return
